"""Asks the online workers what they consume and know, by Celery's remote control.

A worker with the agent answers ``jobs_describe`` with its queues, tasks and signatures; one without
answers ``registered`` and ``active_queues``, where signatures are unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from celery import Celery
from kombu import Connection
from kombu.exceptions import OperationalError

from jobs.core.cleaning import clean_name
from jobs.core.signatures import clean_queues, clean_tasks
from jobs.errors import BrokerUnavailable

DESCRIBE_COMMAND = "jobs_describe"


@dataclass(frozen=True, slots=True)
class WorkerDescription:
    """One online worker. ``tasks`` maps names to parameters, or is None when ``digest`` was known."""

    hostname: str
    has_agent: bool
    boot_id: str = ""
    pool: str = ""
    digest: str = ""
    queues: list[str] = field(default_factory=list)
    tasks: dict[str, Any] | None = None


def describe_workers(
    connection: Connection, *, timeout_seconds: float = 1.0, known: Iterable[str] = ()
) -> list[WorkerDescription]:
    """Ask all workers and wait ``timeout_seconds`` for their answers, once or twice.

    ``known`` are digests of task lists that need not be sent again. An answer that is not what a
    worker writes is left out: the broker is shared, and anybody may answer.

    Raises:
        BrokerUnavailable: when the question cannot be sent.
    """
    errors: Any = (*connection.connection_errors, *connection.channel_errors, OperationalError, OSError)
    app = Celery("jobs", set_as_current=False, broker=connection.as_uri(include_password=True))
    app.conf.update(broker_connection_retry=False, broker_transport_options=connection.transport_options)
    try:
        connection.connect()
        # A worker that does not know the command answers nothing at all, so who is there is asked too: at the same
        # time, for each question waits until its time is over.
        with connection.clone() as second, ThreadPoolExecutor(1) as threads:
            asked = threads.submit(_ask, app, second, "registered", timeout_seconds)
            answers = _ask(
                app, connection, DESCRIBE_COMMAND, timeout_seconds, arguments={"known": sorted(known)}
            )
            registered = asked.result()
        found = {
            hostname: description
            for hostname, answer in answers.items()
            if (description := _read(hostname, answer)) is not None
        }
        others = sorted(set(registered) - set(found))
        queues = _ask(app, connection, "active_queues", timeout_seconds, destination=others) if others else {}
    except errors as error:
        connection.collect()
        raise BrokerUnavailable(
            f"The workers cannot be asked through {connection.as_uri()}: {str(error).rstrip('.')}. Trying again is safe."
        ) from error
    finally:
        app.close()
    for hostname in others:
        names = [name for name in _list(registered[hostname]) if isinstance(name, str)]
        found[hostname] = WorkerDescription(
            hostname=hostname,
            has_agent=False,
            queues=clean_queues(
                [queue.get("name") for queue in _list(queues.get(hostname)) if isinstance(queue, dict)]
            ),
            # "registered" may add "[rate_limit=…]" to a name.
            tasks=clean_tasks({name.split(" ")[0]: None for name in names}),
        )
    return sorted(found.values(), key=lambda worker: worker.hostname)


def _ask(
    app: Celery,
    connection: Connection,
    command: str,
    timeout_seconds: float,
    *,
    arguments: dict[str, Any] | None = None,
    destination: list[str] | None = None,
) -> dict[str, Any]:
    """Broadcast a command and collect the answers by host name."""
    control: Any = app.control
    replies = control.broadcast(
        command,
        arguments=arguments or {},
        destination=destination,
        connection=connection,
        reply=True,
        timeout=timeout_seconds,
    )
    return {
        clean_name(str(hostname)): answer
        for reply in replies or []
        if isinstance(reply, dict)
        for hostname, answer in reply.items()
        if not (isinstance(answer, dict) and "error" in answer)
    }


def _read(hostname: str, answer: Any) -> WorkerDescription | None:
    if not isinstance(answer, dict):
        return None
    boot_id, pool, digest = (
        clean_name(str(answer.get(name) or ""), limit=64) for name in ("boot_id", "pool", "digest")
    )
    return WorkerDescription(
        hostname=hostname,
        has_agent=True,
        boot_id=boot_id,
        pool=pool,
        digest=digest,
        queues=clean_queues(answer.get("queues")),
        tasks=clean_tasks(answer.get("tasks")),
    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
