"""Tells workers what to do, by Celery's remote control, and reads what they answer.

Who answers is not proven: the broker is shared. An answer is shown and never acted on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from celery import Celery
from kombu import Connection
from kombu.exceptions import OperationalError

from jobs.broker.publish import open_channel
from jobs.core.cleaning import clean_line, clean_name
from jobs.errors import BrokerUnavailable

_TEXT_LIMIT = 300


@dataclass(frozen=True, slots=True)
class Answer:
    """What one worker said: ``text`` of its success, or ``error``."""

    hostname: str
    text: str = ""
    error: str = ""


def command(
    connection: Connection,
    name: str,
    *,
    arguments: dict[str, Any] | None = None,
    hostnames: Sequence[str] = (),
    timeout_seconds: float = 2.0,
) -> list[Answer]:
    """Send a command to these workers, or to all, and wait for the answers.

    Of named workers no longer than until all have answered; of all the whole ``timeout_seconds``.

    Raises:
        BrokerUnavailable: when the command cannot be sent; then no worker has it.
    """
    replies = _broadcast(connection, name, arguments or {}, hostnames, timeout_seconds)
    answers = [
        _read(str(hostname), answer)
        for reply in replies
        if isinstance(reply, dict)
        for hostname, answer in reply.items()
    ]
    return sorted(answers, key=lambda answer: answer.hostname)


def tell(connection: Connection, name: str, *, hostnames: Sequence[str]) -> None:
    """Send a command that no worker answers, such as ``shutdown``.

    Raises:
        BrokerUnavailable: when it cannot be sent.
    """
    _broadcast(connection, name, {}, hostnames, None)


def _broadcast(
    connection: Connection,
    name: str,
    arguments: dict[str, Any],
    hostnames: Sequence[str],
    timeout_seconds: float | None,
) -> list[Any]:
    errors: Any = (*connection.connection_errors, *connection.channel_errors, OperationalError, OSError)
    app = Celery("jobs", set_as_current=False, broker=connection.as_uri(include_password=True))
    app.conf.update(broker_connection_retry=False, broker_transport_options=connection.transport_options)
    control: Any = app.control
    try:
        open_channel(connection)
        replies = control.broadcast(
            name,
            arguments=arguments,
            destination=list(hostnames) or None,
            connection=connection,
            reply=timeout_seconds is not None,
            timeout=timeout_seconds or 1.0,
        )
    except errors as error:
        connection.collect()
        raise BrokerUnavailable(
            f"The workers cannot be reached through {connection.as_uri()}: {str(error).rstrip('.')}. "
            "Trying again is safe."
        ) from error
    finally:
        app.close()
    return list(replies or [])


def _read(hostname: str, answer: Any) -> Answer:
    name = clean_name(hostname)
    if isinstance(answer, dict):
        if "error" in answer:
            return Answer(name, error=_text(answer["error"]) or "it did not say why")
        return Answer(name, text=_text(answer.get("ok", "")))
    return Answer(name, text=_text(answer))


def _text(value: Any) -> str:
    return clean_line(str(value), limit=_TEXT_LIMIT)
