"""The outbox: messages that a transaction wants published."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import Q

from jobs.core.words import OutboxState
from jobs.fields import JSONTextField
from jobs.models.messages import Message


class OutboxMessage(Message):
    """A message to publish once the transaction that wrote it has committed.

    ``available_at`` is when the relay may take it: after the fast path has had its turn, when a job held
    for its ETA is due, or when a row that the broker refused is tried again. The newest rows that were
    published stay for JOBS_OUTBOX_RETENTION_HOURS, so that the message of a lost job can be found.
    """

    class State(models.TextChoices):
        """``core.words.OutboxState`` with its words."""

        PENDING = OutboxState.PENDING, "Waiting"
        PUBLISHED = OutboxState.PUBLISHED, "Published"
        GAVE_UP = OutboxState.GAVE_UP, "Given up"

    uuid = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    state = models.CharField(max_length=16, choices=State.choices, default=State.PENDING)
    created_at = models.DateTimeField()
    available_at = models.DateTimeField()
    # When the job is to start and when it is dropped; null when it said neither.
    eta = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    idempotency_key = models.CharField(max_length=255, blank=True)
    # Tries in which the broker refused this row; an outage of the broker is not one.
    attempts = models.PositiveIntegerField(default=0)
    last_error = models.CharField(max_length=2000, blank=True)
    # The queues and exchanges that Celery declares before it publishes, see jobs.outbox.declarations.
    declare = JSONTextField(default=list)
    # The batch in which somebody took it to send it; what a crash left is sent again under the same name.
    claim = models.UUIDField(null=True, blank=True)
    published_at = models.DateTimeField(null=True, blank=True)
    # Who published it, or took it for that: "commit" or "relay". Empty when nobody has yet.
    published_by = models.CharField(max_length=16, blank=True)

    class Meta:
        constraints = (
            models.CheckConstraint(
                name="outbox_message_state", condition=Q(state__in=[s.value for s in OutboxState])
            ),
        )
        indexes = (
            # The relay's next batch, the lag, and the page: only what waits.
            models.Index(
                fields=["available_at", "id"],
                name="outbox_message_waiting",
                condition=Q(state=OutboxState.PENDING.value),
            ),
            # The page of those given up, and their retention.
            models.Index(
                fields=["available_at", "id"],
                name="outbox_message_gave_up",
                condition=Q(state=OutboxState.GAVE_UP.value),
            ),
            # Retention.
            models.Index(
                fields=["published_at"],
                name="outbox_message_published",
                condition=Q(published_at__isnull=False),
            ),
            # The message of a job whose worker is gone.
            models.Index(fields=["task_id"], name="outbox_message_task_id"),
        )
        permissions = (("retry_outboxmessage", "Can send waiting outbox messages at once"),)

    def __str__(self) -> str:
        return f"{self.task} {self.state}"
