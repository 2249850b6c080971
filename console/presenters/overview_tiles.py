"""The six tiles of the overview: a figure each, its change against the window before, and one fact."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.urls import reverse

from console import times
from console.presenters import figures as words
from console.presenters.figures import Change, change
from console.presenters.plain import count_of, visible
from jobs.core.words import AlertKind
from jobs.overview import Overview
from jobs.overview_numbers import Numbers

NO_DATA = "no data"
# Nothing to compare with.
UNCHANGED = Change()
_NAME_LIMIT = 40
# A message that is sent this instant is due for a moment.
_LAG_NOISE_SECONDS = 0.5
# A minute of which no worker has told for so long is not still to come.
_SILENT_AFTER = timedelta(minutes=3)


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure that leads to its page; ``why`` says since when it is not known, ``alarm`` that an alert fires."""

    name: str
    figure: str
    unit: str = ""
    change: Change = UNCHANGED
    fact: str = ""
    href: str = ""
    why: str = ""
    alarm: str = ""


def present(found: Overview, numbers: Numbers, *, window_query: str, now: datetime) -> list[Tile]:
    """Return the tiles in reading order. Beside a time that is over, those of what is so now say that."""

    def page(name: str) -> str:
        return f"{reverse(f'console:{name}')}{'?' if window_query else ''}{window_query}"

    def state(tile: Tile) -> Tile:
        return tile if numbers.window.end > now else replace(tile, name=f"{tile.name} now")

    return [
        state(_dead_letters(found, numbers)),
        _failure_rate(found, numbers, now=now, href=page("jobs")),
        _latency(found, numbers, now=now, href=page("queues")),
        state(_backlog(found, numbers, now=now, href=page("queues"))),
        state(_workers(found, numbers, href=page("workers"))),
        state(_outbox(found, numbers)),
    ]


def _dead_letters(found: Overview, numbers: Numbers) -> Tile:
    per_minute = found.died_last_five_minutes / 5
    state = numbers.state_before
    return Tile(
        "Dead letters",
        f"{found.dead:,}",
        change=change(
            found.dead, None if state is None else state.dead_letters, words=words.count, more_is="worse"
        ),
        fact=f"growing {words.a_minute(per_minute)} /min" if per_minute >= 1 else "not growing now",
        href=reverse("console:letters"),
        alarm=_alarm(found, AlertKind.LETTERS_GROWING),
    )


def _failure_rate(found: Overview, numbers: Numbers, *, now: datetime, href: str) -> Tile:
    figures = numbers.figures
    alarm = _alarm(found, AlertKind.FAILURE_RATE)
    if figures is None:
        return Tile("Failure rate", NO_DATA, href=href, why=_since(numbers, now=now), alarm=alarm)
    rate = figures.failure_rate
    if rate is None:
        return Tile("Failure rate", words.UNKNOWN, href=href, fact="no job finished", alarm=alarm)
    figure, unit = words.split(words.share(rate))
    before = None if numbers.before is None else numbers.before.failure_rate
    silent = _silence(numbers, now=now)
    return Tile(
        "Failure rate",
        figure,
        unit,
        _rate_change(rate, before),
        silent or f"{figures.dead:,} of {count_of(figures.finished, 'job')}",
        href=href,
        alarm=alarm,
    )


def _latency(found: Overview, numbers: Numbers, *, now: datetime, href: str) -> Tile:
    alarm = _alarm(found, AlertKind.LATENCY)
    figures = numbers.figures
    if figures is None:
        return Tile("Latency p99", NO_DATA, href=href, why=_since(numbers, now=now), alarm=alarm)
    p99 = figures.latency_percentile(99)
    if p99 is None:
        fact = "no job told when it was published" if figures.attempts else "no job ran"
        return Tile("Latency p99", words.UNKNOWN, href=href, fact=fact, alarm=alarm)
    figure, unit = words.split(words.seconds(p99))
    others = ", ".join(
        f"p{percent} {words.optional(figures.latency_percentile(percent), words.seconds)}"
        for percent in (50, 95)
    )
    before = None if numbers.before is None else numbers.before.latency_percentile(99)
    return Tile(
        "Latency p99",
        figure,
        unit,
        change(p99, before, words=words.seconds, more_is="worse"),
        others,
        href=href,
        alarm=alarm,
    )


def _backlog(found: Overview, numbers: Numbers, *, now: datetime, href: str) -> Tile:
    alarm = _alarm(found, AlertKind.QUEUE_DEPTH) or _alarm(found, AlertKind.OLDEST_AGE)
    known = [queue for queue in found.queues if queue.ready is not None and not queue.is_stale]
    if not known:
        counted = max((queue.at for queue in found.queues), default=None)
        why = "no queue was counted" if counted is None else f"since {times.clock(counted, now=now)}"
        return Tile("Backlog", NO_DATA, href=href, why=why, alarm=alarm)
    ready = sum(queue.ready or 0 for queue in known)
    ages = [queue.oldest_age_seconds for queue in known if queue.oldest_age_seconds is not None]
    fact = f"oldest {words.seconds(max(ages))}" if ages else "nothing waits" if not ready else "age not known"
    return Tile(
        "Backlog",
        f"{ready:,}",
        change=change(ready, numbers.backlog_before, words=words.count, more_is="worse"),
        fact=fact,
        href=href,
        alarm=alarm,
    )


def _workers(found: Overview, numbers: Numbers, *, href: str) -> Tile:
    alarm = _alarm(found, AlertKind.WORKER_LOST) or _alarm(found, AlertKind.NO_CONSUMER)
    if not found.boots:
        return Tile("Workers", NO_DATA, href=href, why="no worker has reported", alarm=alarm)
    online, lost = found.online_count, found.lost
    state = numbers.state_before
    if lost:
        name = visible(lost[0].hostname[:_NAME_LIMIT], keep="")
        fact = f"{name} is lost" if len(lost) == 1 else f"{name} and {len(lost) - 1} more are lost"
    else:
        fact = "none is lost" if online else "all have stopped"
    return Tile(
        "Workers",
        f"{online:,}",
        f"of {online + len(lost):,}" if lost else "online",
        change(online, None if state is None else state.workers_online, words=words.count, more_is="better"),
        fact,
        href=href,
        alarm=alarm,
    )


def _outbox(found: Overview, numbers: Numbers) -> Tile:
    outbox = found.outbox
    figure, unit = words.split(words.seconds(outbox.lag_seconds))
    state = numbers.state_before
    waiting = f"{count_of(outbox.pending, 'message')} {'waits' if outbox.pending == 1 else 'wait'}"
    stuck = f"{outbox.stuck:,} stuck" if outbox.stuck else "none is stuck"
    return Tile(
        "Outbox lag",
        figure,
        unit,
        _lag_change(outbox.lag_seconds, None if state is None else state.outbox_lag_seconds),
        f"{waiting}, {stuck}" if outbox.pending else "no message waits",
        href=reverse("console:outbox"),
        alarm=_alarm(found, AlertKind.OUTBOX_LAG),
    )


def _rate_change(now: float, before: float | None) -> Change:
    if before is not None and words.points(abs(now - before)) == words.points(0):
        return Change("same", "equal", "no change", f"from {words.share(before)}")
    return change(now, before, words=words.share, difference=words.points, more_is="worse")


def _lag_change(now: float, before: float | None) -> Change:
    if before is not None and abs(now - before) < _LAG_NOISE_SECONDS:
        return Change("same", "equal", "no change", f"from {words.seconds(before)}")
    return change(now, before, words=words.seconds, more_is="worse")


def _alarm(found: Overview, kind: AlertKind) -> str:
    return "alert" if any(each.rule.kind == kind for each in found.alerts) else ""


def _since(numbers: Numbers, *, now: datetime) -> str:
    if numbers.newest_report is None:
        return "no worker has reported"
    return f"since {times.clock(numbers.newest_report, now=now)}"


def _silence(numbers: Numbers, *, now: datetime) -> str:
    """Say since when workers are silent, within a window that has numbers."""
    newest = numbers.newest_report
    if newest is None or now - newest < _SILENT_AFTER or numbers.window.end <= now:
        return ""
    return f"no data since {times.clock(newest, now=now)}"
