"""The dead letter store."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import Q

from jobs.core.words import REASON_WORDS, LetterState, Reason
from jobs.fields import JSONTextField
from jobs.models.groups import FailureGroup
from jobs.models.messages import Content, Routing


class ReasonChoices(models.TextChoices):
    """``core.words.Reason`` with its words."""

    FAILED = Reason.FAILED, REASON_WORDS[Reason.FAILED]
    RETRIES_EXHAUSTED = Reason.RETRIES_EXHAUSTED, REASON_WORDS[Reason.RETRIES_EXHAUSTED]
    TIMED_OUT = Reason.TIMED_OUT, REASON_WORDS[Reason.TIMED_OUT]
    WORKER_LOST = Reason.WORKER_LOST, REASON_WORDS[Reason.WORKER_LOST]
    REJECTED = Reason.REJECTED, REASON_WORDS[Reason.REJECTED]
    EXPIRED = Reason.EXPIRED, REASON_WORDS[Reason.EXPIRED]
    UNREGISTERED = Reason.UNREGISTERED, REASON_WORDS[Reason.UNREGISTERED]
    MALFORMED = Reason.MALFORMED, REASON_WORDS[Reason.MALFORMED]
    UNDECODABLE = Reason.UNDECODABLE, REASON_WORDS[Reason.UNDECODABLE]
    RETRY_NOT_SENT = Reason.RETRY_NOT_SENT, REASON_WORDS[Reason.RETRY_NOT_SENT]
    RESULT_NOT_STORED = Reason.RESULT_NOT_STORED, REASON_WORDS[Reason.RESULT_NOT_STORED]
    PUBLISH_FAILED = Reason.PUBLISH_FAILED, REASON_WORDS[Reason.PUBLISH_FAILED]
    BROKER = Reason.BROKER, REASON_WORDS[Reason.BROKER]


class DeadLetter(Routing):
    """A job that will not run again by itself; its ``message`` is kept whole.

    ``reason``, ``error_*``, ``worker`` and ``died_at`` are of the newest death; ``deaths`` counts
    them. Every change of state sets ``state_changed_at``: a selection is frozen by it.
    """

    class State(models.TextChoices):
        """``core.words.LetterState`` with its words."""

        DEAD = LetterState.DEAD, "Dead"
        REPLAYING = LetterState.REPLAYING, "Replaying"
        RESOLVED = LetterState.RESOLVED, "Resolved"
        PURGED = LetterState.PURGED, "Purged"

    uuid = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    state = models.CharField(max_length=16, choices=State.choices, default=State.DEAD)
    state_changed_at = models.DateTimeField()
    reason = models.CharField(max_length=24, choices=ReasonChoices.choices)
    group = models.ForeignKey(FailureGroup, on_delete=models.PROTECT, related_name="letters")
    error_type = models.CharField(max_length=255, blank=True)
    error = models.CharField(max_length=2000, blank=True)
    worker = models.CharField(max_length=255, blank=True)
    deaths = models.PositiveIntegerField(default=1)
    replays = models.PositiveIntegerField(default=0)
    first_died_at = models.DateTimeField()
    died_at = models.DateTimeField()
    published_at = models.DateTimeField(null=True, blank=True)
    # Why it cannot be replayed as it is; empty when it can.
    unreplayable = models.CharField(max_length=255, blank=True)
    # The first argument, masked, for the list: "order_id=48213".
    arguments_preview = models.CharField(max_length=255, blank=True)
    # One "\npath=value\n" line an argument, without masked ones, at most 4,000 characters:
    # what args.order_id:48213 searches.
    arguments_text = models.TextField(blank=True)
    # The names of the task's positional parameters, as the worker knew them; null when it did not. They tell
    # which positional arguments are masked.
    parameters = JSONTextField(null=True, blank=True)
    idempotency_key = models.CharField(max_length=255, blank=True)
    purged_by = models.ForeignKey(
        "jobs.Operation", null=True, blank=True, on_delete=models.SET_NULL, related_name="purged_letters"
    )
    # When a purged or resolved letter is deleted for good.
    delete_after = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-died_at", "-id")
        constraints = (
            models.CheckConstraint(
                name="dead_letter_state", condition=Q(state__in=[s.value for s in LetterState])
            ),
            models.CheckConstraint(
                name="dead_letter_reason", condition=Q(reason__in=[r.value for r in Reason])
            ),
        )
        indexes = (
            # The list, newest first; and the counts of the timeline, the groups and the breakdown, also
            # under reason:, -task: and several tasks or queues: they read only this index, not the rows,
            # which are twenty times as big.
            models.Index(
                fields=["state", "died_at", "id", "reason", "group", "task", "queue"],
                name="dead_letter_facts",
            ),
            # A group's letters and the groups table.
            models.Index(fields=["group", "state", "died_at"], name="dead_letter_group"),
            # task: and queue: in a search.
            models.Index(fields=["task", "state", "died_at"], name="dead_letter_task"),
            models.Index(fields=["queue", "state", "died_at"], name="dead_letter_queue"),
            # "Same root" on the letter's page, and find by job id.
            models.Index(fields=["task_id"], name="dead_letter_task_id"),
            models.Index(fields=["root_id"], name="dead_letter_root_id"),
            # Retention: what may be deleted now.
            models.Index(
                fields=["delete_after"],
                name="dead_letter_delete_after",
                condition=Q(delete_after__isnull=False),
            ),
            # The overview: what was replayed or purged lately. The dead, most of a storm, are not in it.
            models.Index(
                fields=["state_changed_at"],
                name="dead_letter_left",
                condition=~Q(state=LetterState.DEAD.value),
            ),
            # Whether a dead letter has changed since a selection was frozen.
            models.Index(
                fields=["state_changed_at"],
                name="dead_letter_changed",
                condition=Q(state=LetterState.DEAD.value),
            ),
            # How many of a selection cannot be replayed: few, so that they are not looked for in all rows.
            models.Index(
                fields=["unreplayable"], name="dead_letter_unreplayable", condition=Q(unreplayable__gt="")
            ),
            # Restore of an operation.
            models.Index(
                fields=["purged_by"], name="dead_letter_purged_by", condition=Q(purged_by__isnull=False)
            ),
        )
        permissions = (
            ("replay_deadletter", "Can replay dead letters"),
            ("edit_deadletter", "Can edit the arguments of a dead letter before its replay"),
            ("purge_deadletter", "Can purge dead letters"),
            ("restore_deadletter", "Can restore purged dead letters"),
            ("export_deadletter", "Can export dead letters"),
            ("reveal_deadletter", "Can reveal masked arguments"),
            ("note_deadletter", "Can write notes on dead letters"),
        )

    def __str__(self) -> str:
        return f"{self.short_id} {self.task} {self.reason}"

    @property
    def short_id(self) -> str:
        """The first eight characters of the id, as pages and messages show it."""
        return self.uuid.hex[:8]


class LetterMessage(Content):
    """The message of a letter, written with it and never changed.

    A table of its own, because SQLite writes a whole row anew for each change of one column: with the
    2 KB of a message beside the state, marking letters as replaying takes twice as long. Lists and
    counts never touch it.
    """

    letter = models.OneToOneField(
        DeadLetter, primary_key=True, on_delete=models.CASCADE, related_name="message"
    )

    class Meta:
        # Who may see the letter may see its message, masked; what unmasks it is a permission of the letter.
        default_permissions = ()

    def __str__(self) -> str:
        return f"message of letter {self.letter_id}"


class Death(models.Model):
    """One time a letter's job died. Known by publication and attempt, so two hooks make one death."""

    letter = models.ForeignKey(DeadLetter, on_delete=models.CASCADE, related_name="death_set")
    publication_id = models.CharField(max_length=255)
    attempt = models.PositiveIntegerField(default=0)
    reason = models.CharField(max_length=24, choices=ReasonChoices.choices)
    task_id = models.CharField(max_length=255, blank=True)
    error_type = models.CharField(max_length=255, blank=True)
    error = models.CharField(max_length=2000, blank=True)
    traceback = models.TextField(blank=True)
    worker = models.CharField(max_length=255, blank=True)
    boot_id = models.CharField(max_length=64, blank=True)
    published_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    died_at = models.DateTimeField()
    # What else the agent knew: delivery count, signal, exit code, the broker's x-death.
    details = models.JSONField(default=dict, blank=True)
    # The replay whose job died, when it was one.
    item = models.ForeignKey(
        "jobs.OperationItem", null=True, blank=True, on_delete=models.SET_NULL, related_name="deaths"
    )

    class Meta:
        ordering = ("-died_at", "-id")
        constraints = (models.UniqueConstraint(fields=["publication_id", "attempt"], name="death_once"),)

    def __str__(self) -> str:
        return f"{self.reason} at {self.died_at:%Y-%m-%d %H:%M:%S}"
