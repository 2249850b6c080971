"""All that is kept of one job: its message, its attempts, its deaths and replays, and what followed it.

A fixed number of queries, one more for each further database with an outbox.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import F, Q

from jobs import conf, idempotency
from jobs.core import job_ids
from jobs.core.words import Reason, RunOutcome
from jobs.idempotency.reading import LedgerLine
from jobs.metrics import workers
from jobs.models import DeadLetter, Death, JobProgress, OperationItem, OutboxMessage, Run
from jobs.outbox.service import HEAVY_COLUMNS as HEAVY_OF_MESSAGES
from jobs.search import HEAVY_COLUMNS as HEAVY_OF_LETTERS

# A job that loops has thousands of attempts, a root thousands of followers; the newest tell it.
MOST_ATTEMPTS = 100
MOST_LETTERS = 20
MOST_RELATIVES = 50
_FAMILY_READ = 400


@dataclass(frozen=True, slots=True)
class RunningNow:
    """An attempt that a worker reported a moment ago. ``is_online`` is False when that worker fell silent."""

    worker: str
    attempt: int
    started_at: datetime
    published_at: datetime | None
    is_online: bool
    task: str = ""
    queue: str = ""
    root_id: str = ""


@dataclass(frozen=True, slots=True)
class Relative:
    """Another job of the same root, with the newest that is known of it. ``letter`` is its dead letter's row."""

    task_id: str
    task: str
    at: datetime
    outcome: str = ""
    letter: DeadLetter | None = None
    is_root: bool = False


@dataclass(slots=True)
class JobLife:
    """What is kept of a job; what is not known is empty or None.

    Lists are oldest first. ``items`` are the replays of its letters, ``replay`` is set when this job is
    itself a replay of a letter.
    """

    task_id: str
    task: str = ""
    queue: str = ""
    root_id: str = ""
    parent_id: str = ""
    messages: list[OutboxMessage] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    has_more_runs: bool = False
    running: list[RunningNow] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    items: list[OperationItem] = field(default_factory=list)
    replay: OperationItem | None = None
    progress: JobProgress | None = None
    idempotency_key: str = ""
    ledger: LedgerLine | None = None
    relatives: list[Relative] = field(default_factory=list)
    has_more_relatives: bool = False

    @property
    def is_known(self) -> bool:
        """Whether anything is kept of the job itself."""
        return bool(
            self.messages or self.runs or self.running or self.letters or self.replay or self.progress
        )


def read(task_id: str, *, now: datetime) -> JobLife:
    """Read all that is kept of a job. Of one that nobody knows the life is empty but for what followed it."""
    life = JobLife(task_id)
    life.messages = _messages(task_id)
    newest = list(Run.objects.filter(task_id=task_id).order_by("-finished_at", "-id")[: MOST_ATTEMPTS + 1])
    life.has_more_runs = len(newest) > MOST_ATTEMPTS
    life.runs = newest[:MOST_ATTEMPTS][::-1]
    life.running = _running(task_id, now=now)
    life.replay = _replay(task_id)
    life.letters = _letters(task_id, life.replay)
    _read_deaths(life)
    life.running = [each for each in life.running if not _is_given_up(each, life.deaths)]
    life.progress = JobProgress.objects.filter(task_id=task_id).first()
    _name(life)
    if life.idempotency_key:
        pair = (life.task, life.idempotency_key)
        life.ledger = idempotency.states([pair]).get(pair)
    _read_relatives(life)
    return life


def _messages(task_id: str) -> list[OutboxMessage]:
    found: list[OutboxMessage] = []
    for using in conf.current().outbox_databases:
        rows = OutboxMessage.objects.using(using).filter(task_id=task_id).defer(*HEAVY_OF_MESSAGES)
        found += rows.order_by("-id")[:MOST_ATTEMPTS]
    return sorted(found, key=lambda each: (each.created_at, each.pk))


def _running(task_id: str, *, now: datetime) -> list[RunningNow]:
    return [
        _running_now(job, boot.hostname, is_online=boot.is_online)
        for boot in workers.boots_now(now=now)
        if boot.state != workers.GONE
        for job in boot.running
        if job.get("task_id") == task_id
    ]


def _running_now(job: dict[str, Any], worker: str, *, is_online: bool) -> RunningNow:
    published = job.get("published_at")
    return RunningNow(
        worker=worker,
        attempt=int(job.get("attempt") or 0),
        started_at=datetime.fromtimestamp(float(job["started_at"]), UTC),
        published_at=None if published is None else datetime.fromtimestamp(float(published), UTC),
        is_online=is_online,
        task=str(job.get("task") or ""),
        queue=str(job.get("queue") or ""),
        root_id=str(job.get("root_id") or ""),
    )


def _is_given_up(running: RunningNow, deaths: Sequence[Death]) -> bool:
    """Say whether its worker was given up for lost and this attempt became a dead letter."""
    return not running.is_online and any(
        death.reason == Reason.WORKER_LOST
        and (death.worker, death.attempt) == (running.worker, running.attempt)
        and death.died_at >= running.started_at
        for death in deaths
    )


def _replay(task_id: str) -> OperationItem | None:
    """Return the replay that made this job."""
    item_id = job_ids.item_id(task_id)
    if item_id is None:
        return None
    rows = OperationItem.objects.filter(pk=item_id, task_id=task_id)
    return rows.select_related("operation", "letter").first()


def _letters(task_id: str, replay: OperationItem | None) -> list[DeadLetter]:
    """Return the letters of this job, and the one that it replays."""
    wanted = Q(task_id=task_id)
    if replay is not None:
        wanted |= Q(pk=replay.letter_id)
    rows = DeadLetter.objects.filter(wanted).defer(*HEAVY_OF_LETTERS).order_by("-first_died_at", "-id")
    return list(rows[:MOST_LETTERS])[::-1]


def _read_deaths(life: JobLife) -> None:
    """Read the deaths of this job, and what became of its letters."""
    if not life.letters:
        return
    ids = [letter.pk for letter in life.letters]
    # Records of older agents do not name the job; then it is the letter's own.
    mine = Q(task_id=life.task_id) | Q(task_id="", letter__task_id=life.task_id)
    deaths = Death.objects.filter(mine, letter__in=ids).defer("traceback").order_by("-died_at", "-id")
    life.deaths = list(deaths[:MOST_ATTEMPTS])[::-1]
    own = [letter.pk for letter in life.letters if letter.task_id == life.task_id]
    items = OperationItem.objects.filter(letter__in=own).exclude(task_id=life.task_id)
    life.items = list(items.select_related("operation").order_by("-id")[:MOST_ATTEMPTS])[::-1]


def _name(life: JobLife) -> None:
    """Take names and ids from whatever is known, the message first."""
    holders: list[Any] = [*life.messages[-1:], *life.letters[-1:], *life.runs[-1:], *life.running]
    if life.progress is not None:
        holders.append(life.progress)
    for name in ("task", "queue", "root_id", "parent_id", "idempotency_key"):
        values = (str(getattr(holder, name, "")) for holder in holders)
        setattr(life, name, next((value for value in values if value), ""))
    if not life.root_id:
        life.root_id = life.task_id


def _read_relatives(life: JobLife) -> None:
    """Read the other jobs of the root, newest first, each with the newest that is known of it."""
    # Written as the condition of the index is, so that both databases use it.
    runs = Run.objects.filter(~Q(root_id=F("task_id")), root_id=life.root_id)
    rows = list(runs.exclude(task_id=life.task_id).order_by("-finished_at", "-id")[:_FAMILY_READ])
    found: dict[str, Relative] = {}
    for run in rows:
        found.setdefault(run.task_id, Relative(run.task_id, run.task, run.finished_at, run.outcome))
    letters = DeadLetter.objects.filter(root_id=life.root_id).exclude(task_id__in=["", life.task_id])
    for letter in letters.defer(*HEAVY_OF_LETTERS).order_by("-died_at", "-id")[:MOST_RELATIVES]:
        known = found.get(letter.task_id)
        if known is None:
            known = Relative(letter.task_id, letter.task, letter.died_at, RunOutcome.DEAD.value)
        found[letter.task_id] = replace(known, letter=letter, is_root=letter.task_id == life.root_id)
    if life.root_id not in {life.task_id, *found}:
        _add_root(life, found)
    relatives = sorted(found.values(), key=lambda each: (not each.is_root, each.at, each.task_id))
    life.has_more_relatives = len(relatives) > MOST_RELATIVES or len(rows) == _FAMILY_READ
    life.relatives = relatives[:MOST_RELATIVES]


def _add_root(life: JobLife, found: dict[str, Relative]) -> None:
    root = Run.objects.filter(task_id=life.root_id).order_by("-finished_at", "-id").first()
    if root is not None:
        found[root.task_id] = Relative(root.task_id, root.task, root.finished_at, root.outcome, is_root=True)


def forgotten_after(life: JobLife) -> Iterable[tuple[str, timedelta]]:
    """Return what is kept how long, for a job of which nothing is kept any more."""
    settings = conf.current()
    return (
        ("the record of an attempt", settings.run_retention),
        ("a message that the outbox has sent", settings.outbox_retention),
        ("a letter that was replayed and done", settings.resolved_retention),
    )
