"""Whether two addresses lead to the same broker, and what our own options are."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from console.settings import broker_transport_options
from jobs.broker.addresses import places
from jobs.preflight.gather_application import application_facts, pool_name
from jobs.preflight.mode import Mode, mode
from tests.applications import Application


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("redis://localhost", "redis://127.0.0.1:6379/0"),
        ("redis://shop:secret@broker/1", "rediss://broker:6379/1"),
        ("amqp://", "amqp://guest:guest@localhost:5672//"),
        ("pyamqp://broker/shop", "amqp://broker:5672/shop"),
        ("sentinel://a:26379;sentinel://b:26379", "sentinel://b:26379"),
    ],
)
def test_addresses_of_one_broker_are_known_as_such(one: str, other: str) -> None:
    assert places(one) & places(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("redis://broker/0", "redis://broker/1"),
        ("redis://broker:6379", "redis://broker:6380"),
        ("redis://a", "redis://b"),
        ("amqp://broker/shop", "amqp://broker/crm"),
        ("redis://broker", "amqp://broker"),
        ("redis+socket:///run/a.sock", "redis+socket:///run/b.sock"),
    ],
)
def test_addresses_of_two_brokers_are_not_mixed_up(one: str, other: str) -> None:
    assert not places(one) & places(other)


def facts_of(broker: str, **settings: Any) -> Any:
    app = Application("shop", broker=broker, set_as_current=False)
    app.conf.update(settings)
    return application_facts(app, has_agent=True)


def test_another_broker_than_that_of_the_console_is_named_without_its_password(settings) -> None:
    settings.BROKER_URL = "redis://shop:secret@elsewhere:6379/0"

    assert facts_of("redis://broker/0").other_broker == "redis://shop:**@elsewhere:6379/0"
    assert facts_of("redis://elsewhere").other_broker == ""


def test_passwords_of_alternatives_are_not_shown() -> None:
    facts = facts_of("sentinel://:secret@a:26379;sentinel://:secret@b:26379")

    assert "secret" not in facts.broker
    assert facts.broker.count("sentinel://") == 2


@pytest.mark.parametrize(
    ("pool", "name"),
    [
        ("prefork", "prefork"),
        ("threads", "thread"),
        ("processes", "prefork"),
        ("celery.concurrency.gevent:TaskPool", "gevent"),
        ("solo", "solo"),
    ],
)
def test_pools_have_one_name(pool: str, name: str) -> None:
    assert pool_name(pool) == name


@pytest.mark.parametrize(
    ("url", "options"),
    [
        *(
            (
                url,
                {
                    "socket_timeout",
                    "socket_connect_timeout",
                    "visibility_timeout",
                    "socket_keepalive",
                    "health_check_interval",
                },
            )
            for url in ("redis://a", "rediss://a", "sentinel://a;sentinel://b", "redis+socket:///run/a.sock")
        ),
        *(
            (url, {"confirm_publish", "read_timeout", "write_timeout"})
            for url in ("amqp://a", "pyamqp://a", "amqps://a")
        ),
        ("sqs://", set()),
        ("memory://", set()),
    ],
)
def test_each_kind_of_broker_gets_its_own_options(url: str, options: set[str]) -> None:
    assert set(broker_transport_options(url)) == options


@pytest.mark.parametrize(
    ("word", "expected"), [("refuse", Mode.REFUSE), (" WARN ", Mode.WARN), ("off", Mode.OFF)]
)
def test_mode_is_read_from_the_setting(settings, word: str, expected: Mode) -> None:
    settings.JOBS_PREFLIGHT = word

    assert mode() is expected


def test_a_project_without_the_setting_takes_the_environment(
    settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    del settings.JOBS_PREFLIGHT

    monkeypatch.setenv("JOBS_PREFLIGHT", "off")
    assert mode() is Mode.OFF
    monkeypatch.setenv("JOBS_PREFLIGHT", "")
    assert mode() is Mode.REFUSE


def test_another_word_is_refused(settings) -> None:
    settings.JOBS_PREFLIGHT = "maybe"

    with pytest.raises(
        ImproperlyConfigured, match=r"JOBS_PREFLIGHT='maybe' is not known. Use one of refuse, warn, off\."
    ):
        mode()
