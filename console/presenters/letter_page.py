"""Reads what the page of one letter shows: a fixed number of queries, whatever the letter went through."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Q
from django.utils.safestring import SafeString

from console.presenters import (
    arguments_view,
    group_page,
    letter_life,
    letter_story,
    message_view,
    progress_view,
    traceback_view,
)
from console.presenters.arguments_view import ArgumentsView
from console.presenters.group_page import GroupPanel
from console.presenters.letter_life import Life
from console.presenters.letter_story import Notice
from console.presenters.message_view import Fact
from console.presenters.plain import visible
from console.presenters.progress_view import ProgressLine
from console.presenters.traceback_view import TracebackView
from jobs import idempotency, search
from jobs.core import fingerprint
from jobs.core.arguments import Arguments
from jobs.core.words import ItemState, LetterState
from jobs.models import AuditEntry, DeadLetter, Death, JobProgress, OperationItem, Worker

# A letter that loops has thousands of deaths; the oldest and the newest tell it.
DEATHS_OLDEST = 20
DEATHS_NEWEST = 80
ITEMS_NEWEST = 100
REMARKS_SHOWN = 50
HEADLINE_LIMIT = 300
ONLINE_SECONDS = 60
WORKERS_READ = 200


@dataclass(frozen=True, slots=True)
class Headline:
    """The error in one line: the type bold, and the text in parts, the variable ones dimmed."""

    type: str
    parts: list[tuple[str, bool]]


@dataclass(frozen=True, slots=True)
class TaskKnowledge:
    """What the online workers know of a task. ``is_known`` is None when none is online."""

    is_known: bool | None
    parameters: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class LetterPage:
    """Everything on the page, ready to be printed."""

    letter: DeadLetter
    headline: Headline
    deaths: list[Death]
    items: list[OperationItem]
    story: list[str]
    progress: ProgressLine | None
    notice: Notice
    life: Life
    traceback: TracebackView | None
    traceback_death: Death | None
    traceback_number: int
    arguments: ArgumentsView
    facts: list[Fact]
    headers: list[tuple[str, str]]
    siblings: list[DeadLetter]
    waiting: list[str]
    remarks: list[AuditEntry]
    group: GroupPanel


def find_letter(letter_id: uuid.UUID) -> DeadLetter | None:
    """Return the letter with its message, its group and their people, or None."""
    related = ("message", "group", "group__owner", "group__resolved_by", "purged_by")
    return DeadLetter.objects.select_related(*related).filter(uuid=letter_id).first()


def read(
    letter: DeadLetter,
    *,
    now: datetime,
    death_id: int | None = None,
    is_revealed: bool = False,
    masked_html: SafeString | None = None,
) -> LetterPage:
    """Read the page. ``death_id`` chooses whose traceback is open; the newest is."""
    deaths = _deaths(letter)
    items = items_of(letter)
    knowledge = task_knowledge(letter.task, now=now)
    content = arguments_view.read(letter)
    chosen, number = _chosen_death(letter, deaths, death_id)
    pair = (letter.task, letter.idempotency_key)
    return LetterPage(
        letter=letter,
        headline=headline(letter),
        deaths=deaths,
        items=items,
        story=letter_story.what_happened(letter, deaths, items, now=now),
        progress=_progress(letter, deaths, items, now=now),
        notice=letter_story.notice(
            letter,
            deaths,
            items,
            is_known_to_workers=knowledge.is_known,
            ledger=idempotency.states([pair]).get(pair),
            now=now,
        ),
        life=letter_life.present(letter, deaths, items, now=now),
        traceback=traceback_view.present(_traceback_of(chosen)),
        traceback_death=chosen,
        traceback_number=number,
        arguments=arguments_view.present(
            letter,
            content,
            parameters=knowledge.parameters,
            masked_html=masked_html,
            is_revealed=is_revealed,
        ),
        facts=message_view.facts(letter, None if content.error else content.embed),
        headers=message_view.header_rows(letter.message.headers),
        siblings=search.siblings(letter),
        waiting=_waiting(content),
        remarks=_remarks(letter),
        group=group_page.panel(letter.group, now=now),
    )


def headline(letter: DeadLetter) -> Headline:
    """Return the error as the page's title."""
    name = letter.error_type.rsplit(".", 1)[-1] or str(letter.get_reason_display())
    text = letter.error[:HEADLINE_LIMIT] if letter.error else ""
    parts = [(visible(part, keep=""), variable) for part, variable in fingerprint.split_variable(text)]
    return Headline(type=visible(name, keep=""), parts=parts)


def task_knowledge(task: str, *, now: datetime) -> TaskKnowledge:
    """Ask the table of workers who knows the task, and with which parameters.

    Parameters are those of the newest worker that knew it, online or not: they also tell which
    positional arguments are masked.
    """
    since = now - timedelta(seconds=ONLINE_SECONDS)
    workers = list(Worker.objects.order_by("-seen_at").only("seen_at", "tasks")[:WORKERS_READ])
    knowing = [worker for worker in workers if isinstance(worker.tasks, dict) and task in worker.tasks]
    is_any_online = any(worker.seen_at >= since for worker in workers)
    return TaskKnowledge(
        is_known=any(worker.seen_at >= since for worker in knowing) if is_any_online else None,
        parameters=next(
            (worker.tasks[task] for worker in knowing if isinstance(worker.tasks[task], dict)), None
        ),
    )


def _deaths(letter: DeadLetter) -> list[Death]:
    """Return the deaths, oldest first, without their tracebacks."""
    rows = letter.death_set.defer("traceback")
    newest = list(rows.order_by("-died_at", "-id")[: DEATHS_OLDEST + DEATHS_NEWEST])
    if len(newest) < DEATHS_OLDEST + DEATHS_NEWEST:
        return newest[::-1]
    oldest = list(rows.order_by("died_at", "id")[:DEATHS_OLDEST])
    seen = {death.pk for death in oldest}
    return oldest + [death for death in newest[:DEATHS_NEWEST][::-1] if death.pk not in seen]


def items_of(letter: DeadLetter) -> list[OperationItem]:
    """Return the part of the letter in replays, oldest first, with their operations."""
    rows = OperationItem.objects.filter(letter=letter).select_related("operation").order_by("-id")
    return list(rows[:ITEMS_NEWEST])[::-1]


def _progress(
    letter: DeadLetter, deaths: list[Death], items: list[OperationItem], *, now: datetime
) -> ProgressLine | None:
    """Return how far the job was when it died, or how far its replay is."""
    task_id = deaths[-1].task_id or letter.task_id if deaths else letter.task_id
    if letter.state == LetterState.REPLAYING:
        sent = next((item for item in reversed(items) if item.state == ItemState.SENT), None)
        task_id = sent.task_id if sent is not None else ""
    if not task_id or letter.state == LetterState.RESOLVED:
        return None
    record = JobProgress.objects.filter(task_id=task_id).first()
    return None if record is None else progress_view.present(record, now=now)


def _chosen_death(letter: DeadLetter, deaths: list[Death], death_id: int | None) -> tuple[Death | None, int]:
    """Return the death whose traceback is shown, and its number among all."""
    if not deaths:
        return None, 0
    index = next((i for i, death in enumerate(deaths) if death.pk == death_id), len(deaths) - 1)
    # Those in the middle may be left out of the list.
    number = index + 1 if index < DEATHS_OLDEST else letter.deaths - (len(deaths) - 1 - index)
    return deaths[index], max(number, 1)


def _traceback_of(death: Death | None) -> str:
    return "" if death is None else Death.objects.values_list("traceback", flat=True).get(pk=death.pk)


def _waiting(content: Arguments) -> list[str]:
    """Return the tasks that run when this job is done."""
    if content.error or not content.embed:
        return []
    chain = message_view.tasks_of(content.embed.get("chain"))[::-1]
    return [*message_view.tasks_of(content.embed.get("callbacks")), *chain][:10]


def _remarks(letter: DeadLetter) -> list[AuditEntry]:
    replays = OperationItem.objects.filter(letter=letter).values("operation")
    # Of a replay of many letters only its start belongs to each; the operation's page has its controls.
    started = Q(operation__in=replays, action="replay")
    rows = AuditEntry.objects.filter(Q(letter=letter) | started).select_related("user", "operation")
    return list(rows[:REMARKS_SHOWN])
