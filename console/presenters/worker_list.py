"""The workers as the list shows them: who lives, what each runs, who was lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from console import times
from console.presenters import figures
from console.presenters.plain import count_of, visible
from jobs.metrics import workers
from jobs.metrics.workers import BootNow
from jobs.models import Worker

# Workers are asked each 10 s; one without the agent is online when it answered within so long.
ANSWERED_WITHIN = timedelta(seconds=60)
SILENT_SHOWN = timedelta(hours=24)
_NAMED_IN_SENTENCE = 3
_NAME_LIMIT = 60
QUEUES_SHOWN = 4
MOST_SHOWN = 1_000


@dataclass(frozen=True, slots=True)
class Row:
    """One worker. ``state`` is a name in ``states.WORKER_MARKS``; ``boot`` is None where it has no agent."""

    hostname: str
    state: str
    state_words: str
    boot: BootNow | None
    pool: str
    queues: list[str]
    running: str
    load: str
    memory: str
    seen_at: datetime
    is_late: bool
    up: str = ""

    @property
    def shown_queues(self) -> list[str]:
        """The first of its queues."""
        return self.queues[:QUEUES_SHOWN]

    @property
    def more_queues(self) -> int:
        """How many of its queues are not shown."""
        return max(0, len(self.queues) - QUEUES_SHOWN)


@dataclass(frozen=True, slots=True)
class WorkerList:
    """All workers, and what to know first."""

    rows: list[Row]
    sentence: str
    without_agent: int

    @property
    def shown(self) -> list[Row]:
        """The first of them: a page of thousands that is read each few seconds helps nobody."""
        return self.rows[:MOST_SHOWN]

    @property
    def more_words(self) -> str:
        """Say how many are not listed."""
        more = len(self.rows) - MOST_SHOWN
        return (
            f"{count_of(more, 'more worker')} {'is' if more == 1 else 'are'} not listed." if more > 0 else ""
        )

    @property
    def without_words(self) -> str:
        """Say how many have no agent."""
        one = self.without_agent == 1
        return f"{count_of(self.without_agent, 'worker')} {'has' if one else 'have'} no agent."

    @property
    def without_text(self) -> str:
        """Say what is not known of them, and what to do."""
        what = "it runs, its load and its" if self.without_agent == 1 else "they run, their load and their"
        return f"What {what} dead jobs are not known. Attach it: from jobs.agent import attach; attach(app)."


def read(*, now: datetime) -> WorkerList:
    """Read the list; two queries."""
    boots = workers.boots_now(now=now)
    reporting = {boot.hostname for boot in boots}
    described = Worker.objects.filter(seen_at__gte=now - SILENT_SHOWN).defer("tasks").order_by("hostname")
    others = [each for each in described if each.hostname not in reporting]
    rows = [row(boot, now=now) for boot in boots] + [silent_row(each, now=now) for each in others]
    order = {"lost": 0, "online": 1, "gone": 2}
    rows.sort(key=lambda each: (order.get(each.state, 1), each.hostname))
    return WorkerList(
        rows=rows,
        sentence=sentence(rows, boots),
        without_agent=sum(1 for each in others if not each.has_agent),
    )


def row(boot: BootNow, *, now: datetime) -> Row:
    """Put a worker that reports into words."""
    return Row(
        hostname=boot.hostname,
        state=boot.state,
        state_words=_state_words(boot),
        boot=boot,
        pool=pool_words(boot.pool, boot.concurrency),
        queues=boot.queues,
        running=running_words(boot),
        load="–" if boot.load is None else f"{boot.load:.2f}",
        memory="–" if boot.memory_bytes is None else figures.memory(boot.memory_bytes),
        seen_at=boot.last_seen_at,
        is_late=boot.is_online and now - boot.last_seen_at > workers.LOST_AFTER / 2,
        up=times.span(max(0.0, (now - boot.started_at).total_seconds())),
    )


def silent_row(worker: Worker, *, now: datetime) -> Row:
    """Put a worker into words that only answers when it is asked."""
    is_online = now - worker.seen_at <= ANSWERED_WITHIN
    said = "It has no agent, so what it runs is not known." if not worker.has_agent else ""
    if worker.has_agent:
        said = "Its agent has not reported: nobody reads the queue jobs.runs, or it has just started."
    return Row(
        hostname=worker.hostname,
        state="online" if is_online else "gone",
        state_words=said if is_online else f"It does not answer any more. {said}",
        boot=None,
        pool=worker.pool or "–",
        queues=[str(each) for each in worker.queues] if isinstance(worker.queues, list) else [],
        running="–",
        load="–",
        memory="–",
        seen_at=worker.seen_at,
        is_late=False,
    )


def sentence(rows: Sequence[Row], boots: Sequence[BootNow]) -> str:
    """Say what a tired person has to know first."""
    if not rows:
        return "No worker is known."
    living = {each.hostname for each in rows if each.state == "online"}
    # One that was lost and started again is seen in its row; it is back.
    lost = [each for each in boots if each.state == workers.LOST and not each.is_followed]
    parts = []
    if lost:
        verb = "was" if len(lost) == 1 else "were"
        died = sum(each.jobs_lost for each in lost)
        jobs = f" with {count_of(died, 'job')}, {_now_letters(died)}" if died else ""
        parts.append(f"{_names([each.hostname for each in lost])} {verb} lost{jobs}.")
    if not living:
        parts.append("No worker is online: nothing runs.")
        return " ".join(parts)
    online = [boot for boot in boots if boot.is_online]
    running, room = sum(len(boot.running) for boot in online), sum(boot.concurrency or 0 for boot in online)
    verb = "is" if len(living) == 1 else "are"
    full = ""
    if online:
        of = f" of the {room:,} that fit" if room else ""
        full = f" and {'runs' if len(online) == 1 else 'run'} {count_of(running, 'job')}{of}"
    parts.append(f"{count_of(len(living), 'worker')} {verb} online{full}.")
    return " ".join(parts)


def pool_words(pool: str, concurrency: int | None) -> str:
    """Write a pool with its size: "prefork, 8"."""
    name = visible(pool[:_NAME_LIMIT], keep="") or "–"
    return name if concurrency is None else f"{name}, {concurrency:,}"


def running_words(boot: BootNow) -> str:
    """Write how many jobs run of how many may: "7 of 8"."""
    if not boot.is_online:
        return "–"
    running = len(boot.running)
    return f"{running:,}" if boot.concurrency is None else f"{running:,} of {boot.concurrency:,}"


def _state_words(boot: BootNow) -> str:
    if boot.state == workers.LOST:
        lost = f" {count_of(boot.jobs_lost, 'job')} went with it." if boot.jobs_lost else ""
        return f"It stopped reporting without a goodbye.{lost}"
    return "It was stopped and said so." if boot.state == workers.GONE else "It reports each second."


def _now_letters(number: int) -> str:
    return "which is a dead letter now" if number == 1 else "which are dead letters now"


def _names(names: Sequence[str]) -> str:
    shown = [_name(name) for name in names[:_NAMED_IN_SENTENCE]]
    if (more := len(names) - len(shown)) > 0:
        shown.append(f"{more:,} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _name(name: str) -> str:
    shown = visible(name[:_NAME_LIMIT], keep="")
    return f"{shown}…" if len(name) > _NAME_LIMIT else shown
