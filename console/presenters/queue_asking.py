"""What the pages say that ask before a queue is paused or purged, and what is said when it is done."""

from __future__ import annotations

from dataclasses import dataclass

from console.presenters import queue_list
from console.presenters.plain import count_of, visible
from console.presenters.queue_page import QueuePage
from jobs.models import QueueAction
from jobs.queues.actions import Paused
from jobs.queues.reading import QueueNow

TYPED_ABOVE = 1_000
_NAMED = 3
_NAME_LIMIT = 80


@dataclass(frozen=True, slots=True)
class Asked:
    """One question: what follows, the button, or why it cannot be done."""

    sentences: list[str]
    button: str
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class AskedPurge:
    """The question before a purge. ``ready`` go, ``taken`` by workers and ``held`` stay; None is not known."""

    ready: int
    taken: int | None
    held: int | None
    held_words: str
    meanwhile: str
    button: str
    why_not: str


def pause(page: QueuePage) -> Asked:
    """Put the question before a pause into words."""
    if page.pause is not None:
        who = visible(page.pause.actor[:_NAME_LIMIT], keep="")
        return Asked([], "", f"{who} paused it already. Resume it when it is to run again.")
    consumers = page.now.consumers if page.now is not None else None
    sentences = [
        "Workers are told not to take messages from it any more, also those that start later. "
        "Messages still arrive and wait; nothing is lost.",
        "What workers had already taken still runs, and a retry that is due later waits with the rest.",
    ]
    if consumers:
        sentences.append(
            f"{count_of(consumers, 'consumer')} {'takes' if consumers == 1 else 'take'} from it now."
        )
    elif consumers == 0:
        sentences.append(
            "No worker consumes from it now. One that starts is told within seconds, and takes messages until then."
        )
    return Asked(sentences, "Pause 1 queue")


def purge(page: QueuePage) -> AskedPurge:
    """Put the question before a purge into numbers."""
    going_on = next((each for each in page.purges if each.is_open), None)
    why_not = ""
    if going_on is not None:
        why_not = f"A purge of it goes on: {going_on.words}. Wait for its end."
    elif page.ready is None:
        why_not = f"How many messages wait is not known, so none can be purged. {page.sentence}"
    elif not page.ready:
        why_not = "No message waits on it: there is nothing to purge."
    ready = page.ready or 0
    return AskedPurge(
        ready=ready,
        taken=_taken(page.now),
        held=queue_list.held_sum(page.now),
        held_words=queue_list.held_words(page.now),
        meanwhile=_meanwhile(page),
        button=f"Purge {count_of(ready, 'message')}",
        why_not=why_not,
    )


def paused_words(done: Paused) -> str:
    """Say what a pause came to."""
    words = [f"{_name(done.queue)} is paused."]
    if done.told:
        words.append(f"{count_of(len(done.told), 'worker')} stopped taking from it.")
    if done.silent:
        words.append(_silent_words(done))
    if done.held:
        words.append(
            f"{count_of(done.held, 'message')} that workers had taken still {'runs' if done.held == 1 else 'run'}."
        )
    return " ".join(words)


def resumed_words(done: Paused) -> str:
    """Say what a resume came to."""
    words = [f"{_name(done.queue)} is resumed."]
    if done.told:
        words.append(
            f"{count_of(len(done.told), 'worker')} {'takes' if len(done.told) == 1 else 'take'} from it again."
        )
    if done.silent:
        words.append(_silent_words(done))
    if not done.told and not done.silent:
        words.append("No worker was stopped for the pause, so none had to be told.")
    return " ".join(words)


def _silent_words(done: Paused) -> str:
    """Say who was not told yet, and why nobody could be where that is so."""
    why = f" {visible(done.trouble, keep='')}" if done.trouble else ""
    return f"{_names(done.silent)} did not answer and will be told again.{why}"


def purged_words(action: QueueAction) -> str:
    """Say what a purge that was confirmed comes to."""
    return (
        f"{count_of(action.expected, 'message')} of {_name(action.queue)} {'is' if action.expected == 1 else 'are'} "
        "being purged. How far it is stands on this page."
    )


def _meanwhile(page: QueuePage) -> str:
    """Say that workers go on taking what is purged; empty when they do not."""
    consumers = page.now.consumers if page.now is not None else None
    if page.is_paused or not consumers:
        return ""
    takes = "takes" if consumers == 1 else "take"
    return (
        f"{count_of(consumers, 'consumer')} {takes} messages from it meanwhile, and these run. "
        "Pause the queue first if none is to run."
    )


def _taken(queue: QueueNow | None) -> int | None:
    """Return what workers took and do not hold for later; those it holds are among the unacknowledged."""
    if queue is None or queue.unacknowledged is None:
        return None
    return max(0, queue.unacknowledged - (queue.held_by_workers or 0))


def _name(queue: str) -> str:
    return visible(queue[:_NAME_LIMIT], keep="")


def _names(hostnames: list[str]) -> str:
    shown = [_name(each) for each in hostnames[:_NAMED]]
    if len(hostnames) > _NAMED:
        shown.append(f"{len(hostnames) - _NAMED:,} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
