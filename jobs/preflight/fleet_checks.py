"""Checks of what runs: workers, queues and beats. Pure: facts in, findings out."""

from __future__ import annotations

from collections.abc import Iterator

from jobs.preflight.application_checks import KEPT_LIMITS, check_pool
from jobs.preflight.facts import BeatFacts, Facts, QueueState, WorkerFacts
from jobs.preflight.findings import Area, Finding, Level

NAMED = 5


def check_fleet(facts: Facts) -> Iterator[Finding]:
    """Check what is online. Says nothing where the fleet was not asked."""
    if facts.fleet_refusal:
        yield Finding(
            Level.UNKNOWN,
            "fleet",
            Area.FLEET,
            f"Who runs cannot be read: {facts.fleet_refusal}.",
            "Two beats would go unnoticed.",
            "manage.py migrate, and DATABASE_URL",
        )
    if facts.beats is not None:
        yield _beats(facts.beats)
    if facts.workers is not None:
        yield from _pools(facts, facts.workers)
        yield from _mixed_queues(facts.workers)
        if facts.queues is not None:
            yield from _queues(facts, facts.queues, facts.workers)


def _beats(beats: tuple[BeatFacts, ...]) -> Finding:
    if len(beats) < 2:
        return _ok("beat", f"{beats[0].name} sends schedules." if beats else "No beat was seen.")
    names = " and ".join(
        f"{beat.name} (since {beat.started_at:%Y-%m-%d %H:%M:%S} UTC)"
        for beat in sorted(beats, key=lambda beat: beat.started_at)
    )
    return Finding(
        Level.ERROR,
        "beat",
        Area.FLEET,
        f"{len(beats)} beats run at once: {names}.",
        "Each sends every scheduled job: it runs once for each beat.",
        "Stop all but one. Look for `celery beat` in two deployments, and for `celery worker -B`.",
    )


def _pools(facts: Facts, workers: tuple[WorkerFacts, ...]) -> Iterator[Finding]:
    for pool in sorted({worker.pool for worker in workers}):
        if pool in KEPT_LIMITS and pool == "prefork":
            continue
        names = sorted(worker.hostname for worker in workers if worker.pool == pool)
        yield from check_pool(facts.application, pool, f"The pool of {_list(names)}")


def _mixed_queues(workers: tuple[WorkerFacts, ...]) -> Iterator[Finding]:
    """Workers that share a queue and not their tasks throw each other's jobs away."""
    for queue in sorted({queue for worker in workers for queue in worker.queues}):
        sharing = [worker for worker in workers if queue in worker.queues and worker.tasks]
        union = frozenset().union(*(worker.tasks for worker in sharing))
        lacking = [worker for worker in sharing if worker.tasks != union]
        if lacking:
            worker = min(lacking, key=lambda one: len(one.tasks))
            strange = sorted(union - worker.tasks)
            yield Finding(
                Level.WARNING,
                "mixed queue",
                Area.FLEET,
                f"Workers with different tasks share the queue {queue}: {worker.hostname} does not know"
                f" {_list(strange)}.",
                "A job that reaches a worker that does not know its task is thrown away there (with the agent:"
                " a dead letter, unregistered). During a release that passes; with two applications it stays.",
                "A queue of its own for each application, or"
                ' broker_transport_options = {"global_keyprefix": "shop:"} on Redis, or a virtual host on RabbitMQ',
            )


def _queues(
    facts: Facts, queues: tuple[QueueState, ...], workers: tuple[WorkerFacts, ...]
) -> Iterator[Finding]:
    if not workers and all(queue.consumers is None for queue in queues):
        waiting = sum(queue.messages for queue in queues)
        yield Finding(
            Level.UNKNOWN,
            "consumers",
            Area.FLEET,
            f"No worker answers, and {waiting:,} messages wait; whether every queue will be consumed cannot be said.",
            "A queue that nobody consumes only grows.",
            "Start the workers, then run manage.py preflight again",
        )
        return
    consumed = {queue for worker in workers for queue in worker.queues}
    found = False
    for queue in sorted(queues, key=lambda one: (-one.messages, one.name)):
        if queue.name in consumed or queue.consumers:
            continue
        found = True
        declared = any(one.name == queue.name for one in facts.application.queues)
        yield Finding(
            Level.WARNING,
            "consumers",
            Area.FLEET,
            f"Nobody consumes the queue {queue.name}, in which {queue.messages:,} messages wait."
            if queue.messages
            else f"Nobody consumes the queue {queue.name}, to which the application sends.",
            "Its jobs wait for ever. A mistyped queue name makes a new queue without an error."
            if not declared
            else "Its jobs wait for ever.",
            f"celery worker -Q …,{queue.name}\nor, where the name is wrong: the queue= of the task;"
            " task_create_missing_queues = False refuses unknown names",
        )
    if not facts.are_queues_complete:
        yield Finding(
            Level.UNKNOWN,
            "consumers",
            Area.FLEET,
            "The Redis holds so many keys that not all queues were looked for.",
            "A queue that nobody consumes may have been missed.",
            "A Redis of its own for the broker",
        )
    elif not found:
        yield _ok("consumers", f"Each of {len(queues)} queues is consumed.")


def _list(names: list[str]) -> str:
    shown = ", ".join(names[:NAMED])
    return f"{shown} and {len(names) - NAMED} more" if len(names) > NAMED else shown


def _ok(name: str, found: str) -> Finding:
    return Finding(Level.OK, name, Area.FLEET, found)
