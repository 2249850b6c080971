"""The idempotency ledger, and how far long jobs are."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from jobs.core.words import LedgerState


class IdempotencyRecord(models.Model):
    """What is known of one idempotency key of one task.

    running → done, or free again when its job failed. ``running`` holds while the lease lives; a job that
    finds it run out takes it over with a new ``lease_token``, and what the old one still writes is refused.
    """

    class State(models.TextChoices):
        """``core.words.LedgerState`` with its words."""

        RUNNING = LedgerState.RUNNING, "Running"
        DONE = LedgerState.DONE, "Done"
        FREE = LedgerState.FREE, "Free"

    task = models.CharField(max_length=255)
    key = models.CharField(max_length=255)
    state = models.CharField(max_length=16, choices=State.choices)
    # The job that holds the key, has done it, or tried last.
    task_id = models.CharField(max_length=255)
    # The newest attempt of that job that is known to have been started or sent, counted from 0.
    attempt = models.PositiveIntegerField(default=0)
    # Which replay of it that is, 0 for none: one under the old id counts its attempts from 0 again.
    replay = models.PositiveIntegerField(default=0)
    # "host:pid" of the process that runs it.
    holder = models.CharField(max_length=255, blank=True)
    lease_token = models.BigIntegerField(default=1)
    lease_expires_at = models.DateTimeField(null=True, blank=True)
    # How often the lease of this job's attempt ran out: its process died each time.
    takeovers = models.PositiveIntegerField(default=0)
    # JSON; null when it is not done, or its result has no JSON form or is too large to keep.
    result = models.TextField(null=True, blank=True)  # noqa: DJ001 - "null" is a result, none is not
    created_at = models.DateTimeField()
    started_at = models.DateTimeField()
    completed_at = models.DateTimeField(null=True, blank=True)
    updated_at = models.DateTimeField()

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["task", "key"], name="idempotency_record_once"),
            models.CheckConstraint(
                name="idempotency_record_state", condition=Q(state__in=[s.value for s in LedgerState])
            ),
        )
        indexes = (
            # Retention.
            models.Index(fields=["updated_at"], name="idempotency_record_updated"),
        )

    def __str__(self) -> str:
        return f"{self.task} {self.key} {self.state}"


class JobProgress(models.Model):
    """How far a job is that says so. Deleted when the job succeeds; kept with the dead letter when it dies."""

    task_id = models.CharField(max_length=255, unique=True)
    task = models.CharField(max_length=255)
    worker = models.CharField(max_length=255, blank=True)
    done = models.BigIntegerField()
    # Null when the job does not know how much there is.
    total = models.BigIntegerField(null=True, blank=True)
    note = models.CharField(max_length=255, blank=True)
    started_at = models.DateTimeField()
    updated_at = models.DateTimeField(db_index=True)

    class Meta:
        verbose_name_plural = "job progress"

    def __str__(self) -> str:
        return f"{self.task} {self.done}/{self.total}"
