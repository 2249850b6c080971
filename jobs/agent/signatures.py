"""What a task takes."""

from __future__ import annotations

import inspect
from typing import Any

from celery import Task

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def describe_parameters(task: Task) -> dict[str, Any] | None:
    """Return the parameters of a task without ``self``; None when it does not say."""
    try:
        found = inspect.signature(task.run).parameters.values()
    except (TypeError, ValueError):
        return None
    positional = [each for each in found if each.kind in _POSITIONAL]
    named = [each for each in found if each.kind is inspect.Parameter.KEYWORD_ONLY]
    return {
        "names": [each.name for each in positional],
        "required": sum(each.default is inspect.Parameter.empty for each in positional),
        "var_args": any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in found),
        "var_kwargs": any(each.kind is inspect.Parameter.VAR_KEYWORD for each in found),
        "kwonly": [each.name for each in named],
        "kwonly_required": [each.name for each in named if each.default is inspect.Parameter.empty],
    }
