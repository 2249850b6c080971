"""What waits on the queues, and what operators do with them."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q

from jobs.core.words import QueueActionKind, QueueActionState, SampleLevel


class QueueSample(models.Model):
    """What a queue held at a moment, or over a minute or an hour.

    Of a sample ``ready`` is that moment's, and ``ready_max`` the same. Of a minute or an hour ``ready`` and
    the others are the newest sample's, ``ready_max`` and ``oldest_age_seconds`` the highest of them,
    ``samples`` how many there were. Null is "not known", never zero.
    """

    level = models.CharField(max_length=8, choices=[(each.value, each.value) for each in SampleLevel])
    queue = models.CharField(max_length=255)
    at = models.DateTimeField()
    samples = models.PositiveIntegerField(default=1)
    # Messages that wait on the broker, on all sub-lists of priorities.
    ready = models.BigIntegerField(null=True, blank=True)
    ready_max = models.BigIntegerField(null=True, blank=True)
    # Delivered to a worker and not acknowledged, what waits there for its time included.
    unacknowledged = models.BigIntegerField(null=True, blank=True)
    # Held for later: in the memory of workers, in the outbox, and on the broker where it delays messages itself.
    held_by_workers = models.BigIntegerField(null=True, blank=True)
    held_in_outbox = models.BigIntegerField(null=True, blank=True)
    held_by_broker = models.BigIntegerField(null=True, blank=True)
    consumers = models.PositiveIntegerField(null=True, blank=True)
    # Since the oldest waiting message was published; null when none waits or nobody can tell.
    oldest_age_seconds = models.FloatField(null=True, blank=True)
    is_paused = models.BooleanField(default=False)
    # What is wrong with the queue itself, or why it could not be counted; empty when nothing is.
    trouble = models.CharField(max_length=255, blank=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=["level", "queue", "at"], name="queue_sample_once"),)
        indexes = (models.Index(fields=["level", "at"], name="queue_sample_at"),)

    def __str__(self) -> str:
        return f"{self.queue} at {self.at:%Y-%m-%d %H:%M:%S}"


class QueuePause(models.Model):
    """A queue that workers are told not to consume from, until the row is deleted."""

    queue = models.CharField(max_length=255, unique=True)
    paused_at = models.DateTimeField()
    actor = models.CharField(max_length=255)
    why = models.CharField(max_length=2000, blank=True)

    class Meta:
        permissions = (("pause_queue", "Can pause and resume queues"),)

    def __str__(self) -> str:
        return self.queue


class StoppedConsumer(models.Model):
    """A worker that was told to stop consuming from a queue; it goes on when the queue is not paused any more.

    Kept until the worker reports the queue again or has ended, so that a command that got lost is sent again.
    """

    queue = models.CharField(max_length=255)
    hostname = models.CharField(max_length=255)
    # The life of the worker that was told; "" of a worker without the agent.
    boot_id = models.CharField(max_length=64, blank=True)
    told_at = models.DateTimeField()
    # When it was last told to go on.
    resumed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        default_permissions = ()
        constraints = (models.UniqueConstraint(fields=["queue", "hostname"], name="stopped_consumer_once"),)

    def __str__(self) -> str:
        return f"{self.hostname} from {self.queue}"


class QueueAction(models.Model):
    """A purge of the messages that waited on a queue; runops carries it out in batches.

    Each message is kept as a purged letter first, so a purge can be undone until its deadline.
    """

    kind = models.CharField(max_length=16, choices=[(each.value, each.value) for each in QueueActionKind])
    state = models.CharField(
        max_length=16,
        choices=[(each.value, each.value) for each in QueueActionState],
        default=QueueActionState.WAITING,
    )
    queue = models.CharField(max_length=255)
    created_at = models.DateTimeField()
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    actor = models.CharField(max_length=255)
    why = models.CharField(max_length=2000, blank=True)
    # How many waited when it was confirmed: what comes later stays.
    expected = models.BigIntegerField()
    # Of which, on Redis, on each of its lists: priorities have lists of their own.
    sizes = models.JSONField(default=list)
    # Archived and removed so far.
    taken = models.BigIntegerField(default=0)
    # What stayed when it was confirmed: delivered and not acknowledged, and waiting for its time in the memory of
    # workers (part of the former where the broker knows it). Null is not known.
    unacknowledged = models.BigIntegerField(null=True, blank=True)
    held_by_workers = models.BigIntegerField(null=True, blank=True)
    # Of which the messages are the purged letters, so that one restore brings them back.
    operation = models.ForeignKey(
        "jobs.Operation", null=True, blank=True, on_delete=models.SET_NULL, related_name="queue_actions"
    )
    error = models.CharField(max_length=2000, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = (
            # Two that are confirmed at once would take what came after the first as well.
            models.UniqueConstraint(
                fields=["kind", "queue"],
                name="queue_action_once",
                condition=Q(state__in=[QueueActionState.WAITING.value, QueueActionState.RUNNING.value]),
            ),
        )
        indexes = (
            models.Index(
                fields=["id"],
                name="queue_action_open",
                condition=Q(state__in=[QueueActionState.WAITING.value, QueueActionState.RUNNING.value]),
            ),
        )
        permissions = (
            ("purge_queue", "Can purge the messages that wait on a queue"),
            ("peek_queue", "Can look at the messages that wait on a queue"),
        )

    def __str__(self) -> str:
        return f"{self.kind} {self.queue}"
