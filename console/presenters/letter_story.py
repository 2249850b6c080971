"""What happened to a job, in sentences, and whether a replay is possible and safe. Only what the rows know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from console.presenters.plain import count_of, duration, short_task, visible
from jobs.core import replay
from jobs.core.words import PRESUMED_LOST, ItemState, LedgerState, LetterState, Reason
from jobs.idempotency import LedgerLine
from jobs.models import DeadLetter, Death, OperationItem

# Endings before the task's own code was entered.
NEVER_RAN = frozenset(
    {
        Reason.EXPIRED,
        Reason.UNREGISTERED,
        Reason.MALFORMED,
        Reason.UNDECODABLE,
        Reason.PUBLISH_FAILED,
    }
)
# Endings in the middle of the task's own code.
CUT_OFF = frozenset({Reason.TIMED_OUT, Reason.WORKER_LOST})
_TYPE_LIMIT = 120
_TEXT_LIMIT = 240


@dataclass(frozen=True, slots=True)
class Notice:
    """The deciding note: green, blue, amber, red or grey; a bold headline; what follows from it."""

    level: str
    icon: str
    headline: str
    text: str
    href: str = ""
    link_text: str = ""


def when(at: datetime, now: datetime) -> str:
    """Say when, in UTC: "at 02:53:22", or "on 3 Nov at 02:53" when that was not today."""
    return f"at {at:%H:%M:%S}" if at.date() == now.date() else f"on {at.day} {at:%b} at {at:%H:%M}"


def ordinal(number: int) -> str:
    """Return "first", "second", "third", then "4th"."""
    words = {1: "first", 2: "second", 3: "third"}
    if number in words:
        return words[number]
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in {11, 12, 13} else "th"
    return f"{number}{suffix}"


def what_happened(
    letter: DeadLetter, deaths: Sequence[Death], items: Sequence[OperationItem], *, now: datetime
) -> list[str]:
    """Return the paragraphs of the story; ``deaths`` and ``items`` oldest first."""
    paragraphs = []
    if deaths:
        paragraphs.append(_first_death(letter, deaths[0], now))
    later = [death for death in deaths[1:] if death.item_id is not None]
    if len(later) > 3:
        paragraphs.append(
            f"It was replayed and died again {count_of(len(later), 'time')}, last at "
            f"{when(later[-1].died_at, now)}: {_reason_words(later[-1])}."
        )
    else:
        actors = {item.pk: item.operation.actor for item in items}
        paragraphs.extend(
            _later_death(death, actors.get(death.item_id or 0, ""), items, now) for death in later
        )
    others = len(deaths) - 1 - len(later)
    if others > 0:
        paragraphs.append(
            f"It died {count_of(others, 'more time')} without a replay from this console: its message was "
            "delivered or published again elsewhere."
        )
    fate = _fate(letter, items, now)
    if letter.state == LetterState.DEAD and paragraphs:
        paragraphs[-1] += f" {fate}"
    else:
        paragraphs.append(fate)
    return paragraphs


def notice(
    letter: DeadLetter,
    deaths: Sequence[Death],
    items: Sequence[OperationItem],
    *,
    is_known_to_workers: bool | None,
    ledger: LedgerLine | None = None,
    now: datetime,
) -> Notice:
    """Return the one fact that decides what to do.

    ``is_known_to_workers`` is None when no worker is online, ``ledger`` when the letter has no idempotency key
    or its ledger knows no run of it.
    """
    if letter.state == LetterState.REPLAYING:
        return _replaying(items, now)
    if letter.state == LetterState.RESOLVED:
        return _resolved(items, now)
    if letter.state == LetterState.PURGED:
        return _purged(letter, now)
    if letter.unreplayable:
        return Notice(
            "red",
            "stopped",
            "This letter cannot be replayed as it is.",
            visible(letter.unreplayable, keep=""),
        )
    if ledger is not None and ledger.state != LedgerState.FREE:
        return _held_or_done(letter, ledger, now)
    reasons = {Reason(death.reason) for death in deaths} or {Reason(letter.reason)}
    if Reason.RESULT_NOT_STORED in reasons:
        return Notice(
            "amber",
            "warning",
            "A replay repeats its effects.",
            "The job ran to its end; only its result could not be stored. A replay does all of it again, "
            "so the next page asks you to confirm that.",
        )
    if ledger is None and letter.error_type == PRESUMED_LOST:
        worker = _short(letter.worker) or "it"
        return Notice(
            "amber",
            "warning",
            "The job may still be running.",
            "Its worker fell silent, and nobody saw it die: if it only stands still or is cut off, the job goes on, "
            f"and a replay does it a second time. Make sure first that {worker} is gone. "
            "Should it be heard of again, this letter is resolved.",
        )
    if is_known_to_workers is False:
        return Notice(
            "amber",
            "warning",
            "A replay would probably die again.",
            f"No online worker knows {visible(letter.task[:_TYPE_LIMIT], keep='')}.",
        )
    if ledger is None and reasons <= NEVER_RAN and all(death.attempt == 0 for death in deaths):
        return Notice(
            "blue",
            "shield",
            "The job never ran, so a replay repeats nothing.",
            _cause_advice(Reason(letter.reason)),
        )
    if letter.idempotency_key:
        return _free(letter, ledger)
    task = visible(short_task(letter.task)[:_TYPE_LIMIT], keep="") or "The task"
    if reasons & CUT_OFF:
        return Notice(
            "amber",
            "warning",
            "A replay may repeat effects.",
            f"The job was stopped in the middle, and {task} has no idempotency key. What it had done by then "
            "this console cannot see.",
        )
    return Notice(
        "amber",
        "warning",
        "A replay may repeat effects.",
        f"{task} has no idempotency key: what a failed attempt did before its error is done again.",
    )


def _held_or_done(letter: DeadLetter, ledger: LedgerLine, now: datetime) -> Notice:
    """Say what the ledger keeps a replay from doing."""
    key, job = _short(letter.idempotency_key), _short(ledger.task_id, 8).rstrip("…") or "of an unknown id"
    if ledger.state == LedgerState.DONE:
        at = f" {when(ledger.completed_at, now)}" if ledger.completed_at else ""
        who = "This job itself" if ledger.task_id == letter.task_id else f"Job {job}"
        return Notice(
            "green",
            "done",
            f"Already done{at}: a replay will do nothing.",
            f"{who} completed {key}. A replayed job returns its stored result and runs nothing.",
        )
    until = ledger.lease_expires_at
    holder = _short(ledger.holder) or "a worker"
    if until is not None and until <= now:
        return Notice(
            "blue",
            "shield",
            "A replay takes it over.",
            f"Job {job} ran it on {holder} and has shown no life since its hold on {key} ran out {when(until, now)}. "
            "What it had done by then, the ledger cannot see.",
        )
    text = f" until {until:%H:%M:%S} UTC, and longer while it runs" if until is not None else ""
    return Notice(
        "blue",
        "play",
        f"It is running now, on {holder}.",
        f"Job {job} holds {key}{text}. A replayed job waits for that; if it is done by then, it does nothing.",
    )


def _free(letter: DeadLetter, ledger: LedgerLine | None) -> Notice:
    key = _short(letter.idempotency_key)
    if ledger is None:
        return Notice(
            "blue",
            "shield",
            f"The ledger knows no run of {key}, so a replay runs it.",
            "The key is sent unchanged. Whether the task looks at it, and what a failed attempt did outside, "
            "this console cannot see.",
        )
    return Notice(
        "blue",
        "shield",
        f"The ledger has no completed run of {key}, so a replay runs it.",
        "Once one completes, later replays do nothing. What a failed attempt did outside, the ledger cannot see.",
    )


def refusal(letter: DeadLetter, action: str, items: Sequence[OperationItem]) -> str:
    """Say why an action on this letter is refused in its state; empty when it is not."""
    state = LetterState(letter.state)
    if action == "restore":
        return "" if state == LetterState.PURGED else f"Only a purged letter can be restored; it is {state}."
    if state == LetterState.REPLAYING:
        item = _open_item(items)
        where = f" in operation {item.operation_id}" if item else ""
        return f"It is being replayed{where}. Wait for the outcome."
    if state == LetterState.RESOLVED:
        return "It is resolved: its replay ran to its end."
    if state == LetterState.PURGED:
        return "It is purged. Restore it first."
    if action == "replay" and letter.unreplayable:
        return visible(letter.unreplayable, keep="")
    if action == "edit" and letter.unreplayable:
        return visible(letter.unreplayable, keep="")
    if action == "edit" and not replay.is_json(letter.content_type):
        kind = visible(letter.content_type[:60], keep="") or "no content type"
        return f"Only JSON arguments can be edited; this body is {kind}."
    return ""


def _first_death(letter: DeadLetter, death: Death, now: datetime) -> str:
    at = when(death.died_at, now)
    text = _death_sentence(letter, death, at)
    if death.reason in CUT_OFF and death.error_type != PRESUMED_LOST:
        text += " What it had done by then is not known."
    return text


def _death_sentence(letter: DeadLetter, death: Death, at: str) -> str:  # noqa: C901
    error = _error_name(death)
    worker = f" on {_short(death.worker)}" if death.worker else ""
    ran = f" after running {duration(seconds)}" if (seconds := _ran_seconds(death)) is not None else ""
    # A full stop follows it.
    message = f": {_short(death.error, _TEXT_LIMIT).rstrip('.')}" if death.error else ""
    match Reason(death.reason):
        case Reason.FAILED:
            attempt = f" on attempt {death.attempt + 1}" if death.attempt else ""
            return (
                f"The job raised {error}{attempt}{ran}{worker}, and that error is not retried. It died {at}."
            )
        case Reason.RETRIES_EXHAUSTED:
            return (
                f"The job failed on all {count_of(death.attempt + 1, 'attempt')} it was allowed, the last "
                f"time with {error}{worker}. It died {at}."
            )
        case Reason.TIMED_OUT:
            limit = _time_limit(letter, death)
            return f"The job ran past its time limit{limit}{worker} and was stopped{ran}. It died {at}."
        case Reason.WORKER_LOST if death.error_type == PRESUMED_LOST:
            who = f" {_short(death.worker)}" if death.worker else ""
            ran = f" for {duration(seconds)}" if seconds is not None else ""
            # Its own words, to the end: they say whether the worker came back, perhaps after a replay.
            message = f": {_short(death.error, 2 * _TEXT_LIMIT).rstrip('.')}" if death.error else ""
            return f"The worker{who} had run the job{ran} when it was last heard of {at}{message}."
        case Reason.WORKER_LOST:
            return f"The process that ran the job{worker} was lost{ran}{message}. It died {at}.{_comebacks(death)}"
        case Reason.REJECTED:
            return f"The task asked{worker} to reject its message and not to queue it again. It died {at}."
        case Reason.EXPIRED:
            return (
                f"The job waited past the time at which it was to be dropped. It expired {at} and never ran."
            )
        case Reason.UNREGISTERED:
            who = _short(death.worker) or "A worker"
            return f"{who} received the job {at} and knows no task named {_short(letter.task)}. It never ran."
        case Reason.MALFORMED:
            return f"The message could not be read as a job {at}{message}. It never ran."
        case Reason.UNDECODABLE:
            kind = _short(letter.content_type) or "no content type"
            who = _short(death.worker) or "The worker"
            return f"{who} could not or may not decode its body ({kind}) {at}{message}. It never ran."
        case Reason.RETRY_NOT_SENT:
            return (
                f"The job failed with {error}{worker} and asked for a retry, but the broker did not take the "
                f"new message. It died {at}."
            )
        case Reason.RESULT_NOT_STORED:
            return (
                f"The job ran to its end{worker} {at}, but its result could not be stored{message}. Its "
                "effects happened."
            )
        case Reason.PUBLISH_FAILED:
            return f"The job could not be published{message}. It was given up {at} and never ran."
        case Reason.BROKER:
            return f"The broker moved the message to its dead letter exchange {at}{message}."


def _later_death(death: Death, actor: str, items: Sequence[OperationItem], now: datetime) -> str:
    sent_at = next((item.sent_at for item in items if item.pk == death.item_id), None)
    sent = f" {when(sent_at, now)}" if sent_at else ""
    who = _short(actor) or "Somebody"
    again = ""
    if death.attempt and death.reason == Reason.RETRIES_EXHAUSTED:
        again = f" It failed {count_of(death.attempt + 1, 'more time')}."
    return (
        f"{who} replayed it{sent}.{again} It died again {when(death.died_at, now)}: {_reason_words(death)}."
    )


def _fate(letter: DeadLetter, items: Sequence[OperationItem], now: datetime) -> str:
    at = when(letter.state_changed_at, now)
    match LetterState(letter.state):
        case LetterState.REPLAYING:
            item = _open_item(items)
            who = f"{_short(item.operation.actor)} replayed it" if item else "It was replayed"
            return f"{who} {at}. Its outcome is not known yet."
        case LetterState.RESOLVED:
            done = _done_item(items)
            who = f" by {_short(done.operation.actor)}" if done else ""
            if done is not None and done.state == ItemState.ALREADY_DONE:
                return (
                    f"It was replayed{who}, and its replay found {at} that another job had done it already: "
                    "nothing ran. Nothing is left to do."
                )
            return f"It was replayed{who} and ran to its end {at}. Nothing is left to do."
        case LetterState.PURGED:
            return f"It was purged {at} and will not run again."
        case LetterState.DEAD:
            last = items[-1] if items else None
            if last is not None and last.state == ItemState.UNKNOWN:
                return (
                    "It was replayed, but no outcome came back in time: the job may have run. "
                    "It will not run again by itself."
                )
            return "It will not run again by itself."


def _replaying(items: Sequence[OperationItem], now: datetime) -> Notice:
    item = _open_item(items)
    if item is None:
        return Notice("blue", "replay", "It is being replayed.", "Its outcome is not known yet.")
    since = f" for {duration((now - item.sent_at).total_seconds())}" if item.sent_at else ""
    return Notice(
        "blue",
        "replay",
        f"It is being replayed in operation {item.operation_id}.",
        f"The job was sent again and has been waiting{since} for its outcome. It cannot be replayed twice at once.",
        href=f"operation:{item.operation_id}",
        link_text="Open the operation",
    )


def _resolved(items: Sequence[OperationItem], now: datetime) -> Notice:
    done = _done_item(items)
    if done is None:
        return Notice("green", "done", "Resolved.", "There is nothing left to do.")
    at = f" {when(done.ended_at, now)}" if done.ended_at else ""
    if done.state == ItemState.ALREADY_DONE:
        return Notice(
            "green",
            "done",
            "Already done.",
            f"Its replay found{at} that another job had done it: it returned the stored result and ran nothing.",
            href=f"operation:{done.operation_id}",
            link_text=f"Open operation {done.operation_id}",
        )
    return Notice(
        "green",
        "done",
        f"Done{at}.",
        "Its replay ran to its end, so there is nothing left to do.",
        href=f"operation:{done.operation_id}",
        link_text=f"Open operation {done.operation_id}",
    )


def _purged(letter: DeadLetter, now: datetime) -> Notice:
    if letter.delete_after is None:
        text = "It can be restored."
    else:
        text = f"It is deleted on {letter.delete_after.day} {letter.delete_after:%b, %H:%M} UTC. Until then it can be restored."
    purge = letter.purged_by_id
    return Notice(
        "grey",
        "bin",
        f"Purged {when(letter.state_changed_at, now)}.",
        text,
        href=f"operation:{purge}" if purge else "",
        link_text=f"Open operation {purge}" if purge else "",
    )


def _cause_advice(reason: Reason) -> str:
    match reason:
        case Reason.EXPIRED:
            return "It is sent without its expiry. Whether it is still wanted, its arguments may tell."
        case Reason.UNREGISTERED:
            return "It needs a worker that knows the task."
        case Reason.MALFORMED:
            return "The message itself is at fault, so a worker will probably refuse it again."
        case Reason.UNDECODABLE:
            return "It needs a worker that accepts this content type; the body is sent as it is, unread."
    return "It is sent as it was."


def _done_item(items: Sequence[OperationItem]) -> OperationItem | None:
    done = {ItemState.DONE, ItemState.ALREADY_DONE}
    return next((item for item in reversed(items) if item.state in done), None)


def _open_item(items: Sequence[OperationItem]) -> OperationItem | None:
    return next((item for item in reversed(items) if item.state == ItemState.SENT), None)


def _reason_words(death: Death) -> str:
    return str(Death(reason=death.reason).get_reason_display()).lower()


def _short(text: str, limit: int = _TYPE_LIMIT) -> str:
    shown = visible(text[:limit], keep="").strip()
    return f"{shown}…" if len(text) > limit else shown


def _error_name(death: Death) -> str:
    return _short(death.error_type.rsplit(".", 1)[-1]) or "an error"


def _ran_seconds(death: Death) -> float | None:
    if death.started_at is None or death.died_at <= death.started_at:
        return None
    return (death.died_at - death.started_at).total_seconds()


def _time_limit(letter: DeadLetter, death: Death) -> str:
    seconds = death.details.get("time_limit_seconds") if isinstance(death.details, dict) else None
    if seconds is None:
        headers = letter.message.headers
        limits = headers.get("timelimit") if isinstance(headers, dict) else None
        if isinstance(limits, list) and len(limits) == 2:
            hard, soft = limits
            seconds = soft if "Soft" in death.error_type else hard
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        return ""
    return f" of {duration(seconds)}"


def _comebacks(death: Death) -> str:
    """Say how often the broker handed the job out again after it had taken its process along."""
    count = death.details.get("comebacks") if isinstance(death.details, dict) else None
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        return ""
    return f" It came back {count_of(count, 'time')} and lost its process each time."
