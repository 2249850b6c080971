"""Closes the gap of the pools that run jobs in the worker's own process.

Only prefork tells the request when something other than the job's own error ends it. In the other
pools ``sys.exit()``, or a result backend that is down, disappears in a thread or ends the worker.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from billiard.einfo import ExceptionInfo
from billiard.exceptions import WorkerLostError
from celery.exceptions import WorkerShutdown, WorkerTerminate

_FAILED = object()


def guard_pool(pool: Any) -> None:
    """Wrap ``pool.on_apply``, unless the pool runs jobs in processes of their own."""
    if getattr(pool.on_apply, "jobs_guarded", False) or _has_processes(pool):
        return
    inner = pool.on_apply

    def on_apply(
        target: Callable[..., Any],
        args: Any = None,
        kwargs: Any = None,
        callback: Callable[..., Any] | None = None,
        error_callback: Callable[..., Any] | None = None,
        **options: Any,
    ) -> Any:
        if callback is None or error_callback is None:
            return inner(target, args, kwargs, callback=callback, error_callback=error_callback, **options)
        return inner(
            _guarded(target, error_callback),
            args,
            kwargs,
            callback=_unless_failed(callback),
            error_callback=error_callback,
            **options,
        )

    on_apply.jobs_guarded = True  # type: ignore[attr-defined]
    pool.on_apply = on_apply


def _has_processes(pool: Any) -> bool:
    from celery.concurrency.prefork import TaskPool

    return isinstance(pool, TaskPool)


def _guarded(target: Callable[..., Any], error_callback: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return target(*args, **kwargs)
        except (WorkerShutdown, WorkerTerminate):
            raise
        except Exception:  # noqa: BLE001 (whatever escaped Celery's tracer)
            error_callback(ExceptionInfo())
        except BaseException as exc:
            if _belongs_to_the_pool(exc):
                raise
            error_callback(_lost(exc))
        return _FAILED

    return run


def _unless_failed(callback: Callable[..., Any]) -> Callable[..., Any]:
    def on_result(result: Any, *args: Any, **kwargs: Any) -> Any:
        return None if result is _FAILED else callback(result, *args, **kwargs)

    return on_result


def _belongs_to_the_pool(exc: BaseException) -> bool:
    """Return whether a green pool ends its greenlets with this: its time limit, or a kill."""
    for module, name in (("greenlet", "GreenletExit"), ("gevent", "Timeout"), ("eventlet", "Timeout")):
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and isinstance(exc, kind):
            return True
    return False


def _lost(exc: BaseException) -> ExceptionInfo:
    """Return ``sys.exit()`` and its like as what it is in the prefork pool: a lost worker."""
    code = getattr(exc, "code", None)
    what = f"exitcode {code if isinstance(code, int) else 0 if code is None else 1}"
    if not isinstance(exc, SystemExit):
        what = type(exc).__name__
    # Its own traceback: where the job called it, not where it was caught.
    lost = WorkerLostError(f"Worker exited prematurely: {what}.")
    return ExceptionInfo((WorkerLostError, lost, exc.__traceback__))
