"""Messages that leave when their transaction has committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobs.outbox.producer import OutboxProducer, collecting, is_open, longest_wait, must_hold

__all__ = ["OutboxProducer", "collecting", "is_open", "longest_wait", "must_hold"]


def __getattr__(name: str) -> Any:
    # Only when asked for: the tables can be imported no sooner than Django has loaded its applications,
    # and a module of jobs is imported while it does.
    if name in __all__:
        from jobs.outbox import producer

        return getattr(producer, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
