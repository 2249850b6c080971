"""Checks of a Celery application's configuration. Pure: facts in, findings out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jobs.preflight.facts import ApplicationFacts, Facts, TaskFacts
from jobs.preflight.findings import Area, Finding, Level

NAMED = 5
# Which limits a pool keeps. Not named: neither.
_HARD, _SOFT = "time_limit", "soft_time_limit"
KEPT_LIMITS = {"prefork": {_HARD, _SOFT}, "gevent": {_HARD}}
KNOWN_POOLS = {*KEPT_LIMITS, "eventlet", "solo", "thread"}
SECONDS = 10


def check_application(facts: Facts) -> Iterator[Finding]:
    """Check what the application's settings say, whatever the broker holds."""
    application = facts.application
    yield from _transport(facts)
    yield from _other_broker(application)
    yield _agent(application)
    yield _socket_timeouts(application)
    if application.transport == "amqp":
        yield _confirms(application)
        yield from _dead_letter_exchanges(application)
    yield _time_limits(application)
    yield from _lost_workers(application)
    yield from check_pool(application, application.pool, "The configured pool", is_asked=False)
    yield from _results(application)
    yield from _limits_store(application)


def check_pool(
    application: ApplicationFacts, pool: str, whose: str, *, is_asked: bool = True
) -> Iterator[Finding]:
    """Check that a pool keeps the limits that tasks have. ``whose`` begins the sentence."""
    kept = KEPT_LIMITS.get(pool, set())
    if pool not in KNOWN_POOLS:
        return
    hard = [task for task in application.tasks if task.time_limit_seconds is not None]
    soft = [task for task in application.tasks if task.soft_time_limit_seconds is not None]
    ignored = [name for name, tasks in ((_HARD, hard), (_SOFT, soft)) if tasks and name not in kept]
    if not ignored:
        if is_asked or hard or soft:
            yield _ok("pool", f"{whose}, {pool}, keeps time limits.")
        return
    concerned = {task.name: task for task in [*(hard if _HARD in ignored else []), *soft]}
    yield Finding(
        Level.WARNING,
        "pool",
        Area.APPLICATION,
        f"{whose}, {pool}, ignores {' and '.join(ignored)}, which {_names(list(concerned.values()))} set.",
        "A job that hangs there holds its slot for ever, and the broker's timeout then hands it to another"
        " worker as well.",
        "celery worker --pool=prefork\nor timeouts inside these jobs, on each call that can hang",
    )


def _transport(facts: Facts) -> Iterator[Finding]:
    if facts.redis is None and facts.rabbit is None:
        yield Finding(
            Level.UNKNOWN,
            "broker",
            Area.BROKER,
            f"Nothing is known of the transport {facts.application.transport!r}: only Redis and RabbitMQ"
            " are looked into.",
            "Whether it keeps jobs is for its own documentation to say.",
        )


def _other_broker(application: ApplicationFacts) -> Iterator[Finding]:
    if application.other_broker:
        yield Finding(
            Level.WARNING,
            "two brokers",
            Area.APPLICATION,
            f"The application {application.name} uses {application.broker}, but BROKER_URL is"
            f" {application.other_broker}.",
            "runops collects dead letters, sends replays and the outbox through BROKER_URL: what this"
            " application's workers report is not seen.",
            "BROKER_URL and the application's broker_url: the same address",
        )


def _agent(application: ApplicationFacts) -> Finding:
    if application.has_agent:
        return _ok("agent", "The agent is attached.")
    return Finding(
        Level.WARNING,
        "agent",
        Area.APPLICATION,
        f"The agent is not attached to the application {application.name}.",
        "A job that ends badly leaves nothing behind: no dead letter, nothing to replay.",
        "from jobs.agent import attach; attach(app)",
    )


def _socket_timeouts(application: ApplicationFacts) -> Finding:
    name, options = "socket timeout", application.transport_options
    wanted = {
        "redis": ("socket_timeout", "socket_connect_timeout"),
        "amqp": ("read_timeout", "write_timeout"),
    }.get(application.transport, ())
    missing = [option for option in wanted if not options.get(option)]
    if not missing and not (application.transport == "redis" and options.get("health_check_interval") == 0):
        return _ok(
            name, "Calls to the broker are bounded." if wanted else "It is the transport's own matter."
        )
    if not missing:
        return Finding(
            Level.WARNING,
            name,
            Area.APPLICATION,
            "health_check_interval is 0.",
            "A worker whose connection a firewall forgot stays connected and takes no job, until it is restarted.",
            'broker_transport_options = {"health_check_interval": 25}',
        )
    return Finding(
        Level.WARNING,
        name,
        Area.APPLICATION,
        f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set.",
        "A publish to a broker that accepts and never answers hangs for ever, and with it the request or the job"
        " that sent; no retry policy ends that.",
        "broker_transport_options = {"
        + ", ".join(
            f'"{option}": {5 if option == "socket_connect_timeout" else SECONDS}' for option in missing
        )
        + "}",
    )


def _confirms(application: ApplicationFacts) -> Finding:
    if application.transport_options.get("confirm_publish"):
        return _ok("publisher confirms", "Publisher confirms are on.")
    return Finding(
        Level.ERROR,
        "publisher confirms",
        Area.APPLICATION,
        "Publisher confirms are off.",
        "What RabbitMQ does not take is lost without an error: the first message after it restarted, one to an"
        " exchange that does not exist, one that is too large.",
        'broker_transport_options = {"confirm_publish": True}',
    )


def _dead_letter_exchanges(application: ApplicationFacts) -> Iterator[Finding]:
    name = "dead letter exchange"
    without = [queue for queue in application.queues if not queue.has_dead_letter_exchange]
    dropping = [queue for queue in without if queue.drops_by]
    policy = (
        "rabbitmqctl set_policy --apply-to queues jobs-dead '^({names})$'"
        ' \'{{"dead-letter-exchange":"","dead-letter-routing-key":"jobs.dead"}}\''
    )
    if dropping:
        reasons = "; ".join(f"{queue.name} by {', '.join(queue.drops_by)}" for queue in dropping[:NAMED])
        yield Finding(
            Level.WARNING,
            name,
            Area.APPLICATION,
            f"Queues that drop messages by themselves are declared without a dead letter exchange: {reasons}.",
            "What RabbitMQ drops so is gone without a trace; a quorum queue drops a job that came back 20 times.",
            f"{policy.format(names='|'.join(queue.name for queue in dropping))}\n"
            'or queue_arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "jobs.dead"}',
        )
    elif without:
        yield Finding(
            Level.UNKNOWN,
            name,
            Area.APPLICATION,
            f"{len(without)} queues are declared without a dead letter exchange; whether a policy on the server"
            " sets one cannot be read through AMQP.",
            "The agent captures what a worker sees. A job that RabbitMQ itself drops, because it expired while it"
            " waited, comes to light only through that exchange.",
            f"To look it up: rabbitmqctl list_policies\nTo set it: {policy.format(names='|'.join(q.name for q in without))}",
        )
    elif application.queues:
        yield _ok(name, "Every queue is declared with a dead letter exchange.")


def _time_limits(application: ApplicationFacts) -> Finding:
    without = [task for task in application.tasks if task.time_limit_seconds is None]
    late = [task for task in without if task.acks_late]
    if not without:
        return _ok("time limits", "Every task has a time limit.")
    repeated = (
        " Those that acknowledge late are handed to another worker as well when the broker's timeout passes."
        if late
        else ""
    )
    return Finding(
        Level.WARNING,
        "time limits",
        Area.APPLICATION,
        f"{_names(late or without)} {'acknowledges late and has' if late and len(late) == 1 else 'acknowledge late and have' if late else 'has' if len(without) == 1 else 'have'}"
        " no time limit.",
        f"A job that hangs holds its slot until somebody restarts the worker.{repeated}",
        "task_time_limit = 660 and task_soft_time_limit = 600, or time_limit= on the task; base=jobs.Job has both",
    )


def _lost_workers(application: ApplicationFacts) -> Iterator[Finding]:
    rejecting = [task for task in application.tasks if task.reject_on_worker_lost and task.acks_late]
    if rejecting and not application.has_agent:
        yield Finding(
            Level.ERROR,
            "lost workers",
            Area.APPLICATION,
            f"task_reject_on_worker_lost is on for {_names(rejecting)}, and no agent counts how often a job"
            " comes back.",
            "A job that kills its worker, by memory or a crash, is delivered again for ever and takes one worker"
            " after the other with it.",
            "from jobs.agent import attach; attach(app)",
        )


def _results(application: ApplicationFacts) -> Iterator[Finding]:
    if application.keeps_results_on_broker:
        yield Finding(
            Level.WARNING,
            "results",
            Area.APPLICATION,
            "Results are kept for ever on the Redis that is the broker.",
            "They fill it; when it is full it refuses every write, and nothing can be sent any more.",
            "result_expires = 86400, or task_ignore_result = True",
        )


def _limits_store(application: ApplicationFacts) -> Iterator[Finding]:
    limited = [task for task in application.tasks if task.has_fleet_limits]
    if limited and application.limits_problem:
        yield Finding(
            Level.ERROR,
            "fleet limits",
            Area.APPLICATION,
            f"A rate or a concurrency is set on {_names(limited)}. {application.limits_problem}",
            "These jobs go to the dead letters instead of running.",
            "REDIS_URL=redis://host:6379/0",
        )


def _names(tasks: Sequence[TaskFacts]) -> str:
    names = ", ".join(sorted(task.name for task in tasks)[:NAMED])
    return f"{names} and {len(tasks) - NAMED} more" if len(tasks) > NAMED else names


def _ok(name: str, found: str) -> Finding:
    return Finding(Level.OK, name, Area.APPLICATION, found)
