"""What the pages that ask show: the selection in words, the sum, the proposal, and what is carried to the button."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.core import signing

from console.forms.replay import default_stages
from console.presenters.plain import count_of, duration
from jobs.core.words import OperationKind, Reason
from jobs.errors import OperationRefused
from jobs.models import Worker
from jobs.operations import Preview, Selection
from jobs.search import Share

_SALT = "console.confirm"
TOKEN_SECONDS = 24 * 60 * 60
ONLINE_SECONDS = 60
TYPED_ABOVE = 1_000
SHARES_SHOWN = 8
# Somebody may still wait on the job's id; workers discard that of an expired job.
MAY_KEEP_ID = frozenset(
    {
        Reason.FAILED,
        Reason.RETRIES_EXHAUSTED,
        Reason.TIMED_OUT,
        Reason.WORKER_LOST,
        Reason.RETRY_NOT_SENT,
    }
)


@dataclass(frozen=True, slots=True)
class Frozen:
    """A selection as it was shown, and how many letters were shown."""

    selection: Selection
    count: int


@dataclass(frozen=True, slots=True)
class Column:
    """One breakdown: its title, the biggest shares, how many names are left out."""

    title: str
    shares: list[Share]
    more: int
    is_reason: bool
    is_task: bool


def write_token(frozen: Frozen) -> str:
    """Write what was shown so that only this console can have written it."""
    values = {"selection": frozen.selection.to_json(), "count": frozen.count}
    return signing.dumps(values, salt=_SALT, compress=True)


def read_token(token: str) -> Frozen:
    """Read what the page carried.

    Raises:
        OperationRefused: when it was changed or is older than a day.
    """
    try:
        values: dict[str, Any] = signing.loads(token, salt=_SALT, max_age=TOKEN_SECONDS)
        return Frozen(selection=Selection.from_json(values["selection"]), count=int(values["count"]))
    except signing.SignatureExpired:
        raise OperationRefused(
            "Cannot act on this page: it is older than a day. Select the letters again."
        ) from None
    except (signing.BadSignature, KeyError, TypeError, ValueError):
        raise OperationRefused(
            "Cannot act on this page: its selection is missing or was changed. Select the letters again."
        ) from None


def columns(preview: Preview) -> list[Column]:
    """Return the breakdowns, the biggest first, each cut to what a page shows."""
    rows = (
        ("By task", preview.by_task, False),
        ("By queue", preview.by_queue, False),
        ("By reason", preview.by_reason, True),
    )
    return [
        Column(
            title,
            shares[:SHARES_SHOWN],
            max(0, len(shares) - SHARES_SHOWN),
            is_reason,
            shares is preview.by_task,
        )
        for title, shares, is_reason in rows
    ]


def may_keep_id(preview: Preview) -> bool:
    """Whether the same job id makes sense for all of them."""
    return bool(preview.by_reason) and all(share.name in MAY_KEEP_ID for share in preview.by_reason)


def ran_to_their_end(preview: Preview) -> int:
    """Count the letters whose job was done but for its result."""
    return sum(share.count for share in preview.by_reason if share.name == Reason.RESULT_NOT_STORED)


def has_run_to_its_end(selection: Selection) -> bool:
    """Whether there is such a letter: what the button's answer needs, without a whole preview."""
    return selection.queryset(OperationKind.REPLAY).filter(reason=Reason.RESULT_NOT_STORED).exists()


def stage_sizes(sizes: Iterable[int | None], count: int) -> list[int]:
    """Return how many letters each stage sends of ``count``."""
    result, left = [], count
    for size in sizes:
        now = left if size is None else min(size, left)
        if now:
            result.append(now)
        left -= now
    return result


def sends_words(sizes: list[int]) -> str:
    """Say how many go when: "Sends 1, then 10, 100 and 4,184."."""
    if len(sizes) < 2:
        return "Sends all at once, without stages." if sizes and sizes[0] > 1 else ""
    head, *rest = [f"{size:,}" for size in sizes]
    tail = rest[0] if len(rest) == 1 else f"{', '.join(rest[:-1])} and {rest[-1]}"
    return f"Sends {head}, then {tail}."


def duration_words(count: int, rate: float | None) -> str:
    """Say how long sending takes."""
    if rate is None:
        return "As fast as the broker takes them."
    return f"About {duration(max(1, round(count / rate)))}, plus the waits between stages."


def proposed_stages(count: int) -> list[int]:
    """Return the sizes the stage fields start with."""
    return default_stages(count)


def online_queues(*, now: datetime) -> list[str]:
    """Return the queues that online workers read."""
    since = now - timedelta(seconds=ONLINE_SECONDS)
    lists = Worker.objects.filter(seen_at__gte=since).values_list("queues", flat=True)
    return sorted({str(queue) for queues in lists if isinstance(queues, list) for queue in queues})


def title(kind: OperationKind, frozen: Frozen) -> str:
    """Return the page's title."""
    verb = kind.value.capitalize()
    ids = frozen.selection.ids
    return f"{verb} letter {ids[0][:8]}" if len(ids) == 1 else f"{verb} dead letters"


def button(kind: OperationKind, count: int) -> str:
    """Return the words of the button that acts."""
    return f"{kind.value.capitalize()} {count_of(count, 'letter')}"
