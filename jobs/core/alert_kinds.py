"""What alert rules can watch: the words, units and usual numbers of each kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from jobs.core.words import AlertKind, Severity


class Unit(StrEnum):
    """In what a kind's value, threshold and recovery threshold are; as it stands after the figure."""

    A_MINUTE = "a minute"
    MESSAGES = "messages"
    JOBS = "jobs"
    SECONDS = "seconds"
    PER_CENT = "%"
    WORKERS = "workers"


class Subject(StrEnum):
    """Of what a rule has an alert each: one for all that it watches, or one a queue, group or worker."""

    ALL = ""
    QUEUE = "queue"
    GROUP = "group"
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of rule. ``uses`` names the fields of a rule that mean something to it.

    ``defaults`` are the values with which a form begins. A kind without a ``threshold`` among what it
    uses fires as soon as there is one.
    """

    kind: AlertKind
    title: str
    # What it watches and when it fires, in one or two sentences.
    watches: str
    unit: Unit
    subject: Subject
    uses: frozenset[str]
    defaults: Mapping[str, float | int | str] = field(default_factory=dict)

    @property
    def has_threshold(self) -> bool:
        """Whether an operator chooses the limit."""
        return "threshold" in self.uses


def _kind(
    kind: AlertKind,
    title: str,
    watches: str,
    unit: Unit,
    subject: Subject,
    uses: str,
    **defaults: float | str,
) -> tuple[AlertKind, Kind]:
    return kind, Kind(kind, title, watches, unit, subject, frozenset(uses.split()), defaults)


KINDS: dict[AlertKind, Kind] = dict(
    (
        _kind(
            AlertKind.LETTERS_GROWING,
            "Dead letters grow",
            "Counts the jobs that die, as an average a minute over the window. A few that die all the time stay"
            " below the limit; an outage does not.",
            Unit.A_MINUTE,
            Subject.ALL,
            "task queue threshold window_minutes",
            threshold=20,
            window_minutes=5,
            hold_seconds=0,
            severity=Severity.CRITICAL,
        ),
        _kind(
            AlertKind.GROUP_FAILING,
            "A new failure",
            "Counts the jobs that die of each failure group that is new or came back. Ends when somebody has"
            " looked at the group, or its jobs no longer die.",
            Unit.JOBS,
            Subject.GROUP,
            "task queue threshold window_minutes",
            threshold=10,
            window_minutes=30,
            hold_seconds=120,
            cool_down_seconds=3600,
            severity=Severity.WARNING,
        ),
        _kind(
            AlertKind.QUEUE_DEPTH,
            "A queue is long",
            "Counts the messages that wait on each queue.",
            Unit.MESSAGES,
            Subject.QUEUE,
            "queue threshold",
            threshold=10_000,
            hold_seconds=300,
        ),
        _kind(
            AlertKind.OLDEST_AGE,
            "A message waits long",
            "Measures how long the oldest message of each queue has waited.",
            Unit.SECONDS,
            Subject.QUEUE,
            "queue threshold",
            threshold=900,
            hold_seconds=60,
        ),
        _kind(
            AlertKind.LATENCY,
            "Jobs start late",
            "Measures how long jobs waited from their publication to their start, as a percentile of those that"
            " started in the window.",
            Unit.SECONDS,
            Subject.ALL,
            "task queue threshold window_minutes percentile minimum_attempts",
            threshold=60,
            window_minutes=5,
            percentile=95,
            minimum_attempts=20,
            hold_seconds=60,
        ),
        _kind(
            AlertKind.FAILURE_RATE,
            "Jobs fail",
            "Measures how many of the jobs that ended in the window died. Retries decide nothing and do not count.",
            Unit.PER_CENT,
            Subject.ALL,
            "task queue threshold window_minutes minimum_attempts",
            threshold=10,
            window_minutes=5,
            minimum_attempts=50,
            hold_seconds=60,
            severity=Severity.CRITICAL,
        ),
        _kind(
            AlertKind.RETRY_RATE,
            "Jobs are retried",
            "Measures how many of the attempts that ended in the window failed and are to be tried again. Jobs that"
            " are retried without end never die, and nothing else tells of them.",
            Unit.PER_CENT,
            Subject.ALL,
            "task queue threshold window_minutes minimum_attempts",
            threshold=50,
            window_minutes=10,
            minimum_attempts=100,
            hold_seconds=300,
            cool_down_seconds=3600,
        ),
        _kind(
            AlertKind.NO_CONSUMER,
            "Nobody works on a queue",
            "Fires when messages wait on a queue and no worker consumes it: all workers are gone, or the name of"
            " the queue is wrong. A queue that is paused is left out.",
            Unit.MESSAGES,
            Subject.QUEUE,
            "queue",
            hold_seconds=60,
            recovery_hold_seconds=30,
            severity=Severity.CRITICAL,
        ),
        _kind(
            AlertKind.NOTHING_RECEIVED,
            "Workers take nothing",
            "Fires when messages wait on a queue, its workers live and have time, and none has taken a message in"
            " the window.",
            Unit.MESSAGES,
            Subject.QUEUE,
            "queue window_minutes",
            window_minutes=5,
            hold_seconds=60,
            severity=Severity.CRITICAL,
        ),
        _kind(
            AlertKind.WORKER_LOST,
            "A worker was lost",
            "Fires when a worker fell silent without a goodbye. Ends when it is back, or when the window is over.",
            Unit.WORKERS,
            Subject.WORKER,
            "queue window_minutes",
            window_minutes=60,
            recovery_hold_seconds=0,
        ),
        _kind(
            AlertKind.BEAT_SILENT,
            "Beat is silent",
            "Measures how long ago beat was last seen, once it was seen: schedules send nothing while it is away."
            " A beat that was stopped in order counts as none.",
            Unit.SECONDS,
            Subject.ALL,
            "threshold",
            threshold=120,
            recovery_hold_seconds=30,
            severity=Severity.CRITICAL,
        ),
        _kind(
            AlertKind.OUTBOX_LAG,
            "The outbox lags",
            "Measures for how long the oldest message of the outbox has been due and not published.",
            Unit.SECONDS,
            Subject.ALL,
            "threshold",
            threshold=120,
            hold_seconds=30,
            recovery_hold_seconds=60,
        ),
        _kind(
            AlertKind.COLLECTOR_LAG,
            "The collector lags behind",
            "Measures for how long dead letters and numbers have waited for the collector: until they are read,"
            " pages and other rules tell less than is true.",
            Unit.SECONDS,
            Subject.ALL,
            "threshold",
            threshold=120,
            hold_seconds=30,
            recovery_hold_seconds=60,
        ),
    )
)
