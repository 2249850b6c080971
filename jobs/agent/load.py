"""What a worker holds at a moment: jobs that run, messages that wait in it, memory and load."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from celery.worker import state

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0


def pool_name(consumer: Any) -> str:
    """Return prefork, thread, solo, gevent or eventlet."""
    return type(consumer.pool).__module__.rpartition(".")[2]


def concurrency_of(consumer: Any) -> int | None:
    """Return how many jobs the worker runs at once now, None when the pool does not tell."""
    number = getattr(consumer.pool, "num_processes", None)
    return number if isinstance(number, int) else None


def queues_of(consumer: Any) -> list[str]:
    """Return the queues the worker takes from now."""
    queues = getattr(getattr(consumer, "task_consumer", None), "queues", None) or ()
    return sorted(str(queue.name) for queue in queues)


def running_requests() -> list[Any]:
    """Return the requests that a child has begun and that have not ended."""
    return _members(state.active_requests)


def held_requests(consumer: Any) -> list[Any]:
    """Return the requests that wait in this worker for their time."""
    scheduled = getattr(state, "scheduled_requests", None)
    if scheduled is not None:
        return _members(scheduled)
    return list(_in_timer(consumer.timer))  # before Celery 5.7


def reserved_requests(consumer: Any) -> list[Any]:
    """Return the requests that the worker took and has not begun: for the pool, or for a rate limit's token."""
    running = set(map(id, running_requests()))
    waiting = [each for each in _members(state.reserved_requests) if id(each) not in running]
    for bucket in list(getattr(consumer, "task_buckets", {}).values()):
        # Of (request, tokens); what waits in a bucket is not among the reserved.
        waiting.extend(each[0] for each in tuple(getattr(bucket, "contents", None) or ()) if each)
    return waiting


def by_queue(requests: Iterable[Any]) -> dict[str, int]:
    """Count requests by the queue they came from."""
    return dict(Counter(getattr(request, "jobs_queue", "") for request in requests))


def load_average() -> float | None:
    """Return the machine's load average over one minute."""
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return None


def memory_bytes(consumer: Any) -> int | None:
    """Return the resident memory of this process and the pool's; what they share counts in each.

    None where there is no /proc.
    """
    processes = getattr(getattr(consumer.pool, "_pool", None), "_pool", None)
    pids = [os.getpid()]
    if isinstance(processes, list):
        pids += [pid for each in list(processes) if (pid := getattr(each, "pid", None))]
    found = [pages for pid in pids if (pages := _resident_pages(pid)) is not None]
    return sum(found) * _PAGE_BYTES if found else None


def _resident_pages(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        return None


def _members(requests: Any) -> list[Any]:
    """Copy a WeakSet to which other threads add."""
    for _ in range(3):
        try:
            return list(requests)
        except RuntimeError:
            continue
    return []


def _in_timer(timer: Any) -> Iterator[Any]:
    for waiting in list(getattr(getattr(timer, "schedule", None), "queue", None) or ()):
        arguments = getattr(getattr(waiting, "entry", None), "args", None) or ()
        if arguments and hasattr(arguments[0], "jobs_queue"):
            yield arguments[0]
