"""What a worker says it knows, made fit to store and to compare with: the broker is shared, anybody may answer."""

from __future__ import annotations

from typing import Any

from jobs.core.cleaning import clean_name

MAX_TASKS = 10_000
MAX_QUEUES = 1_000
# More than Python programs have; a longer list is no signature.
MAX_PARAMETERS = 500


def clean_tasks(tasks: Any) -> dict[str, dict[str, Any] | None] | None:
    """Return {task: parameters, or None when it takes anything}; None when this is no list of tasks.

    Names are cut as those of letters are, so that a letter finds its task.
    """
    if not isinstance(tasks, dict):
        return None
    return {
        clean_name(name): clean_parameters(parameters)
        for name, parameters in list(tasks.items())[:MAX_TASKS]
        if isinstance(name, str)
    }


def clean_parameters(parameters: Any) -> dict[str, Any] | None:
    """Return parameters as ``replay.explain_mismatch`` reads them, or None when they are something else."""
    if not isinstance(parameters, dict):
        return None
    names = _names(parameters.get("names"))
    keyword_only = _names(parameters.get("kwonly", []))
    needed = _names(parameters.get("kwonly_required", []))
    required = parameters.get("required")
    if names is None or keyword_only is None or needed is None or type(required) is not int:
        return None
    return {
        "names": names,
        "required": min(max(required, 0), len(names)),
        "var_args": parameters.get("var_args") is True,
        "var_kwargs": parameters.get("var_kwargs") is True,
        "kwonly": keyword_only,
        "kwonly_required": [name for name in needed if name in keyword_only],
    }


def clean_queues(queues: Any) -> list[str]:
    """Return the names among ``queues``."""
    if not isinstance(queues, list):
        return []
    return [clean_name(name) for name in queues[:MAX_QUEUES] if isinstance(name, str)]


def _names(value: Any) -> list[str] | None:
    if not isinstance(value, list) or len(value) > MAX_PARAMETERS:
        return None
    if not all(isinstance(name, str) for name in value):
        return None
    return [clean_name(name) for name in value]
