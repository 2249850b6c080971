"""What one agent knows of its worker, alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from kombu import Exchange, Queue
from kombu.message import Message

from jobs.agent import agent as agent_module
from jobs.agent.agent import Agent
from jobs.agent.endings import Ending
from jobs.agent.sender import BrokerAway
from jobs.agent.settings import read_settings
from jobs.agent.signatures import describe_parameters
from tests.applications import Application


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Application("alone", broker="memory://", set_as_current=False)
    yield app
    app.close()


@pytest.fixture
def agent(app: Celery, tmp_path: Path) -> Agent:
    return Agent(app, read_settings(spool_directory=tmp_path), "w@h")


def message(publication: str = "p", **delivery: Any) -> Message:
    return Message(
        body=b"{bad",
        content_type="application/json",
        headers={"task": "t", "id": "i", "jobs-publication": publication},
        delivery_info=delivery,
    )


def consumer_of(*queues: Queue, tags: dict[str, str] | None = None) -> Any:
    return SimpleNamespace(task_consumer=SimpleNamespace(queues=list(queues), _active_tags=tags or {}))


orders = Exchange("orders", "topic")


@pytest.mark.parametrize(
    ("delivery", "consumer", "queue"),
    [
        ({"exchange": "", "routing_key": "celery"}, None, "celery"),
        (
            {"consumer_tag": "b", "exchange": "orders", "routing_key": "x"},
            consumer_of(tags={"a": "a", "q": "b"}),
            "q",
        ),
        ({"exchange": "orders", "routing_key": "x"}, None, "x"),
        (
            {"exchange": "orders", "routing_key": "new"},
            consumer_of(Queue("one", orders, "new"), Queue("two", orders, "old")),
            "one",
        ),
        ({"exchange": "orders", "routing_key": "new.eu"}, consumer_of(Queue("one", orders, "new.#")), "one"),
        (
            {"exchange": "orders", "routing_key": "new.eu"},
            consumer_of(Queue("one", orders, "new.#"), Queue("two", orders, "#")),
            "new.eu",
        ),
        ({}, None, ""),
    ],
)
def test_which_queue_a_message_came_from(agent: Agent, delivery: Any, consumer: Any, queue: str) -> None:
    agent._consumer = consumer

    assert agent.queue_of(message(**delivery)) == queue


def test_a_death_is_recorded_once_and_the_memory_is_bounded(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "REMEMBERED", 2)
    sent: list[bytes] = []
    monkeypatch.setattr(agent.sender, "publish_record", sent.append)

    for publication in ("a", "a", "b", "c", "a"):
        assert agent.keep_message(message(publication), Ending("malformed"))

    assert len(sent) == 4  # "a" again, after two others: the collector knows it for good


def test_when_nothing_takes_a_record_it_says_so(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(body: bytes) -> None:
        raise BrokerAway("down")

    monkeypatch.setattr(agent.sender, "publish_record", refuse)
    agent.settings.spool_directory.chmod(0o700)
    blocked = agent.spool.directory
    blocked.parent.mkdir(exist_ok=True)
    blocked.write_text("a file is in the way")

    assert agent.keep_message(message(), Ending("malformed")) is False
    assert "neither the broker (down) nor the spool" in caplog.text


def test_a_defect_in_the_agent_itself_never_reaches_celery(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(agent, "_keep", broken)
    monkeypatch.setattr(agent.spool, "drain", broken)
    monkeypatch.setattr(agent.spool, "files", lambda: [Path("x")])

    assert agent.keep_message(message(), Ending("malformed")) is False
    assert agent.keep_request(SimpleNamespace(id="i"), Ending("failed")) is False
    agent.send_spool()
    agent.watch(SimpleNamespace(timer=None))

    assert caplog.text.count("could not be recorded") == 2
    assert "is tried again" in caplog.text


def test_a_broker_that_goes_away_while_the_spool_is_sent_is_no_error(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(body: bytes) -> None:
        raise BrokerAway("down")

    agent.spool.append(b"{}")
    monkeypatch.setattr(agent.sender, "publish_record", away)

    agent.send_spool()

    assert caplog.text == ""
    assert len(agent.spool.files()) == 1


def test_a_worker_that_ends_sends_what_a_moment_ago_could_not_be_sent(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cold shutdown whose signal came amid a publish left the death on a disk that went with its container."""
    sent: list[bytes] = []

    def busy_once(body: bytes) -> None:
        monkeypatch.setattr(agent.sender, "publish_record", sent.append)
        agent.sender._paused_until = float("inf")
        raise BrokerAway("the agent's connection is in use")

    monkeypatch.setattr(agent.sender, "publish_record", busy_once)
    assert agent.keep_message(message(), Ending("malformed"))
    agent.send_spool()
    assert (sent, len(agent.spool.files())) == ([], 1)

    agent.say_goodbye()

    assert (len(sent), agent.spool.files()) == (1, [])


def test_what_a_task_takes(app: Celery) -> None:
    def everything(first: int, second: int = 2, *rest: int, named: int, other: int = 3, **more: int) -> None:
        """Be a task."""

    task = app.task(everything, name="alone.everything", shared=False)

    assert describe_parameters(task) == {
        "names": ["first", "second"],
        "required": 1,
        "var_args": True,
        "var_kwargs": True,
        "kwonly": ["named", "other"],
        "kwonly_required": ["named"],
    }


@pytest.mark.parametrize("run", [5, dict.fromkeys])
def test_a_task_that_does_not_say_what_it_takes(
    agent: Agent, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_signature(_: Any) -> None:
        raise ValueError

    monkeypatch.setattr("inspect.signature", no_signature)
    task: Any = SimpleNamespace(run=run, name="alone.silent")

    assert describe_parameters(task) is None
    assert agent.parameters_of(task) is None
    assert agent.parameters_of(task) is None
