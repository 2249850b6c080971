"""How long a broker waits for a job, against how long jobs take. Pure: facts in, findings out.

Both brokers hand a job that is not acknowledged in time to another worker while the first still runs
it: Redis by its visibility timeout, RabbitMQ by its consumer timeout.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jobs.preflight.facts import Facts, TaskFacts
from jobs.preflight.findings import Area, Finding, Level

# kombu's own, in seconds.
DEFAULT_VISIBILITY_TIMEOUT = 3600.0
# The timeout must be so many times the measured p99: the longest hundredth is longer than it.
P99_FACTOR = 3
# RabbitMQ has had a consumer timeout since then.
FIRST_RABBITMQ_WITH_TIMEOUT = (3, 8, 15)


@dataclass(frozen=True, slots=True)
class BrokerTimeout:
    """The timeout of one kind of broker, and the words about it."""

    name: str
    seconds: float
    said: str
    why: str
    is_assumed: bool = False

    def lines(self, seconds: int) -> str:
        """Return the lines that set it to ``seconds``."""
        if self.name == "visibility timeout":
            return (
                f'broker_transport_options = {{"visibility_timeout": {seconds}}}'
                f"  (JOBS_VISIBILITY_TIMEOUT_SECONDS={seconds} where the settings read it)"
            )
        return (
            f"rabbitmq.conf: consumer_timeout = {seconds * 1000}\n"
            f"then JOBS_RABBITMQ_CONSUMER_TIMEOUT_SECONDS={seconds}, which tells preflight"
        )


def broker_timeout(facts: Facts) -> BrokerTimeout | None:
    """Return the timeout that counts for this broker, if it has one."""
    if facts.redis is not None:
        given = facts.application.transport_options.get("visibility_timeout")
        seconds = DEFAULT_VISIBILITY_TIMEOUT if given is None else float(given)
        return BrokerTimeout(
            "visibility timeout",
            seconds,
            f"The visibility timeout is {_time(seconds)}{' (the default)' if given is None else ''}",
            "Redis hands a job that is not acknowledged in that time to another worker while the first still"
            " runs it: it runs twice at once.",
        )
    if facts.rabbit is not None and _version(facts.rabbit.version) >= FIRST_RABBITMQ_WITH_TIMEOUT:
        seconds = facts.rabbit.consumer_timeout_seconds
        return BrokerTimeout(
            "consumer timeout",
            seconds,
            f"RabbitMQ's consumer timeout is taken to be {_time(seconds)}",
            "RabbitMQ closes the channel of a worker that does not acknowledge a job in that time: the worker"
            " ends, and everything it ran is delivered and run again. broker_channel_error_retry = True lets it"
            " go on instead of ending.",
            is_assumed=True,
        )
    return None


def check_timeouts(facts: Facts) -> Iterator[Finding]:
    """Check the broker's timeout against limits, measured runtimes, prefetched jobs and retries."""
    timeout = broker_timeout(facts)
    if timeout is None:
        return
    late = [task for task in facts.application.tasks if task.acks_late]
    yield _limits(timeout, late, facts)
    yield _runtimes(timeout, facts)
    yield from _prefetch(timeout, late, facts)
    yield from _retries(timeout, facts)
    yield from _waiting(timeout, facts)


def enough_seconds(facts: Facts) -> int:
    """Return a timeout, in whole minutes, with which none of these checks finds anything."""
    application = facts.application
    needs = [60.0]
    needs += [
        limit * max(application.prefetch_multiplier, 1)
        for task in application.tasks
        if task.acks_late and (limit := task.time_limit_seconds) is not None
    ]
    needs += [2 * retry for task in application.tasks if (retry := task.furthest_retry_seconds) is not None]
    if facts.runtime is not None:
        needs.append(P99_FACTOR * facts.runtime.p99_seconds)
    if facts.redis is not None and facts.redis.furthest_job is not None:
        needs.append(facts.redis.furthest_job.seconds)
    # More, so that a worker that is a little late does not meet it.
    return math.ceil(round(max(needs) * 1.1 / 60, 6)) * 60


def _limits(timeout: BrokerTimeout, late: list[TaskFacts], facts: Facts) -> Finding:
    longest = _longest(late)
    if longest is None or longest.time_limit_seconds is None:
        return _ok(timeout, timeout.name, f"{timeout.said}; no task that acknowledges late has a time limit.")
    said = f"{timeout.said}; the longest time limit is {_time(longest.time_limit_seconds)} ({longest.name})."
    if longest.time_limit_seconds < timeout.seconds:
        return _ok(timeout, timeout.name, said)
    return Finding(
        Level.ERROR,
        timeout.name,
        Area.BROKER,
        said,
        timeout.why,
        f"{timeout.lines(enough_seconds(facts))}\nor a shorter time_limit on {longest.name}",
    )


def _runtimes(timeout: BrokerTimeout, facts: Facts) -> Finding:
    name, runtime = "measured runtimes", facts.runtime
    if runtime is None:
        if facts.runtimes_refusal:
            return Finding(
                Level.UNKNOWN,
                name,
                Area.BROKER,
                f"They cannot be read: {facts.runtimes_refusal}.",
                "The broker's timeout is compared with the time limits only.",
                "manage.py migrate, and DATABASE_URL",
            )
        return _ok(
            timeout,
            name,
            "No task has enough runs with an idempotency key in the last day to measure; only time limits count.",
        )
    said = (
        f"{timeout.said}; the p99 runtime of {runtime.task} is {_time(runtime.p99_seconds)}, measured on"
        f" {runtime.runs:,} runs of the last day."
    )
    if timeout.seconds >= P99_FACTOR * runtime.p99_seconds:
        return _ok(timeout, name, said)
    return Finding(
        # A measured runtime says less about an assumed timeout.
        Level.WARNING if timeout.is_assumed else Level.ERROR,
        name,
        Area.BROKER,
        said,
        f"One job in a hundred takes longer than that, and less than {P99_FACTOR} times as much is left. {timeout.why}",
        timeout.lines(enough_seconds(facts)),
    )


def _prefetch(timeout: BrokerTimeout, late: list[TaskFacts], facts: Facts) -> Iterator[Finding]:
    multiplier, longest = facts.application.prefetch_multiplier, _longest(late)
    if longest is None or longest.time_limit_seconds is None or multiplier == 1:
        return
    if multiplier == 0:
        said = "worker_prefetch_multiplier is 0: a worker takes every job there is"
    else:
        wait = multiplier * longest.time_limit_seconds
        if wait < timeout.seconds or longest.time_limit_seconds >= timeout.seconds:
            # Beyond the timeout with its limit alone it is an error of its own.
            return
        said = (
            f"worker_prefetch_multiplier is {multiplier}: a job may wait in a worker behind others and then run,"
            f" {_time(wait)} together; {timeout.said[0].lower()}{timeout.said[1:]}"
        )
    yield Finding(
        Level.WARNING,
        "prefetched jobs",
        Area.BROKER,
        f"{said}.",
        f"The time counts from when a worker takes a job, not from its start. {timeout.why}",
        "worker_prefetch_multiplier = 1",
    )


def _retries(timeout: BrokerTimeout, facts: Facts) -> Iterator[Finding]:
    far = [
        task
        for task in facts.application.tasks
        if task.furthest_retry_seconds is not None and 2 * task.furthest_retry_seconds > timeout.seconds
    ]
    if not far:
        return
    furthest = max(far, key=lambda task: task.furthest_retry_seconds or 0)
    yield Finding(
        Level.WARNING,
        "far retries",
        Area.BROKER,
        f"{timeout.said}; {furthest.name} may retry {_time(furthest.furthest_retry_seconds or 0)} later"
        f"{_others(far)}.",
        f"Such a job waits inside a worker, unacknowledged. {timeout.why}",
        f"{timeout.lines(enough_seconds(facts))}\n"
        "or base=jobs.Job, which keeps a job that is due later in the outbox",
    )


def _waiting(timeout: BrokerTimeout, facts: Facts) -> Iterator[Finding]:
    job = facts.redis.furthest_job if facts.redis is not None else None
    if job is None or job.seconds < timeout.seconds:
        return
    yield Finding(
        Level.WARNING,
        "far jobs",
        Area.BROKER,
        f"{timeout.said}; a job of {job.task} waits in a worker for a time {_time(job.seconds)} ahead.",
        f"{timeout.why} Once for each time the timeout passes until then.",
        f"{timeout.lines(enough_seconds(facts))}\n"
        "or base=jobs.Job, which keeps a job that is due later in the outbox",
    )


def _longest(tasks: Iterable[TaskFacts]) -> TaskFacts | None:
    limited = [task for task in tasks if task.time_limit_seconds is not None]
    return max(limited, key=lambda task: task.time_limit_seconds or 0, default=None)


def _ok(timeout: BrokerTimeout, name: str, said: str) -> Finding:
    how = "rabbitmqctl environment | grep consumer_timeout (milliseconds)" if timeout.is_assumed else ""
    return Finding(Level.OK, name, Area.BROKER, said, set=how and f"To see the real one: {how}")


def _others(tasks: list[TaskFacts]) -> str:
    return f", and {len(tasks) - 1} more tasks" if len(tasks) > 1 else ""


def _time(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 10 or seconds == int(seconds) else f"{seconds:.2g} s"


def _version(text: str) -> tuple[int, ...]:
    parts = []
    for part in text.split(".")[:3]:
        digits = "".join(character for character in part if character.isdigit())
        parts.append(int(digits) if digits else 0)
    return tuple(parts)
