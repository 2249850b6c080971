"""What the checks look at: facts as they were gathered. Pure values; ``None`` means not known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """One registered task, with the limits that really apply to it."""

    name: str
    acks_late: bool = False
    reject_on_worker_lost: bool = False
    time_limit_seconds: float | None = None
    soft_time_limit_seconds: float | None = None
    # How far ahead its automatic retries may lie; None where they cannot wait in a worker.
    furthest_retry_seconds: float | None = None
    # Of a task that limits the whole fleet.
    has_fleet_limits: bool = False


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """A queue as the application declares it."""

    name: str
    has_dead_letter_exchange: bool = False
    # Why its broker may drop messages by itself: "quorum", "x-message-ttl" and the like.
    drops_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ApplicationFacts:
    """A Celery application's configuration."""

    name: str
    # kombu's driver type: "redis", "amqp", …
    transport: str
    # Without its password.
    broker: str
    transport_options: Mapping[str, Any] = field(default_factory=dict)
    prefetch_multiplier: int = 4
    tasks: tuple[TaskFacts, ...] = ()
    queues: tuple[QueueFacts, ...] = ()
    # Of the worker that starts, or the configured one.
    pool: str = "prefork"
    has_agent: bool = False
    # The setting BROKER_URL without its password, where it names another broker than the application's.
    other_broker: str = ""
    # Results are on the server that is the broker, and stay for ever.
    keeps_results_on_broker: bool = False
    # Why limits over the whole fleet cannot be kept, and what to set; empty when they can.
    limits_problem: str = ""
    # The prefix of Celery's settings in the project's own, "CELERY" in most Django projects; empty for none.
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class FarJob:
    """A job that waits in a worker for a time further away than the broker waits for it."""

    task: str
    seconds: float


@dataclass(frozen=True, slots=True)
class RedisFacts:
    """What a Redis says about itself."""

    version: str = ""
    role: str | None = None
    maxmemory_policy: str | None = None
    maxmemory_bytes: int | None = None
    used_memory_bytes: int | None = None
    evicted_keys: int | None = None
    is_append_only: bool | None = None
    append_fsync: str | None = None
    is_append_failing: bool | None = None
    # The server's own words where it refused to tell.
    info_refusal: str = ""
    config_refusal: str = ""
    # Of the sampled jobs that wait in workers, the one whose time is furthest away.
    furthest_job: FarJob | None = None


@dataclass(frozen=True, slots=True)
class RabbitFacts:
    """What is known of a RabbitMQ."""

    version: str = ""
    # Assumed: AMQP cannot ask for it.
    consumer_timeout_seconds: float = 1800


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue on the broker. ``consumers`` where the broker counts them."""

    name: str
    messages: int
    consumers: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """A worker that is online."""

    hostname: str
    pool: str
    queues: frozenset[str]
    tasks: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class BeatFacts:
    """A beat that was seen running."""

    name: str
    started_at: datetime
    seen_at: datetime


@dataclass(frozen=True, slots=True)
class Runtime:
    """The 99th percentile of a task's runtime in seconds, and the runs it was measured on."""

    task: str
    runs: int
    p99_seconds: float


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything. What was not asked for at all is None: a worker that starts does not ask the fleet."""

    application: ApplicationFacts
    redis: RedisFacts | None = None
    rabbit: RabbitFacts | None = None
    # The task with the longest; None when too few runs are known.
    runtime: Runtime | None = None
    runtimes_refusal: str = ""
    queues: tuple[QueueState, ...] | None = None
    are_queues_complete: bool = True
    workers: tuple[WorkerFacts, ...] | None = None
    beats: tuple[BeatFacts, ...] | None = None
    fleet_refusal: str = ""
