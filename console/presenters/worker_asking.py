"""What the pages say that ask before a worker is told something, or a job is revoked."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from console.presenters import worker_page
from console.presenters.plain import count_of, visible
from console.presenters.worker_page import RunningRow, WorkerPage
from jobs.metrics import workers
from jobs.worker_control import Revoked

_ID_LIMIT = 80


@dataclass(frozen=True, slots=True)
class Asked:
    """One question: its title, what follows, the button, and what is said when it is done."""

    action: str
    title: str
    sentences: list[str]
    button: str
    icon: str
    is_dangerous: bool
    keep: str
    said: str
    placeholder: str
    why_not: str


@dataclass(frozen=True, slots=True)
class AskedRevoke:
    """The question before a job is revoked; ``job`` and ``hostname`` only where a worker says that it runs it."""

    task_id: str
    short_id: str
    job: RunningRow | None
    hostname: str
    pool: str
    can_stop: bool


def ask(action: str, page: WorkerPage) -> Asked:
    """Put a question to a worker into words; ``action`` is grow, shrink or shut_down."""
    return {"grow": _grow, "shrink": _shrink, "shut_down": _shut_down}[action](page)


def revoke(task_id: str, *, now: datetime) -> AskedRevoke:
    """Find where a job runs."""
    for boot in workers.boots_now(now=now):
        if not boot.is_online:
            continue
        for each in boot.running:
            if each.get("task_id") == task_id:
                return AskedRevoke(
                    task_id,
                    short(task_id),
                    worker_page.running_row(each),
                    boot.hostname,
                    boot.pool,
                    worker_page.can_stop_jobs(boot.pool),
                )
    return AskedRevoke(task_id, short(task_id), None, "", "", can_stop=False)


def revoked_words(task_id: str, done: Revoked) -> str:
    """Say what a revocation did."""
    known = f"{count_of(done.workers, 'worker')} {'knows' if done.workers == 1 else 'know'} it"
    if done.stopped_by:
        return f"Job {short(task_id)} is revoked, and {visible(done.stopped_by[:80], keep='')} stops it; {known}."
    return f"Job {short(task_id)} is revoked; {known} and will not start it."


def short(task_id: str) -> str:
    """Return how sentences call a job."""
    return visible(task_id[:8] if len(task_id) == 36 else task_id[:_ID_LIMIT], keep="")


def _grow(page: WorkerPage) -> Asked:
    now = page.boot.concurrency if page.boot is not None else None
    becomes = f" It runs up to {now:,} now, {now + 1:,} then." if now is not None else ""
    return Asked(
        action="grow",
        title="Grow by 1",
        sentences=[
            f"The worker will run one more job at a time.{becomes}",
            "It lasts until the worker restarts: what it starts with is its option --concurrency.",
        ],
        button=f"Grow to {now + 1:,}" if now is not None else "Grow by 1",
        icon="plus",
        is_dangerous=False,
        keep="Leave it as it is",
        said="runs one more job at a time until it restarts.",
        placeholder="Why one more is needed",
        why_not=page.why_not_resized,
    )


def _shrink(page: WorkerPage) -> Asked:
    now = page.boot.concurrency if page.boot is not None else None
    becomes = f" It runs up to {now:,} now, {now - 1:,} then." if now is not None else ""
    return Asked(
        action="shrink",
        title="Shrink by 1",
        sentences=[
            f"The worker will run one job less at a time.{becomes} Only an idle process ends: no job is stopped, and "
            "while all of them are busy the worker refuses.",
            "It lasts until the worker restarts: what it starts with is its option --concurrency.",
        ],
        button=f"Shrink to {now - 1:,}" if now is not None else "Shrink by 1",
        icon="minus",
        is_dangerous=False,
        keep="Leave it as it is",
        said="runs one job less at a time until it restarts.",
        placeholder="Why one less is enough",
        why_not=page.why_not_shrunk,
    )


def _shut_down(page: WorkerPage) -> Asked:
    running = len(page.running) + page.running_left_out
    sentences = ["It takes no more messages, and gives back those that it took and has not started."]
    if running:
        one = running == 1
        sentences.append(
            f"It finishes the {count_of(running, 'job')} that {'runs' if one else 'run'} now, and then ends."
        )
    sentences.append(
        "Nothing here starts it again. If a supervisor such as systemd or Kubernetes does, it comes back at once."
    )
    return Asked(
        action="shut_down",
        title="Shut down",
        sentences=sentences,
        button=f"Shut down after {count_of(running, 'job')}" if running else "Shut down 1 worker",
        icon="power",
        is_dangerous=True,
        keep="Let it run",
        said="was told to shut down. It ends when its jobs are done.",
        placeholder="Why it is to end",
        why_not=page.why_not_shut_down,
    )
