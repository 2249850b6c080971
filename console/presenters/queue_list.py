"""The queues as the list shows them: what waits, who consumes, how fast, worst first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from console import addresses, queue_charts
from console.presenters import figures
from console.presenters.plain import count_of, visible
from jobs.core.query import quote
from jobs.core.windows import Window
from jobs.metrics import letters, reading
from jobs.metrics.reading import Figures
from jobs.metrics.workers import boots_now
from jobs.queues import reading as queues
from jobs.queues import redelivery
from jobs.queues.consumers import consumers_now
from jobs.queues.reading import DepthPoint, QueueNow

_NAMED_IN_SENTENCE = 3
_NAME_LIMIT = 60
# A failure rate this much above that of the window before is worse.
_WORSE_BY = 0.005


@dataclass(frozen=True, slots=True)
class Row:
    """One queue. ``state`` is a name in ``states.QUEUE_MARKS``; figures are written, unknown ones as a dash."""

    name: str
    state: str
    state_words: str
    now: QueueNow | None
    figures: Figures
    grown: str
    grown_words: str
    depths: list[int | None]
    received: str
    done: str
    failure_rate: str
    is_failing_more: bool
    latency: str
    oldest: str
    held: int | None
    held_words: str
    left_words: str
    left_title: str
    consumer_words: str
    dead: int
    why_unknown: str

    @property
    def letters_href(self) -> str:
        """Where its dead letters are listed."""
        return addresses.letters_of(f"queue:{quote(self.name)}")

    @property
    def is_alarming(self) -> bool:
        """Whether somebody has to do something."""
        return self.state == "unconsumed"


@dataclass(frozen=True, slots=True)
class QueueList:
    """All queues, and what to know first."""

    rows: list[Row]
    sentence: str
    # Why nothing was counted lately, and when it was the last time.
    trouble: str
    counted_at: datetime | None
    ready: int | None


def read(window: Window, *, now: datetime) -> QueueList:
    """Read the list; a fixed number of queries, however many queues there are."""
    states = {each.queue: each for each in queues.now_of_all(now=now)}
    numbers = reading.by_queue(window, now=now)
    before = reading.finished_by("queue", window.before(), now=now)
    minutes = reading.known_minutes(window, now=now)
    names = sorted({*states, *(name for name, each in numbers.items() if each.received or each.attempts)})
    depths = queues.depth_series(window, queues=names, now=now)
    dead = letters.dead_by("queue", names)
    boots = boots_now(now=now)
    left = redelivery.left_behind(states.values(), boots, consumers_now(boots=boots, now=now), now=now)
    rows = [
        _row(
            name,
            states.get(name),
            numbers.get(name, Figures()),
            before.get(name, Figures()),
            depths.get(name, []),
            minutes=minutes,
            dead=dead.get(name, 0),
            left=left.get(name, 0),
        )
        for name in names
    ]
    rows.sort(key=_order)
    known = [each.now for each in rows if each.now is not None]
    ready = [each.ready for each in known if each.ready is not None]
    return QueueList(
        rows=rows,
        sentence=sentence([each.now for each in rows if each.now is not None], has_rows=bool(rows)),
        trouble=next((each.trouble for each in states.values() if each.is_stale), ""),
        counted_at=max((each.at for each in states.values()), default=None),
        ready=sum(ready) if ready else None,
    )


def state_of(queue: QueueNow | None) -> str:
    """Return how a queue is consumed: a name in ``states.QUEUE_MARKS``."""
    if queue is not None and queue.queue == queues.DELAYED:
        return "delayed"
    if queue is None or queue.is_stale:
        return "paused" if queue is not None and queue.is_paused else "unknown"
    if queue.is_paused:
        return "paused"
    if queue.is_unconsumed:
        return "unconsumed"
    if queue.consumers is None:
        return "unknown"
    return "consumed" if queue.consumers else "unused"


def sentence(known: Sequence[QueueNow], *, has_rows: bool) -> str:
    """Say what a tired person has to know first."""
    if not has_rows:
        return "No queue is known yet."
    fresh = [each for each in known if not each.is_stale]
    if not fresh:
        return "What waits on the queues is not known now: nobody has measured it lately."
    parts = []
    unconsumed = [each for each in fresh if state_of(each) == "unconsumed"]
    if unconsumed:
        number = sum(each.ready or 0 for each in unconsumed)
        one = len(unconsumed) == 1
        parts.append(
            f"Nobody consumes {'the queue' if one else f'{len(unconsumed):,} queues:'} "
            f"{_names(unconsumed)}, where {count_of(number, 'message')} {'waits' if number == 1 else 'wait'}."
        )
    paused = [each for each in fresh if each.is_paused]
    if paused:
        verb = "is" if len(paused) == 1 else "are"
        parts.append(f"{_names(paused)} {verb} paused.")
    ready = sum(each.ready or 0 for each in fresh)
    if not ready:
        parts.append("No message waits.")
    elif not unconsumed or ready > sum(each.ready or 0 for each in unconsumed):
        parts.append(_waiting(fresh, ready, in_all=bool(unconsumed)))
    return " ".join(parts)


def _waiting(fresh: Sequence[QueueNow], ready: int, *, in_all: bool) -> str:
    holding = sum(1 for each in fresh if each.ready)
    words = (
        f"{count_of(ready, 'message')} {'waits' if ready == 1 else 'wait'}{' in all' if in_all else ''} "
        f"on {count_of(holding, 'queue')}"
    )
    oldest = max(fresh, key=lambda each: each.oldest_age_seconds or 0.0)
    if oldest.oldest_age_seconds:
        age = figures.seconds(oldest.oldest_age_seconds)
        words += f"; the oldest has waited {age}{f', on {_name(oldest)}' if holding > 1 else ''}"
    return f"{words}."


def why_unknown(queue: QueueNow | None) -> str:
    """Say why the depth of a queue is not known; empty when it is."""
    if queue is None:
        return "Nobody has measured this queue."
    if queue.is_stale:
        return f"Measured last at {queue.at:%H:%M:%S} UTC. {queue.trouble or 'Is a runops running?'}"
    return queue.trouble if queue.ready is None else ""


def held_parts(queue: QueueNow | None) -> list[tuple[str, int | None]]:
    """Return where messages are held for later, and how many; None is not known."""
    if queue is None:
        return [("in workers", None), ("in the outbox", None), ("on the broker", None)]
    return [
        ("in workers", queue.held_by_workers),
        ("in the outbox", queue.held_in_outbox),
        ("on the broker", queue.held_by_broker),
    ]


def held_sum(queue: QueueNow | None) -> int | None:
    """Return how many messages are held for later wherever it is known; None when it is nowhere."""
    known = [number for _, number in held_parts(queue) if number is not None]
    return sum(known) if known else None


def held_words(queue: QueueNow | None) -> str:
    """Write where messages wait for their time: "12 in workers, 3 in the outbox"."""
    parts = [f"{number:,} {where}" for where, number in held_parts(queue) if number]
    unknown = [where for where, number in held_parts(queue) if number is None and where != "on the broker"]
    if unknown:
        parts.append(f"not known {' and '.join(unknown)}")
    return ", ".join(parts)


def left_words(number: int) -> str:
    """Write how many of the messages with workers are with none that is there."""
    return f"{number:,} with lost workers"


def left_title(number: int) -> str:
    """Say what becomes of these."""
    one = number == 1
    return (
        f"{number:,} of these {'was' if one else 'were'} taken by workers that are lost: Redis hands "
        f"{'it' if one else 'them'} out again when {'its' if one else 'their'} visibility timeout is over."
    )


def is_worse(now: float | None, before: float | None) -> bool:
    """Tell whether a failure rate is higher than in the window before."""
    return now is not None and before is not None and now - before > _WORSE_BY


def _row(
    name: str,
    queue: QueueNow | None,
    numbers: Figures,
    before: Figures,
    depths: Sequence[DepthPoint | None],
    *,
    minutes: float,
    dead: int,
    left: int,
) -> Row:
    state = state_of(queue)
    levels = [None if point is None else point.ready for point in depths]
    grown, grown_words = _grown(queue, levels)
    is_known = queue is not None and not queue.is_stale
    return Row(
        name=name,
        state=state,
        state_words=_state_words(queue, state),
        now=queue if is_known else None,
        figures=numbers,
        grown=grown,
        grown_words=grown_words,
        depths=queue_charts.depths(depths),
        received=figures.optional(figures.rate(numbers.received, minutes), figures.a_minute),
        done=figures.optional(figures.rate(numbers.done, minutes), figures.a_minute),
        failure_rate=figures.optional(numbers.failure_rate, figures.share),
        is_failing_more=is_worse(numbers.failure_rate, before.failure_rate),
        latency=figures.optional(numbers.latency_percentile(95), figures.seconds),
        oldest=figures.optional(queue.oldest_age_seconds if is_known and queue else None, figures.seconds),
        held=held_sum(queue) if is_known else None,
        held_words=held_words(queue),
        left_words=left_words(left) if left else "",
        left_title=left_title(left) if left else "",
        consumer_words=count_of(queue.consumers, "consumer") if queue and queue.consumers else "",
        dead=dead,
        why_unknown=why_unknown(queue),
    )


def _state_words(queue: QueueNow | None, state: str) -> str:
    if queue is not None and queue.is_paused:
        who = f" by {visible(queue.paused_by[:_NAME_LIMIT], keep='')}" if queue.paused_by else ""
        return f"Workers are told not to consume from it, paused{who}."
    return {
        "consumed": "A worker consumes from it.",
        "unconsumed": "Messages wait and no worker consumes from it.",
        "unused": "No worker consumes from it, and no message waits.",
        "delayed": "The broker holds these messages until their time, and does not tell for which queues.",
    }.get(state, why_unknown(queue) or "Whether a worker consumes from it is not known.")


def _grown(queue: QueueNow | None, levels: Sequence[int | None]) -> tuple[str, str]:
    first = next((level for level in levels if level is not None), None)
    if queue is None or queue.is_stale or queue.ready is None or first is None:
        return "", ""
    apart = queue.ready - first
    return (f"{apart:+,}".replace("-", "−") if apart else "±0"), f"{first:,} at the beginning of the window"


def _order(row: Row) -> tuple[int, int, str]:
    """Put the worst first; depths of one size keep their order by name, so that rows do not jump."""
    ready = row.now.ready if row.now is not None and row.now.ready is not None else 0
    rank = {"unconsumed": 0, "unknown": 2, "unused": 3, "delayed": 4}.get(row.state, 1)
    return rank, -ready.bit_length(), row.name


def _names(found: Sequence[QueueNow]) -> str:
    names = [_name(each) for each in found[:_NAMED_IN_SENTENCE]]
    if (more := len(found) - len(names)) > 0:
        names.append(f"{more:,} more")
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _name(queue: QueueNow) -> str:
    name = visible(queue.queue[:_NAME_LIMIT], keep="")
    return f"{name}…" if len(queue.queue) > _NAME_LIMIT else name
