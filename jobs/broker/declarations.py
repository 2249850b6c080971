"""The queues and exchanges that Celery declares before it publishes, as values that a row can keep."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from kombu import Exchange, Queue, binding
from kombu.utils.json import dumps, loads


def describe(entities: Sequence[Any]) -> str:
    """Write entities as JSON text, without what kombu assumes by itself.

    Raises:
        TypeError: when one is neither a queue nor an exchange, or holds what JSON has no form for.
    """
    return dumps([_described(entity) for entity in entities])


@lru_cache(maxsize=1_024)
def entities(text: str) -> tuple[Any, ...]:
    """Make the entities that a text describes. They are unbound; the same text gives the same ones."""
    return tuple(_made(described) for described in loads(text))


def queue_names(described: Sequence[Any]) -> list[str]:
    """Return the names of the queues among entities."""
    return [entity.name for entity in described if isinstance(entity, Queue)]


def _described(entity: Any) -> dict[str, Any]:
    if isinstance(entity, Queue):
        values = _values(entity, Queue, without=("exchange", "bindings"))
        if entity.exchange is not None:
            values["exchange"] = _values(entity.exchange, Exchange)
        if entity.bindings:
            # kombu keeps a set: the same queue is to be the same text in every process.
            values["bindings"] = sorted(
                (_described_binding(each) for each in entity.bindings),
                key=lambda each: repr(sorted(each.items())),
            )
        return {"queue": values}
    if isinstance(entity, Exchange):
        return {"exchange": _values(entity, Exchange)}
    raise TypeError(
        f"Cannot declare {entity!r} ({type(entity).__name__}) from the outbox. Pass kombu queues and exchanges."
    )


def _described_binding(each: Any) -> dict[str, Any]:
    return {
        "exchange": _values(each.exchange, Exchange) if each.exchange is not None else None,
        "routing_key": each.routing_key,
        "arguments": each.arguments,
        "unbind_arguments": each.unbind_arguments,
    }


def _values(entity: Any, kind: type, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    values = {}
    for name, _ in kind.attrs:  # type: ignore[attr-defined] # kombu lists what makes up an entity
        value = getattr(entity, name)
        if name not in without and value != getattr(kind, name, None):
            values[name] = value
    return values


def _made(described: dict[str, Any]) -> Any:
    if "exchange" in described:
        return Exchange(**described["exchange"])
    values = dict(described["queue"])
    if "exchange" in values:
        values["exchange"] = Exchange(**values["exchange"])
    values["bindings"] = [
        binding(
            **{**each, "exchange": Exchange(**each["exchange"]) if each["exchange"] is not None else None}
        )
        for each in values.get("bindings", ())
    ]
    return Queue(**values)
