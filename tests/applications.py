"""A Celery application for tests that share a process."""

from __future__ import annotations

import atexit
import gc
from typing import Any

from celery import Celery

# As console.celery does it: workers of tests end sooner.
atexit.register(gc.freeze)


class Application(Celery):
    """An application whose tasks are its own.

    Celery registers what ``app.task`` decorates in every application of the process. Shops of different
    tests would then find each other's tasks, under the same names.
    """

    def task(self, *args: Any, **options: Any) -> Any:
        """Decorate a task, for this application only unless ``shared`` says otherwise."""
        return super().task(*args, **{"shared": False, **options})
