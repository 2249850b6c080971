"""Finds the Celery application of a project."""

from __future__ import annotations

from typing import Any

from celery import Celery, _state
from celery.app.utils import find_app

from jobs.agent.install import is_attached
from jobs.errors import JobsError

__all__ = ["ApplicationNotFound", "find_application", "is_attached", "load_tasks"]


class ApplicationNotFound(JobsError):
    """No Celery application is where it was looked for; nothing was done."""


def load_tasks(app: Celery) -> None:
    """Import the modules in which the application looks for tasks, as its workers do.

    Raises:
        ApplicationNotFound: when one cannot be imported.
    """
    try:
        app.loader.import_default_modules()
        app.finalize()
    except Exception as error:
        raise ApplicationNotFound(
            f"The tasks of the Celery application {app.main!r} cannot be imported: {error!r}. "
            "Its workers would not start either; mend the module."
        ) from error


def find_application(name: str = "", *, package: str = "") -> Celery:
    """Return the application called ``name``, as ``celery -A`` takes it.

    Without a name: the one that the project has made its default by importing it, or else the one in
    ``package``, the package of the project's settings.

    Raises:
        ApplicationNotFound: says where it was looked for.
    """
    if not name:
        state: Any = _state
        default = state.default_app
        # Celery makes one called "default" for who asks before there is any.
        if isinstance(default, Celery) and default.main != "default":
            return default
        if not package:
            raise ApplicationNotFound(
                "No Celery application was found: this project imports none. "
                "Name it as for celery -A, for instance --app shop."
            )
    try:
        found = find_app(name or package)
    except (ImportError, AttributeError) as error:
        raise ApplicationNotFound(
            f"No Celery application was found in {name or package!r} ({error}). "
            "Name it as for celery -A, for instance --app shop.celery:app."
        ) from error
    if not isinstance(found, Celery):
        raise ApplicationNotFound(
            f"{name or package!r} is no Celery application but {type(found).__name__}. "
            "Name it as for celery -A, for instance --app shop.celery:app."
        )
    return found
