"""Gathers the facts of a Celery application. Opens no connection."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from kombu import Connection
from kombu.utils.url import maybe_sanitize_url

from jobs import conf
from jobs.broker.addresses import places
from jobs.limits.client import missing_redis
from jobs.preflight.facts import ApplicationFacts, QueueFacts, TaskFacts

# Celery's own tasks, which nobody can give a limit.
OWN_TASKS = "celery."
# What makes RabbitMQ drop messages by itself.
DROPPING_ARGUMENTS = ("x-message-ttl", "x-max-length", "x-max-length-bytes", "x-expires", "x-delivery-limit")


def application_facts(
    app: Any,
    *,
    has_agent: bool,
    pool: Any = None,
    time_limit: float | None = None,
    soft_time_limit: float | None = None,
) -> ApplicationFacts:
    """Read the configuration. ``pool`` and the limits are those of a worker that starts."""
    settings = conf.current()
    configured = app.conf
    connection = app.connection_for_read()
    hard = configured.task_time_limit if time_limit is None else time_limit
    soft = configured.task_soft_time_limit if soft_time_limit is None else soft_time_limit
    return ApplicationFacts(
        name=str(app.main or "without a name"),
        transport=str(connection.transport.driver_type),
        broker=broker_words(connection),
        transport_options=dict(connection.transport_options or {}),
        prefetch_multiplier=int(configured.worker_prefetch_multiplier or 0),
        tasks=tuple(
            _task(task, hard, soft)
            for name, task in sorted(app.tasks.items())
            if not name.startswith(OWN_TASKS)
        ),
        queues=_queues(app),
        pool=pool_name(configured.worker_pool if pool is None else pool),
        has_agent=has_agent,
        other_broker=_other_broker(connection, settings),
        keeps_results_on_broker=_keeps_results_on_broker(app, connection),
        limits_problem=missing_redis(),
        namespace=str(getattr(app, "namespace", None) or ""),
    )


def broker_words(connection: Any) -> str:
    """Return a broker's address as it may be shown, its alternatives too."""
    if not connection.alt:
        # kombu would show stars for a password that is not there.
        return str(connection.as_uri(include_password=not (connection.password or connection.userid)))
    given = connection.alt
    return ";".join(maybe_sanitize_url(url) if "@" in url else url for url in given)


def pool_name(pool: Any) -> str:
    """Return "prefork", "thread", "solo", "gevent", "eventlet" or what else it is called."""
    if isinstance(pool, str):
        name = pool.partition(":")[0].rpartition(".")[2]
        return {"threads": "thread", "processes": "prefork"}.get(name, name)
    return str(pool.__module__).rpartition(".")[2]


def declared_queues(app: Any) -> list[str]:
    """Return every queue that the application names: declared, of a task, or of a route."""
    names = set(app.amqp.queues)
    names |= {
        str(queue) for task in app.tasks.values() if (queue := getattr(task, "queue", None)) is not None
    }
    routes = app.conf.task_routes
    for route in routes.values() if isinstance(routes, dict) else ():
        queue = route.get("queue") if isinstance(route, dict) else route if isinstance(route, str) else None
        if queue is not None:
            names.add(str(getattr(queue, "name", queue)))
    return sorted(names)


def _task(task: Any, hard: float | None, soft: float | None) -> TaskFacts:
    # A Job keeps what is due later than its broker waits in the outbox.
    is_job = hasattr(task, "backoff_cap_seconds")
    own_hard, own_soft = task.time_limit, task.soft_time_limit
    return TaskFacts(
        name=str(task.name),
        acks_late=bool(task.acks_late),
        reject_on_worker_lost=bool(task.reject_on_worker_lost),
        time_limit_seconds=_seconds(hard if own_hard is None else own_hard),
        soft_time_limit_seconds=_seconds(soft if own_soft is None else own_soft),
        furthest_retry_seconds=None if is_job else _furthest_retry(task),
        has_fleet_limits=any(getattr(task, name, None) is not None for name in ("rate", "concurrency")),
    )


def _furthest_retry(task: Any) -> float | None:
    """Return how far ahead an automatic retry may lie; retries by hand can be anywhere."""
    if not getattr(task, "autoretry_for", None):
        return None
    if getattr(task, "retry_backoff", False):
        return float(getattr(task, "retry_backoff_max", 600))
    return float(task.default_retry_delay)


def _seconds(limit: Any) -> float | None:
    # Celery takes 0 for no limit.
    return float(limit) if limit else None


def _queues(app: Any) -> tuple[QueueFacts, ...]:
    found = []
    for name, queue in sorted(app.amqp.queues.items()):
        arguments = dict(queue.queue_arguments or {})
        # kombu's own names for some of them.
        arguments.update(
            {
                argument: value
                for argument, value in (
                    ("x-message-ttl", queue.message_ttl),
                    ("x-max-length", queue.max_length),
                    ("x-max-length-bytes", queue.max_length_bytes),
                    ("x-expires", queue.expires),
                )
                if value is not None
            }
        )
        drops = [argument for argument in DROPPING_ARGUMENTS if argument in arguments]
        if arguments.get("x-queue-type") == "quorum":
            drops.insert(0, "quorum")
        found.append(
            QueueFacts(
                name=str(name),
                has_dead_letter_exchange="x-dead-letter-exchange" in arguments,
                drops_by=tuple(drops),
            )
        )
    return tuple(found)


def _other_broker(connection: Any, settings: conf.JobsSettings) -> str:
    ours = settings.broker_url
    if not ours or not places(ours).isdisjoint(places(connection.alt or [connection.as_uri()])):
        return ""
    return broker_words(Connection(ours))


def _keeps_results_on_broker(app: Any, connection: Any) -> bool:
    backend = str(app.conf.result_backend or "")
    if app.conf.result_expires or not backend.startswith(("redis", "rediss")):
        return False
    parts = urlsplit(backend)
    # Whatever the database: they share one memory.
    return (
        "redis",
        "127.0.0.1" if parts.hostname in (None, "localhost") else parts.hostname,
        str(parts.port or 6379),
    ) in {place[:3] for place in places(connection.alt or [connection.as_uri()])}
