"""What operators do: operations, their letters, stages and log, and the audit."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q

from jobs.core.words import ItemState, OperationKind, OperationState
from jobs.models.groups import FailureGroup
from jobs.models.letters import DeadLetter


class Operation(models.Model):
    """A replay, purge or restore of one or many letters, carried out by runops.

    ``selection`` is frozen when it is confirmed, as ``jobs.operations.Selection`` writes it: the
    query with absolute times, or ids; the highest letter id; the moment. Counts are not stored
    here: they are counted from the items, so they always add up.
    """

    class Kind(models.TextChoices):
        """``core.words.OperationKind`` with its words."""

        REPLAY = OperationKind.REPLAY, "Replay"
        PURGE = OperationKind.PURGE, "Purge"
        RESTORE = OperationKind.RESTORE, "Restore"

    class State(models.TextChoices):
        """``core.words.OperationState`` with its words."""

        RUNNING = OperationState.RUNNING, "Running"
        PAUSED = OperationState.PAUSED, "Paused"
        STOPPED = OperationState.STOPPED, "Stopped itself"
        FINISHED = OperationState.FINISHED, "Finished"
        CANCELLED = OperationState.CANCELLED, "Cancelled"

    kind = models.CharField(max_length=16, choices=Kind.choices)
    state = models.CharField(max_length=16, choices=State.choices, default=State.RUNNING)
    created_at = models.DateTimeField()
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    # The person or script in words, kept when the user is deleted.
    actor = models.CharField(max_length=255)
    why = models.TextField(blank=True)
    selection = models.JSONField(default=dict)
    selection_words = models.TextField(blank=True)
    selected_count = models.PositiveIntegerField(default=0)
    # True once every selected letter has its item (replay) or the selection was walked (purge, restore).
    is_materialised = models.BooleanField(default=False)
    # The highest letter id a finished batch reached.
    checkpoint_id = models.BigIntegerField(default=0)
    # Purge and restore: letters changed so far. Replay counts its items.
    changed_count = models.PositiveIntegerField(default=0)

    rate_per_second = models.FloatField(null=True, blank=True)
    # Sizes of the stages; null stands for the rest. [] means one stage with all.
    stages = models.JSONField(default=list)
    stop_above_percent = models.PositiveSmallIntegerField(default=20)
    target_queue = models.CharField(max_length=255, blank=True)
    # {"args": […], "kwargs": {…}} to replace those of the message; null keeps the raw body.
    edited_arguments = models.JSONField(null=True, blank=True)
    keeps_task_id = models.BooleanField(default=False)

    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    # One sentence once it has ended or stopped itself.
    outcome = models.TextField(blank=True)
    carried_out_by = models.CharField(max_length=255, blank=True)
    # Purge: until when it can be restored.
    delete_after = models.DateTimeField(null=True, blank=True)
    # Restore: the purge it brings back.
    restores = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.SET_NULL, related_name="restored_by"
    )

    class Meta:
        ordering = ("-id",)
        constraints = (
            models.CheckConstraint(
                name="operation_state", condition=Q(state__in=[s.value for s in OperationState])
            ),
        )
        indexes = (
            # The runner looks for work every second.
            models.Index(
                fields=["id"], name="operation_running", condition=Q(state=OperationState.RUNNING.value)
            ),
        )
        permissions = (("control_operation", "Can pause, resume, cancel and re-rate operations"),)

    def __str__(self) -> str:
        return f"Operation {self.pk}: {self.kind} of {self.selected_count}"


class OperationStage(models.Model):
    """A stage of a replay: so many letters, then a look at their outcomes."""

    operation = models.ForeignKey(Operation, on_delete=models.CASCADE, related_name="stage_set")
    number = models.PositiveSmallIntegerField()
    # Null: all that are left.
    size = models.PositiveIntegerField(null=True, blank=True)
    # Finished, and of those died again or unknown, when an operator resumed in spite of them: they
    # no longer count towards stopping.
    forgiven_finished = models.PositiveIntegerField(default=0)
    forgiven_bad = models.PositiveIntegerField(default=0)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("number",)
        constraints = (
            models.UniqueConstraint(fields=["operation", "number"], name="operation_stage_number"),
        )

    def __str__(self) -> str:
        return f"stage {self.number} of operation {self.operation_id}"


class OperationItem(models.Model):
    """One letter of a replay, with the job it became and how that ended.

    pending → sent → done | already_done | died | unknown; pending → skipped | refused. ``sent`` also stands for the
    moment in which its batch is on its way: see ``OperationBatch``.
    """

    class State(models.TextChoices):
        """``core.words.ItemState`` with its words."""

        PENDING = ItemState.PENDING, "Not sent yet"
        SENT = ItemState.SENT, "Waiting for outcome"
        DONE = ItemState.DONE, "Done"
        ALREADY_DONE = ItemState.ALREADY_DONE, "Already done"
        DIED = ItemState.DIED, "Died again"
        UNKNOWN = ItemState.UNKNOWN, "Outcome unknown"
        SKIPPED = ItemState.SKIPPED, "Skipped"
        REFUSED = ItemState.REFUSED, "Cannot be replayed"

    # No index of its own: two of those below begin with it, and a replay writes each item three times.
    operation = models.ForeignKey(Operation, on_delete=models.CASCADE, related_name="items", db_index=False)
    # Nor of the letter: the first below begins with it.
    letter = models.ForeignKey(DeadLetter, on_delete=models.CASCADE, related_name="items", db_index=False)
    state = models.CharField(max_length=16, choices=State.choices, default=State.PENDING)
    # 0 when it is not sent yet, and in a replay without stages.
    stage = models.PositiveSmallIntegerField(default=0)
    batch = models.PositiveIntegerField(default=0)
    task_id = models.CharField(max_length=255, blank=True)
    publication_id = models.CharField(max_length=64, blank=True)
    detail = models.CharField(max_length=255, blank=True)
    sent_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["letter", "operation"], name="operation_item_once"),
            # A letter has one open replay at a time, whoever asks.
            models.UniqueConstraint(
                fields=["letter"],
                name="operation_item_one_open",
                condition=Q(state=ItemState.SENT.value),
            ),
        )
        indexes = (
            # Progress, and the next batch.
            models.Index(fields=["operation", "state", "id"], name="operation_item_state"),
            # The outcomes of a stage. Most letters go without stages, and need no entry.
            models.Index(
                fields=["operation", "stage", "state"], name="operation_item_stage", condition=Q(stage__gt=0)
            ),
        )

    def __str__(self) -> str:
        return f"letter {self.letter_id} in operation {self.operation_id}: {self.state}"


class OperationBatch(models.Model):
    """Letters of a replay that are claimed and of which it is not known yet that they went out.

    A row is written with the claim and deleted with the next one: the rows that are there after a
    crash are the batches to finish.
    """

    operation = models.ForeignKey(
        Operation, on_delete=models.CASCADE, related_name="open_batches", db_index=False
    )
    # The place of its first item in the operation; part of the broker's marker.
    number = models.PositiveIntegerField()
    first_item_id = models.BigIntegerField()
    last_item_id = models.BigIntegerField()
    claimed_at = models.DateTimeField()

    class Meta:
        verbose_name_plural = "operation batches"
        constraints = (
            models.UniqueConstraint(fields=["operation", "number"], name="operation_batch_number"),
        )

    def __str__(self) -> str:
        return f"batch {self.number} of operation {self.operation_id}"


class OperationEvent(models.Model):
    """A line in an operation's log."""

    operation = models.ForeignKey(Operation, on_delete=models.CASCADE, related_name="events")
    at = models.DateTimeField()
    actor = models.CharField(max_length=255)
    # confirmed, started, stage, passed, stopped, paused, resumed, cancelled, rate, died, resumed_after_crash, finished, note
    kind = models.CharField(max_length=24)
    text = models.CharField(max_length=500)
    letter = models.ForeignKey(DeadLetter, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")

    class Meta:
        ordering = ("-at", "-id")

    def __str__(self) -> str:
        return self.text


class AuditEntry(models.Model):
    """What an operator did: who, when, what, to which, why. Never deleted, never changed."""

    at = models.DateTimeField(db_index=True)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    actor = models.CharField(max_length=255)
    # replay, purge, restore, export, import, pause, resume, cancel, set_rate, continue, reveal, note, assign,
    # mute, unmute, resolve, know, login, logout, login_failed
    action = models.CharField(max_length=32)
    text = models.CharField(max_length=500)
    why = models.TextField(blank=True)
    letter = models.ForeignKey(
        DeadLetter, null=True, blank=True, on_delete=models.SET_NULL, related_name="audit_entries"
    )
    group = models.ForeignKey(
        FailureGroup, null=True, blank=True, on_delete=models.SET_NULL, related_name="audit_entries"
    )
    operation = models.ForeignKey(
        Operation, null=True, blank=True, on_delete=models.SET_NULL, related_name="audit_entries"
    )
    details = models.JSONField(default=dict, blank=True)

    class Meta:
        ordering = ("-at", "-id")
        verbose_name_plural = "audit entries"

    def __str__(self) -> str:
        return f"{self.actor} {self.text}"
