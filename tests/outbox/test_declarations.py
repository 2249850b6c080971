"""What Celery declares before it publishes survives the table."""

from __future__ import annotations

from typing import Any

import pytest
from kombu import Exchange, Queue, binding

from jobs.broker.declarations import describe, entities, queue_names

TOPIC = Exchange("shop.events", type="topic")
ENTITIES = [
    Queue("default", Exchange("default"), routing_key="default"),
    Queue("fast", Exchange("fast"), "fast", max_priority=9, message_ttl=60.5, max_length=1_000),
    Queue("gone", Exchange("gone", durable=False, auto_delete=True), "gone", durable=False, exclusive=True),
    Queue("quorum", TOPIC, "order.#", queue_arguments={"x-queue-type": "quorum"}),
    Queue(
        "many",
        bindings=[binding(TOPIC, routing_key="a.#"), binding(None, routing_key="b", arguments={"x": 1})],
    ),
    TOPIC,
    Exchange("mine", type="direct", delivery_mode=1, arguments={"alternate-exchange": "rest"}),
]


def facts(entity: Any) -> dict[str, Any]:
    """What an entity is; kombu lists the bindings of a queue in the order of a set."""
    values = dict(entity.as_dict(recurse=True))
    if values.get("bindings"):
        values["bindings"] = sorted(values["bindings"], key=repr)
    return values


@pytest.mark.parametrize("entity", ENTITIES, ids=lambda entity: entity.name)
def test_an_entity_is_the_same_afterwards(entity) -> None:
    text = describe([entity])

    (made,) = entities(text)

    assert type(made) is type(entity)
    assert facts(made) == facts(entity)
    assert describe([made]) == text


def test_the_same_text_gives_the_same_entities_so_that_they_are_declared_once() -> None:
    text = describe(ENTITIES[:2])

    assert entities(text) is entities(text)
    assert queue_names(entities(text)) == ["default", "fast"]


def test_a_usual_queue_takes_little_room() -> None:
    assert len(describe(ENTITIES[:1])) < 100


def test_what_cannot_be_declared_later_is_refused() -> None:
    with pytest.raises(TypeError, match="Pass kombu queues and exchanges"):
        describe(["default"])
