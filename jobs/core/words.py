"""The names of reasons and states, as they are stored, typed, shown and explained."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Why a job will not run again by itself."""

    FAILED = "failed"
    RETRIES_EXHAUSTED = "retries_exhausted"
    TIMED_OUT = "timed_out"
    WORKER_LOST = "worker_lost"
    REJECTED = "rejected"
    EXPIRED = "expired"
    UNREGISTERED = "unregistered"
    MALFORMED = "malformed"
    UNDECODABLE = "undecodable"
    RETRY_NOT_SENT = "retry_not_sent"
    RESULT_NOT_STORED = "result_not_stored"
    PUBLISH_FAILED = "publish_failed"
    BROKER = "broker"


REASON_WORDS: dict[Reason, str] = {
    Reason.FAILED: "Failed",
    Reason.RETRIES_EXHAUSTED: "Retries exhausted",
    Reason.TIMED_OUT: "Timed out",
    Reason.WORKER_LOST: "Worker lost",
    Reason.REJECTED: "Rejected",
    Reason.EXPIRED: "Expired",
    Reason.UNREGISTERED: "Unregistered",
    Reason.MALFORMED: "Malformed",
    Reason.UNDECODABLE: "Undecodable",
    Reason.RETRY_NOT_SENT: "Retry not sent",
    Reason.RESULT_NOT_STORED: "Result not stored",
    Reason.PUBLISH_FAILED: "Publish failed",
    Reason.BROKER: "Broker",
}

REASON_MEANINGS: dict[Reason, str] = {
    Reason.FAILED: "It raised an error that is not retried.",
    Reason.RETRIES_EXHAUSTED: "It failed on every attempt it was allowed.",
    Reason.TIMED_OUT: "It ran past its time limit and was stopped.",
    Reason.WORKER_LOST: "The process that ran it died (killed, out of memory, it exited), or its worker fell silent.",
    Reason.REJECTED: "It asked to be rejected and not queued again.",
    Reason.EXPIRED: "It waited past the time at which it was to be dropped.",
    Reason.UNREGISTERED: "The worker that received it knows no task of this name.",
    Reason.MALFORMED: "The message has no id, the wrong shape, or a start time that cannot be read.",
    Reason.UNDECODABLE: "The worker could not or was not allowed to decode the body.",
    Reason.RETRY_NOT_SENT: "It asked for a retry, but the broker did not take the message.",
    Reason.RESULT_NOT_STORED: "It ran to its end, but its result could not be stored.",
    Reason.PUBLISH_FAILED: "It could not be published after many tries.",
    Reason.BROKER: "The broker dropped it into its dead letter exchange.",
}


# The error type of a job whose worker fell silent. That the worker is dead is a presumption: the job may go on.
PRESUMED_LOST = "jobs.WorkerLost"


class LetterState(StrEnum):
    """Where a dead letter is: dead → replaying → resolved or dead; dead → purged → dead or gone."""

    DEAD = "dead"
    REPLAYING = "replaying"
    RESOLVED = "resolved"
    PURGED = "purged"


class GroupState(StrEnum):
    """What is known of a failure group."""

    NEW = "new"
    REGRESSED = "regressed"
    KNOWN = "known"
    MUTED = "muted"
    RESOLVED = "resolved"


class OperationKind(StrEnum):
    """What an operation does to its letters."""

    REPLAY = "replay"
    PURGE = "purge"
    RESTORE = "restore"


class OperationState(StrEnum):
    """running ⇄ paused → running; running → stopped (by itself), finished; any but the ended → cancelled."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    FINISHED = "finished"
    CANCELLED = "cancelled"


class ItemState(StrEnum):
    """One letter within an operation.

    pending → sent → done, already_done, died, unknown; pending → skipped or refused.
    """

    PENDING = "pending"
    SENT = "sent"
    DONE = "done"
    # Its idempotency key had been done by another job: nothing ran.
    ALREADY_DONE = "already_done"
    DIED = "died"
    UNKNOWN = "unknown"
    SKIPPED = "skipped"
    REFUSED = "refused"


class OutboxState(StrEnum):
    """pending → published or gave_up."""

    PENDING = "pending"
    PUBLISHED = "published"
    GAVE_UP = "gave_up"


class LedgerState(StrEnum):
    """An idempotency key: running → done, or free again after a failure; free → running."""

    RUNNING = "running"
    DONE = "done"
    FREE = "free"


class RunOutcome(StrEnum):
    """How one attempt ended."""

    DONE = "done"
    RETRIED = "retried"
    DEAD = "dead"
    REVOKED = "revoked"
    IGNORED = "ignored"


class RollupLevel(StrEnum):
    """How long a rollup's span is, in UTC."""

    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"


class RollupScope(StrEnum):
    """What a rollup counts: one task on one queue, a task, a queue, or everything."""

    BOTH = "both"
    TASK = "task"
    QUEUE = "queue"
    ALL = "all"


class SampleLevel(StrEnum):
    """A sample of a queue at a moment, or what a minute or an hour of them came to."""

    SAMPLE = "sample"
    MINUTE = "minute"
    HOUR = "hour"


class QueueActionKind(StrEnum):
    """What runops does to a queue."""

    PURGE = "purge"


class QueueActionState(StrEnum):
    """waiting → running → finished or failed."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


class AlertKind(StrEnum):
    """What an alert rule watches."""

    LETTERS_GROWING = "letters_growing"
    GROUP_FAILING = "group_failing"
    QUEUE_DEPTH = "queue_depth"
    OLDEST_AGE = "oldest_age"
    LATENCY = "latency"
    FAILURE_RATE = "failure_rate"
    RETRY_RATE = "retry_rate"
    NO_CONSUMER = "no_consumer"
    NOTHING_RECEIVED = "nothing_received"
    WORKER_LOST = "worker_lost"
    BEAT_SILENT = "beat_silent"
    OUTBOX_LAG = "outbox_lag"
    COLLECTOR_LAG = "collector_lag"


class AlertState(StrEnum):
    """pending → firing → resolved; a pending one whose condition ends in time is forgotten."""

    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"


class Severity(StrEnum):
    """How urgent an alert is."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


class NotificationKind(StrEnum):
    """Why somebody is told."""

    FIRED = "fired"
    REMINDER = "reminder"
    RECOVERED = "recovered"
    TEST = "test"


class NotificationState(StrEnum):
    """waiting → sent, or gave_up after many tries; silenced ones are never sent."""

    WAITING = "waiting"
    SENT = "sent"
    GAVE_UP = "gave_up"
    SILENCED = "silenced"
