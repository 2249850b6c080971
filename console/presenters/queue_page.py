"""One queue: its figures with what changed, its charts, the tasks on it, and what operators did with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from console import addresses, number_charts, queue_charts
from console.chart_parts import Marker, NumberChart
from console.presenters import figures, queue_list
from console.presenters.figures import Tile
from console.presenters.plain import count_of, visible
from console.windows import PageWindow
from jobs.core.query import quote
from jobs.core.words import QueueActionState
from jobs.metrics import letters, names, reading
from jobs.metrics.reading import Figures
from jobs.metrics.workers import boots_now
from jobs.models import QueueAction, QueuePause
from jobs.queues import reading as queues
from jobs.queues import redelivery
from jobs.queues.consumers import consumers_now, of_queue
from jobs.queues.reading import DepthPoint, QueueNow

TASKS_SHOWN = 50
PURGES_SHOWN = 5
_NAME_LIMIT = 80
# The sentence above says why.
_NOT_KNOWN = "Not known now."


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task on a queue, or a queue of a task, within the window."""

    name: str
    done: str
    retried: int
    dead: int
    failure_rate: str
    is_failing_more: bool
    latency: str
    runtime: str


@dataclass(frozen=True, slots=True)
class Purge:
    """A purge of what waited: how far it is, in words."""

    action: QueueAction
    words: str
    is_open: bool

    @property
    def parts(self) -> list[tuple[str, int]]:
        """Its progress as ``progress_bar`` draws it."""
        return [("done", self.action.taken), ("rest", max(0, self.action.expected - self.action.taken))]


@dataclass(frozen=True, slots=True)
class QueuePage:
    """What the page of a queue shows. ``state`` is a name in ``states.QUEUE_MARKS``."""

    name: str
    state: str
    sentence: str
    trouble: str
    now: QueueNow | None
    pause: QueuePause | None
    tiles: list[Tile]
    tasks: list[TaskRow]
    tasks_left_out: int
    purges: list[Purge]
    dead: int
    depths: list[DepthPoint | None]
    series: list[Figures | None]

    @property
    def is_held_by_broker(self) -> bool:
        """Whether it is what the broker holds until its time: no queue that anybody acts on."""
        return self.state == "delayed"

    @property
    def pause_href(self) -> str:
        """The page that asks before it is paused."""
        return addresses.queue_action("pause", self.name)

    @property
    def resume_href(self) -> str:
        """What resumes it, by POST."""
        return addresses.queue_action("resume", self.name)

    @property
    def purge_href(self) -> str:
        """The page that asks before what waits is purged."""
        return addresses.queue_action("purge", self.name)

    @property
    def waiting_href(self) -> str:
        """The page with its oldest messages."""
        return addresses.queue_action("waiting", self.name)

    @property
    def letters_href(self) -> str:
        """Where its dead letters are listed."""
        return addresses.letters_of(f"queue:{quote(self.name)}")

    @property
    def jobs_href(self) -> str:
        """Where the finished attempts from it are listed."""
        return addresses.jobs_of(f"queue:{quote(self.name)}")

    @property
    def letters_words(self) -> str:
        """The link to its dead letters, with their count."""
        return count_of(self.dead, "dead letter")

    @property
    def why_not_purged(self) -> str:
        """Why nothing can be purged, "" when something can."""
        if self.ready is None:
            return "How many messages wait is not known."
        return "" if self.ready else "No message waits."

    @property
    def is_paused(self) -> bool:
        """Whether workers are told not to consume from it."""
        return self.pause is not None

    @property
    def ready(self) -> int | None:
        """How many messages wait, None when that is not known."""
        return self.now.ready if self.now is not None else None


def read(name: str, page_window: PageWindow, *, now: datetime) -> QueuePage | None:
    """Read the page; None when nothing is known of such a queue."""
    window = page_window.window
    queue = queues.now_of(name, now=now)
    numbers = reading.totals(window.start, window.end, queue=name, now=now)
    tasks = reading.by_task(window, queue=name, now=now)
    pause = QueuePause.objects.filter(queue=name).first()
    purges = list(
        QueueAction.objects.filter(queue=name).select_related("operation").order_by("-id")[:PURGES_SHOWN]
    )
    dead = letters.dead_by("queue", [name]).get(name, 0)
    is_known = queue is not None or tasks or pause is not None or purges or dead
    if not is_known and not names.is_queue(name, now=now):
        return None
    series = reading.series(window, queue=name, now=now)
    before = reading.totals(window.before().start, window.start, queue=name, now=now)
    tasks_before = reading.by_task(window.before(), queue=name, now=now)
    depths = queues.depth_series(window, queues=[name], now=now).get(name, [])
    known = queue if queue is not None and not queue.is_stale else None
    why = queue_list.why_unknown(queue)
    said = sentence(known, pause, why=why)
    minutes = reading.known_minutes(window, now=now)
    rows = task_rows(tasks, tasks_before, minutes=minutes)
    boots = boots_now(now=now)
    there = consumers_now(boots=boots, now=now)
    consumers = [each.hostname for each in of_queue(there, name)]
    left = redelivery.left_behind([queue] if queue is not None else (), boots, there, now=now).get(name, 0)
    return QueuePage(
        name=name,
        state="paused" if pause is not None else queue_list.state_of(queue),
        sentence=said,
        trouble="" if queue is None or queue.trouble in said else queue.trouble,
        now=known,
        pause=pause,
        tiles=[
            *_depth_tiles(known, depths, consumers, left),
            *number_tiles(
                numbers,
                before,
                minutes=minutes,
                before_minutes=reading.known_minutes(window.before(), now=now),
            ),
        ],
        tasks=rows[:TASKS_SHOWN],
        tasks_left_out=max(0, len(rows) - TASKS_SHOWN),
        purges=[_purge(each) for each in purges],
        dead=dead,
        depths=depths,
        series=series,
    )


def charts(
    page: QueuePage, page_window: PageWindow, *, markers: Sequence[Marker], now: datetime
) -> list[tuple[NumberChart, str]]:
    """Draw what waited, how old it was, how long jobs waited for their start, and how they ended.

    Each with what stands there when nothing of it is known.
    """
    window = page_window.window
    depths = {page.name: page.depths}
    uncounted = "This queue was not counted in this time."
    has_reports = any(each is not None for each in page.series)
    return [
        (queue_charts.depth(window, depths, markers=markers, now=now), uncounted),
        (
            queue_charts.oldest_age(window, depths, markers=markers, now=now),
            "Nobody could tell how old the messages were." if any(page.depths) else uncounted,
        ),
        (number_charts.latency(window, page.series, markers=markers, now=now), nothing_ran(has_reports)),
        (number_charts.throughput(window, page.series, markers=markers, now=now), nothing_ran(has_reports)),
    ]


def nothing_ran(has_reports: bool) -> str:
    """Say why there are no durations: nothing ran, or nobody reported."""
    return "No job started in this time." if has_reports else "No worker has reported in this time."


def sentence(queue: QueueNow | None, pause: QueuePause | None, *, why: str) -> str:
    """Say what a tired person has to know first."""
    if queue is not None and queue.queue == queues.DELAYED:
        held = count_of(queue.held_by_broker or 0, "message")
        return f"The broker holds {held} until their time. It does not tell for which queues."
    if queue is None or queue.ready is None:
        return why or "What waits on it is not known now."
    if not queue.ready:
        waiting = "No message waits"
    else:
        waiting = f"{count_of(queue.ready, 'message')} {'waits' if queue.ready == 1 else 'wait'}"
        if queue.oldest_age_seconds:
            oldest = "it has" if queue.ready == 1 else "the oldest has"
            waiting += f"; {oldest} waited {figures.seconds(queue.oldest_age_seconds)}"
    if pause is not None:
        return f"{waiting}. Workers are told not to take more until somebody resumes it."
    if queue.is_unconsumed:
        return f"{waiting}, and no worker consumes from it: nothing will run until one does."
    if queue.consumers:
        return f"{waiting}. {count_of(queue.consumers, 'consumer')} {'takes' if queue.consumers == 1 else 'take'} from it."
    return f"{waiting}."


def number_tiles(numbers: Figures, before: Figures, *, minutes: float, before_minutes: float) -> list[Tile]:
    """Return throughput, failure rate and latency with their changes against the window before.

    ``minutes`` and ``before_minutes`` are those of which some worker told.
    """
    done, done_before = figures.rate(numbers.done, minutes), None
    if before.attempts or before.received:
        done_before = figures.rate(before.done, before_minutes)
    received = figures.rate(numbers.received, minutes)
    no_numbers = "" if minutes else "No worker reported in this time."
    nothing = no_numbers or "Nothing finished in this time."
    p95 = numbers.latency_percentile(95)
    latency, latency_unit = figures.split(figures.optional(p95, figures.seconds))
    rate, rate_unit = figures.split(figures.optional(numbers.failure_rate, figures.share))
    return [
        Tile(
            "Done",
            figures.optional(done, figures.a_minute),
            "/min" if done is not None else "",
            figures.change(done, done_before, words=figures.a_minute),
            "" if received is None else f"{figures.a_minute(received)} /min received",
            why=no_numbers,
        ),
        Tile(
            "Failure rate",
            rate,
            rate_unit,
            figures.change(
                numbers.failure_rate,
                before.failure_rate,
                words=figures.share,
                difference=figures.points,
                more_is="worse",
            ),
            f"{numbers.dead:,} of {count_of(numbers.finished, 'job')}" if numbers.finished else "",
            why="" if numbers.finished else nothing,
        ),
        Tile(
            "Latency p95",
            latency,
            latency_unit,
            figures.change(p95, before.latency_percentile(95), words=figures.seconds, more_is="worse"),
            others(numbers.latency_percentile(50), numbers.latency_percentile(99)),
            why="" if p95 is not None else nothing,
        ),
    ]


def task_rows(now: dict[str, Figures], before: dict[str, Figures], *, minutes: float) -> list[TaskRow]:
    """Return a row for each name, those with most deaths first, then the busiest."""
    rows = []
    for name, each in sorted(now.items(), key=lambda item: (-item[1].dead, -item[1].attempts, item[0])):
        if not each.attempts and not each.received:
            continue
        old = before.get(name, Figures()).failure_rate
        rate = each.failure_rate
        rows.append(
            TaskRow(
                name=name,
                done=figures.optional(figures.rate(each.done, minutes), figures.a_minute),
                retried=each.retried,
                dead=each.dead,
                failure_rate=figures.optional(rate, figures.share),
                is_failing_more=queue_list.is_worse(rate, old),
                latency=figures.optional(each.latency_percentile(95), figures.seconds),
                runtime=figures.optional(each.runtime_percentile(95), figures.seconds),
            )
        )
    return rows


def _depth_tiles(
    queue: QueueNow | None, depths: list[DepthPoint | None], hostnames: list[str], left: int
) -> list[Tile]:
    ready = queue.ready if queue is not None else None
    first = next((each.ready for each in depths if each is not None and each.ready is not None), None)
    oldest = queue.oldest_age_seconds if queue is not None else None
    held, unacknowledged = queue_list.held_sum(queue), queue.unacknowledged if queue is not None else None
    consumers = queue.consumers if queue is not None else None
    consuming = [visible(each[:_NAME_LIMIT], keep="") for each in hostnames]
    more = f" and {len(consuming) - 1:,} more" if len(consuming) > 1 else ""
    by = f"{consuming[0]}{more}" if consuming else ""
    return [
        Tile(
            "Waiting",
            figures.optional(ready, figures.count),
            "",
            figures.change(ready, first, words=figures.count, more_is="worse"),
            f"oldest {figures.seconds(oldest)}" if oldest else _no_age(queue),
            why=_NOT_KNOWN if ready is None else "",
        ),
        Tile(
            "With workers",
            figures.optional(unacknowledged, figures.count),
            "",
            fact=_with_workers_fact(held, left),
            title=_with_workers_title(queue, held, left),
            why=_NOT_KNOWN
            if queue is None
            else "Neither the broker nor its workers tell it."
            if unacknowledged is None
            else "",
        ),
        Tile(
            "Consumers",
            figures.optional(consumers, figures.count),
            "",
            fact=_consumer_fact(queue) or by,
            tone="worse" if queue is not None and queue.is_unconsumed else "",
            title="Of these is known that they consume from it: " + ", ".join(consuming) if consuming else "",
            why=_NOT_KNOWN if consumers is None else "",
        ),
    ]


def _consumer_fact(queue: QueueNow | None) -> str:
    if queue is None:
        return ""
    if queue.is_paused:
        return "paused"
    return "nobody consumes" if queue.is_unconsumed else ""


def _with_workers_fact(held: int | None, left: int) -> str:
    later = f"{held:,} held for later" if held else "none held for later"
    return later if not left else f"{queue_list.left_words(left)}{f', {later}' if held else ''}"


def _with_workers_title(queue: QueueNow | None, held: int | None, left: int) -> str:
    words = ["Delivered and not acknowledged."]
    if queue is not None and queue.is_told_by_workers:
        words = ["Delivered and not acknowledged, as the workers tell: this broker does not."]
    if left:
        words.append(queue_list.left_title(left))
    if held:
        words.append(f"Held for later: {queue_list.held_words(queue)}.")
    return " ".join(words)


def _no_age(queue: QueueNow | None) -> str:
    if queue is None or not queue.ready:
        return ""
    return "age not known"


def others(p50: float | None, p99: float | None) -> str:
    """Write the percentiles that stand beside the one of a tile: "p50 64 ms, p99 4.8 s"."""
    if p50 is None or p99 is None:
        return ""
    return f"p50 {figures.seconds(p50)}, p99 {figures.seconds(p99)}"


def _purge(action: QueueAction) -> Purge:
    words = {
        QueueActionState.WAITING: f"{action.expected:,} to purge; runops has not begun",
        QueueActionState.RUNNING: f"{action.taken:,} of {action.expected:,} purged so far",
        QueueActionState.FINISHED: f"{count_of(action.taken, 'message')} purged",
        QueueActionState.FAILED: f"stopped after {action.taken:,} of {action.expected:,}: "
        f"{visible(action.error, keep='')}",
    }[QueueActionState(action.state)]
    if action.state == QueueActionState.FINISHED and action.taken < action.expected:
        words += f"; the other {action.expected - action.taken:,} had been taken by workers"
    return Purge(action, words, is_open=action.state in {QueueActionState.WAITING, QueueActionState.RUNNING})
