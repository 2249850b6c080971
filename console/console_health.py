"""Whether the console itself does its work, for the foot of the side bar."""

from __future__ import annotations

from dataclasses import dataclass

from console.presenters.plain import visible
from jobs import conf, leases
from jobs.outbox.service import relay_duty_name

# What does not happen, by duty of runops; all others are relays.
NOT_DONE = {
    "collector": "dead letters are not collected",
    "runs": "attempts are not counted",
    "queues": "queues are not measured",
    "operations": "replays and purges stand still",
    "alerts": "no alert rule is judged",
    "notifications": "nobody is told of alerts",
}


@dataclass(frozen=True, slots=True)
class Health:
    """What the foot says; ``why`` names what is not done."""

    is_good: bool
    words: str
    why: str


def why_undone(duty: leases.Undone) -> str:
    """Say why a duty is not done, and what will end that."""
    if not duty.trouble:
        return "No runops does this. Start one: manage.py runops."
    return f"{visible(duty.reason, keep='')} It goes on by itself once it can."


def health() -> Health:
    """Read which duties of runops are done now. Two queries."""
    relays = [relay_duty_name(using) for using in conf.current().outbox_databases]
    undone = leases.undone([*NOT_DONE, *relays])
    if not undone:
        return Health(True, "Console is healthy", "runops carries out all of its duties")
    clauses = dict.fromkeys(
        NOT_DONE.get(each.duty, "what waits in the outbox is not sent") for each in undone
    )
    is_idle = any(not each.trouble for each in undone)
    words = "runops is not running" if is_idle else "runops is blocked"
    return Health(False, words, "; ".join(clauses))
