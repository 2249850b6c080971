"""The colour, icon and word of every state and reason, once. VISUAL: "States and reasons"."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.core.words import (
    REASON_MEANINGS,
    REASON_WORDS,
    AlertState,
    GroupState,
    LetterState,
    NotificationState,
    OperationState,
    Reason,
    RunOutcome,
    Severity,
)


@dataclass(frozen=True, slots=True)
class Mark:
    """A word with its colour (a badge's or a chart's) and icon."""

    word: str
    colour: str
    icon: str
    meaning: str = ""


LETTER_MARKS: dict[str, Mark] = {
    LetterState.DEAD: Mark("Dead", "red", "envelope"),
    LetterState.REPLAYING: Mark("Replaying", "blue", "replay"),
    LetterState.RESOLVED: Mark("Resolved", "green", "done"),
    LetterState.PURGED: Mark("Purged", "grey", "bin"),
}
GROUP_MARKS: dict[str, Mark] = {
    GroupState.NEW: Mark("New", "red", "star"),
    GroupState.REGRESSED: Mark("Regressed", "amber", "regressed"),
    GroupState.KNOWN: Mark("Known", "grey", "known"),
    GroupState.MUTED: Mark("Muted", "grey", "bell-off"),
    GroupState.RESOLVED: Mark("Resolved", "green", "done"),
}
OPERATION_MARKS: dict[str, Mark] = {
    OperationState.RUNNING: Mark("Running", "blue", "play"),
    OperationState.PAUSED: Mark("Paused", "grey", "pause"),
    OperationState.STOPPED: Mark("Stopped itself", "amber", "stopped"),
    OperationState.FINISHED: Mark("Finished", "green", "done"),
    OperationState.CANCELLED: Mark("Cancelled", "grey", "close"),
}
# Of a message in the outbox, as its page tells them apart; see presenters/outbox_page.py.
OUTBOX_MARKS: dict[str, Mark] = {
    "waiting": Mark("Waiting", "blue", "clock"),
    "held": Mark("Held", "grey", "hourglass"),
    "stuck": Mark("Stuck", "amber", "warning"),
    "gave_up": Mark("Given up", "red", "stopped"),
    "published": Mark("Sent", "green", "done"),
}
# Of what runops does, when it does not.
DUTY_MARKS: dict[str, Mark] = {
    "blocked": Mark("Blocked", "red", "stopped"),
    "idle": Mark("Not running", "red", "power"),
}
ALERT_MARKS: dict[str, Mark] = {
    AlertState.PENDING: Mark(
        "Pending", "amber", "hourglass", "Its condition holds, but not yet for long enough."
    ),
    AlertState.FIRING: Mark("Firing", "red", "bell"),
    AlertState.RESOLVED: Mark("Recovered", "green", "done"),
}
# Of a rule, as its list tells them apart; see presenters/alert_rules.py.
RULE_MARKS: dict[str, Mark] = {
    "quiet": Mark("Quiet", "green", "done"),
    "pending": ALERT_MARKS[AlertState.PENDING],
    "firing": ALERT_MARKS[AlertState.FIRING],
    "unknown": Mark("Unknown", "amber", "question"),
    "off": Mark("Off", "grey", "power"),
}
SEVERITY_MARKS: dict[str, Mark] = {
    Severity.CRITICAL: Mark("Critical", "red", "stopped"),
    Severity.WARNING: Mark("Warning", "amber", "warning"),
    Severity.INFO: Mark("Info", "grey", "info"),
}
NOTIFICATION_MARKS: dict[str, Mark] = {
    NotificationState.WAITING: Mark("Waiting", "blue", "clock"),
    NotificationState.SENT: Mark("Sent", "green", "done"),
    NotificationState.GAVE_UP: Mark("Not sent", "red", "failed"),
    NotificationState.SILENCED: Mark("Silenced", "grey", "bell-off"),
}
# How an attempt ended.
RUN_MARKS: dict[str, Mark] = {
    RunOutcome.DONE: Mark("Done", "green", "done"),
    RunOutcome.RETRIED: Mark("Retried", "amber", "retries", "It failed and is tried again."),
    RunOutcome.DEAD: Mark("Died", "red", "envelope", "It will not run again by itself."),
    RunOutcome.REVOKED: Mark("Revoked", "grey", "stopped", "Somebody took it back before it ran to its end."),
    RunOutcome.IGNORED: Mark("Ignored", "grey", "eye-off", "It asked that its end be recorded nowhere."),
    # Of a job that has not ended.
    "running": Mark("Running", "blue", "play"),
    "waiting": Mark("Waiting", "blue", "clock"),
    "unknown": Mark("Not known", "grey", "question"),
}
# Of a worker as jobs.metrics.workers tells it.
WORKER_MARKS: dict[str, Mark] = {
    "online": Mark("Online", "green", "done"),
    "lost": Mark("Lost", "red", "power", "It stopped reporting and has not said goodbye."),
    "gone": Mark("Gone", "grey", "close", "It was stopped."),
}
# Of a queue; see presenters/queue_list.py.
QUEUE_MARKS: dict[str, Mark] = {
    "consumed": Mark("Consumed", "green", "done"),
    "paused": Mark("Paused", "grey", "pause"),
    "unconsumed": Mark("Nobody consumes", "red", "stopped"),
    "unused": Mark("No consumer", "grey", "known"),
    "delayed": Mark("Delayed", "blue", "clock"),
    "unknown": Mark("Not known", "grey", "question"),
}
_REASON_LOOKS: dict[Reason, tuple[str, str]] = {
    Reason.RETRIES_EXHAUSTED: ("c-1", "retries"),
    Reason.FAILED: ("c-2", "failed"),
    Reason.TIMED_OUT: ("c-3", "hourglass"),
    Reason.WORKER_LOST: ("c-4", "power"),
    Reason.UNREGISTERED: ("c-5", "question"),
    Reason.REJECTED: ("c-rest", "rejected"),
    Reason.EXPIRED: ("c-rest", "expired"),
    Reason.MALFORMED: ("c-rest", "braces"),
    Reason.UNDECODABLE: ("c-rest", "binary"),
    Reason.RETRY_NOT_SENT: ("c-rest", "retry-not-sent"),
    Reason.RESULT_NOT_STORED: ("c-rest", "result-not-stored"),
    Reason.PUBLISH_FAILED: ("c-rest", "upload"),
    Reason.BROKER: ("c-rest", "broker"),
}
# In the order of the charts' colours.
REASON_MARKS: dict[str, Mark] = {
    reason: Mark(REASON_WORDS[reason], colour, icon, REASON_MEANINGS[reason])
    for reason, (colour, icon) in _REASON_LOOKS.items()
}
MARKS: dict[str, dict[str, Mark]] = {
    "letter": LETTER_MARKS,
    "group": GROUP_MARKS,
    "operation": OPERATION_MARKS,
    "outbox": OUTBOX_MARKS,
    "duty": DUTY_MARKS,
    "alert": ALERT_MARKS,
    "rule": RULE_MARKS,
    "severity": SEVERITY_MARKS,
    "notification": NOTIFICATION_MARKS,
    "worker": WORKER_MARKS,
    "queue": QUEUE_MARKS,
    "run": RUN_MARKS,
}
