"""Workers that fell silent without a goodbye, and what they took with them.

Of a job that was acknowledged when it began nobody has the message any more: it becomes a dead letter. A job
that is acknowledged at its end is delivered again by the broker, and is not lost.

That a silent worker is dead is a presumption. Its letters are known by a name of their own ("lost:…"), so
that a death which its agent had captured, or still captures, is a letter of its own with the whole message.
When the worker is heard of again, or one of its jobs turns out to have ended, the letter is resolved and says so.
"""

from __future__ import annotations

import itertools
import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import InterfaceError, OperationalError, transaction
from django.db.models import Q

from jobs import conf
from jobs.agent.wire import PUBLICATION_HEADER, Record, WireError, WireMessage
from jobs.collector import insert_letters
from jobs.collector.rows import ERROR_LENGTH
from jobs.collector.storing import resolve_groups
from jobs.collector.writing import update
from jobs.core.cleaning import clean_name
from jobs.core.words import PRESUMED_LOST, LetterState, Reason
from jobs.metrics import boots, lost_attempts
from jobs.metrics.workers import LOST_AFTER, SOLO_LOST_AFTER
from jobs.models import DeadLetter, Death, OutboxMessage, Run, WorkerBoot
from jobs.outbox.letters import message_of

logger = logging.getLogger(__name__)

ERROR_TYPE = PRESUMED_LOST
ERROR = (
    "Its worker fell silent while it ran this job, which was acknowledged when it began, so no other worker gets"
    " it. Whether its effects happened is not known."
)
FIRST_MESSAGE = " The message is the one the job was first sent with."
CAME_BACK = "Its worker came back, so the job was not lost."
HAS_ENDED = "The job has ended all the same, as its worker told later."
WENT_ON = "The job went on: a later attempt of it has run."
# After one of the first two, on a letter that was replayed meanwhile.
REPLAYED_BEFORE = "It was replayed before that was known: the job may have run twice."
# Workers a round: each is a transaction.
MOST_BOOTS = 100
# Jobs that are asked after together, about: as many as one worker may run.
ASKED_TOGETHER = boots.MOST_RUNNING

# A letter's uuid, the publication and attempt of its job, and the job's id.
Presumed = Sequence[Any]


def declare_lost(*, now: datetime) -> int:
    """Give up on workers that were silent for too long; return how many dead letters that made.

    Only for a collector that ``has_heard_all``: what it has not read may be their words.
    One transaction for each worker.
    """
    solo = Q(pool="solo")
    silent = WorkerBoot.objects.filter(
        ~solo | Q(last_seen_at__lt=now - SOLO_LOST_AFTER),
        goodbye_at=None,
        lost_at=None,
        last_seen_at__lt=now - LOST_AFTER,
    )
    return sum(_declare_one(pk, now) for pk in list(silent.values_list("pk", flat=True)[:MOST_BOOTS]))


def settle(*, now: datetime) -> int:
    """Resolve letters of lost workers whose job turns out to have ended; return how many.

    Its record may have waited on another queue, or on the disk of the worker's machine.
    """
    waiting = WorkerBoot.objects.filter(lost_at__isnull=False, jobs_lost__gt=0).exclude(presumed=[])
    settled = 0
    for together in _together(list(waiting.order_by("pk"))):
        # Asked without a lock first, and of many workers at once: of most lost jobs nothing is ever heard again.
        heard = _Heard(
            [job for boot in together for job in boot.presumed],
            since=min(boot.started_at for boot in together),
        )
        for boot in together:
            if heard.of(boot.presumed, since=boot.started_at):
                settled += _settle(boot.pk, now)
    return settled


def _together(waiting: Sequence[WorkerBoot]) -> Iterator[list[WorkerBoot]]:
    """Yield the workers in order, so many that their jobs come to ASKED_TOGETHER or a little more."""
    together: list[WorkerBoot] = []
    for boot in waiting:
        together.append(boot)
        if sum(len(each.presumed) for each in together) >= ASKED_TOGETHER:
            yield together
            together = []
    if together:
        yield together


def take_back(boot: WorkerBoot, *, now: datetime) -> None:
    """Note in its row, which is not saved, that a worker given up for lost is there; resolve its letters.

    Within the transaction of whoever counts its batch. A job that it still runs needs no letter: should it
    die, the agent captures it.
    """
    logger.warning("The worker %s, given up for lost at %s, is back.", boot.hostname, boot.lost_at)
    _resolve({letter: CAME_BACK for letter, *_ in boot.presumed}, now=now)
    boot.lost_at, boot.presumed = None, []


def _declare_one(pk: int, now: datetime) -> int:
    try:
        return _declare(pk, now)
    except (OperationalError, InterfaceError):
        raise
    except Exception:
        # What is refused would be refused for ever, and no other worker would be declared lost.
        logger.exception("Jobs of a lost worker could not be written; it is lost without dead letters.")
        WorkerBoot.objects.filter(pk=pk, lost_at=None).update(lost_at=now)
        return 0


def _declare(pk: int, now: datetime) -> int:
    with transaction.atomic():
        boots.take_turn()
        # Looked at again: its batch may just have been counted.
        boot = WorkerBoot.objects.filter(
            pk=pk, goodbye_at=None, lost_at=None, last_seen_at__lt=now - LOST_AFTER
        ).first()
        if boot is None:
            return 0
        alone = [job for job in boot.running if job["is_acknowledged"]]
        keys = [("", job["publication_id"], job["attempt"], job["task_id"]) for job in alone]
        ended = _ended(keys, since=boot.started_at)
        jobs = [job for number, job in enumerate(alone) if number not in ended]
        letters = [uuid.uuid4() for _ in jobs]
        died = _not_told_before(boot, jobs)
        stored = _insert(boot, jobs, letters, now=now)
        lost_attempts.count(boot, died, error_type=ERROR_TYPE, now=now)
        # Of a replayed job there is a letter already; its outcome still counts if it comes.
        new = set(DeadLetter.objects.filter(uuid__in=letters).values_list("uuid", flat=True))
        boot.presumed = [
            [letter.hex, job["publication_id"], job["attempt"], job["task_id"]]
            for letter, job in zip(letters, jobs, strict=True)
            if letter in new
        ]
        boot.lost_at = now
        boot.jobs_lost += stored
        boot.save(update_fields=["lost_at", "jobs_lost", "presumed"])
    logger.error(
        "The worker %s is lost: it was last heard of at %s. %s of its jobs became dead letters.",
        *(boot.hostname, boot.last_seen_at, stored),
    )
    return stored


def _settle(pk: int, now: datetime) -> int:
    with transaction.atomic():
        boots.take_turn()
        boot = WorkerBoot.objects.filter(pk=pk, lost_at__isnull=False).first()
        if boot is None:
            return 0
        ended = _ended(boot.presumed, since=boot.started_at)
        if not ended:
            return 0
        _resolve({boot.presumed[number][0]: words for number, words in ended.items()}, now=now)
        boot.presumed = [one for number, one in enumerate(boot.presumed) if number not in ended]
        boot.save(update_fields=["presumed"])
        return len(ended)


class _Heard:
    """What tells of some jobs that they ended or went on; three queries, however many jobs of however many workers."""

    def __init__(self, jobs: Sequence[Presumed], *, since: datetime) -> None:
        publications = {clean_name(publication) for _, publication, *_ in jobs} - {""}
        ids = {clean_name(task_id) for *_, task_id in jobs} - {""}
        deaths = Death.objects.filter(publication_id__in=publications).order_by()
        self._ended = set(deaths.values_list("publication_id", "attempt"))
        self._ran: dict[str, list[tuple[int, datetime]]] = {}
        runs = Run.objects.filter(task_id__in=ids, finished_at__gte=since).order_by()
        for task_id, publication, attempt, at in runs.values_list(
            "task_id", "publication_id", "attempt", "finished_at"
        ):
            self._ended.add((publication, attempt))
            self._ran.setdefault(task_id, []).append((attempt, at))
        self._running: dict[str, int] = {}
        living = (
            WorkerBoot.objects.filter(goodbye_at=None, lost_at=None) if ids else WorkerBoot.objects.none()
        )
        lists: list[Any] = list(living.values_list("running", flat=True))
        for job in itertools.chain.from_iterable(lists):
            task_id = clean_name(job["task_id"])
            self._running[task_id] = max(job["attempt"], self._running.get(task_id, 0))

    def of(self, jobs: Sequence[Presumed], *, since: datetime) -> dict[int, str]:
        """Say of which of the jobs of one worker, by their place, something tells that, and what.

        ``since`` it started: applications that choose their ids use one again.
        """
        found = {}
        for number, (_, publication, attempt, task_id) in enumerate(jobs):
            publication, task_id = clean_name(publication), clean_name(task_id)
            later = (at for number_of, at in self._ran.get(task_id, ()) if number_of > attempt)
            if publication and (publication, attempt) in self._ended:
                found[number] = HAS_ENDED
            elif self._running.get(task_id, 0) > attempt or any(at >= since for at in later):
                found[number] = WENT_ON
        return found


def _ended(jobs: Sequence[Presumed], *, since: datetime) -> dict[int, str]:
    return _Heard(jobs, since=since).of(jobs, since=since)


def _not_told_before(
    boot: WorkerBoot, jobs: Sequence[Mapping[str, Any]]
) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the jobs, by the publication of their death, of which no such death is kept. One query."""
    by_key = {(_publication_of_death(boot, job), job["attempt"]): job for job in reversed(jobs)}
    deaths = Death.objects.filter(publication_id__in={publication for publication, _ in by_key})
    told = set(deaths.order_by().values_list("publication_id", "attempt"))
    return [(key[0], job) for key, job in by_key.items() if key not in told]


def _publication_of_death(boot: WorkerBoot, job: Mapping[str, Any]) -> str:
    # One that comes back and is lost again loses its jobs again.
    return clean_name(f"lost:{boot.sequence}:{job['publication_id']}")


def _insert(
    boot: WorkerBoot, jobs: Sequence[Mapping[str, Any]], letters: Sequence[uuid.UUID], *, now: datetime
) -> int:
    """Write the letters and return how many deaths that were."""
    messages = _messages(jobs)
    records = [_record(boot, job, messages[number]) for number, job in enumerate(jobs)]
    try:
        return insert_letters(records, now=now, uuids=letters).deaths
    except ValueError as problem:
        logger.warning("Jobs of %s become dead letters without their messages: %s", boot.hostname, problem)
        records = [_record(boot, job, None) for job in jobs]
        return insert_letters(records, now=now, uuids=letters).deaths


def _messages(jobs: Sequence[Mapping[str, Any]]) -> list[OutboxMessage | None]:
    """Return each job's row in an outbox: that of its publication, else one of the same job. A query a database."""
    of_job: dict[str, list[OutboxMessage]] = {}
    wanted = {job["task_id"] for job in jobs} - {""}
    for using in conf.current().outbox_databases if wanted else ():
        for row in OutboxMessage.objects.using(using).filter(task_id__in=wanted).order_by("pk"):
            of_job.setdefault(row.task_id, []).append(row)
    found: list[OutboxMessage | None] = []
    for job in jobs:
        rows = [row for row in of_job.get(job["task_id"], ()) if row.task == clean_name(job["task"])]
        rows.sort(key=lambda row: _is_of(row, job))
        found.append(rows[-1] if rows else None)
    return found


def _is_of(row: OutboxMessage, job: Mapping[str, Any]) -> bool:
    return bool(row.headers.get(PUBLICATION_HEADER) == job["publication_id"])


def _record(boot: WorkerBoot, job: Mapping[str, Any], row: OutboxMessage | None) -> Record:
    error = ERROR if row is None or _is_of(row, job) else ERROR + FIRST_MESSAGE
    queue = job["queue"]
    return Record(
        kind="death",
        reason=Reason.WORKER_LOST.value,
        publication_id=_publication_of_death(boot, job),
        attempt=job["attempt"],
        at=boot.reported_at.timestamp(),
        task=job["task"],
        task_id=job["task_id"],
        worker=boot.hostname,
        boot_id=boot.boot_id,
        root_id=job["root_id"],
        published_at=job["published_at"],
        started_at=job["started_at"],
        message=WireMessage(b"", "", "", {}, {}, "", queue, queue) if row is None else message_of(row),
        error=WireError(ERROR_TYPE, error, ""),
        replay_of=job["replay_of"],
        replay_item=job["replay_item"],
        details={"publication": job["publication_id"], "last_heard_of_at": boot.last_seen_at.isoformat()},
    )


def _resolve(told: Mapping[str, str], *, now: datetime) -> None:
    """Resolve the letters that nobody has replayed or purged since, and add the words to their error.

    To the first death of those that were replayed too: the job may have done its work twice.
    """
    _warn_of_replayed({letter: words for letter, words in told.items() if words != WENT_ON})
    letters = list(
        DeadLetter.objects.select_for_update()
        .filter(uuid__in=list(told), state=LetterState.DEAD, replays=0)
        .order_by("pk")
        .defer("arguments_text")
    )
    if not letters:
        return
    errors = {letter.pk: f"{letter.error} {told[letter.uuid.hex]}"[:ERROR_LENGTH] for letter in letters}
    update(
        DeadLetter,
        [
            {
                "id": letter.pk,
                "state": LetterState.RESOLVED.value,
                "state_changed_at": now,
                "delete_after": now + conf.current().resolved_retention,
                "error": errors[letter.pk],
            }
            for letter in letters
        ],
    )
    deaths = Death.objects.filter(letter__in=letters).order_by("pk").values_list("pk", "letter_id")
    update(Death, [{"id": pk, "error": errors[letter]} for pk, letter in deaths])
    resolve_groups({letter.group_id for letter in letters}, now=now)


def _warn_of_replayed(told: Mapping[str, str]) -> None:
    """Say on letters that were replayed that their job had not died. Not for a later attempt: it may be the replay's."""
    deaths = Death.objects.filter(
        letter__uuid__in=list(told), letter__replays__gt=0, error_type=ERROR_TYPE, item=None
    )
    found = deaths.order_by("pk").values_list("pk", "error", "letter__uuid")
    update(
        Death,
        [
            {"id": pk, "error": f"{error} {told[letter.hex]} {REPLAYED_BEFORE}"[:ERROR_LENGTH]}
            for pk, error, letter in found
        ],
    )
