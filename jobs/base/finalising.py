"""Makes every job of an application, and says which of them cannot be made."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery, _state
from celery.local import maybe_evaluate

from jobs.errors import PolicyError

_SKIP_CHECKS = "CELERY_SKIP_CHECKS"


def policy_problems(app: Celery) -> list[PolicyError]:
    """Import the task modules of an application, finalise it, and return what is wrong with its jobs.

    Celery makes decorated tasks when they are first needed and stops at the first that fails; here the
    others are made all the same, so that all mistakes are told at once. An application with mistakes is
    left unfinalised: whoever needs it next, a worker that starts above all, fails as without this call.

    Raises:
        Exception: whatever else a task module raises when it is imported.
    """
    problems: dict[str, PolicyError] = {}

    def is_made(step: Callable[[], Any]) -> bool:
        try:
            step()
        except PolicyError as problem:
            problems[str(problem)] = problem
            return False
        return True

    state: Any = _state
    celery: Any = app
    with _without_checks():
        is_made(app.loader.import_default_modules)
    if celery.finalized:
        for task in list(celery._tasks.values()):
            is_made(lambda task=task: task.bind(app))  # type: ignore[misc]
        return _sorted(problems)
    # The steps of app.finalize(), which would lose the task that fails.
    celery.finalized = True
    for share in list(state._on_app_finalizers):
        is_made(lambda share=share: share(app))  # type: ignore[misc]
    waiting = [celery._pending.popleft() for _ in range(len(celery._pending))]
    celery._pending.extend(
        each
        for each in waiting
        if not is_made(lambda each=each: maybe_evaluate(each))  # type: ignore[misc]
    )
    for task in list(celery._tasks.values()):
        is_made(lambda task=task: task.bind(app))  # type: ignore[misc]
    if problems:
        celery.finalized = False
        for name in [name for name in celery._tasks if name.startswith("celery.")]:
            # Celery makes its own anew each time, and would warn about the ones that are there.
            del celery._tasks[name]
    else:
        app.on_after_finalize.send(sender=app)
    return _sorted(problems)


def _sorted(problems: dict[str, PolicyError]) -> list[PolicyError]:
    return [problems[text] for text in sorted(problems)]


@contextmanager
def _without_checks() -> Iterator[None]:
    """Keep Celery from running Django's system checks before it imports tasks: one of them calls this."""
    before = os.environ.get(_SKIP_CHECKS)
    os.environ[_SKIP_CHECKS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SKIP_CHECKS]
        else:
            os.environ[_SKIP_CHECKS] = before
