"""What the workers report: who lives, what ended, and how often."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from jobs.core.words import RollupLevel, RollupScope, RunOutcome
from jobs.fields import JSONTextField


class WorkerBoot(models.Model):
    """One life of a worker, from its first batch to its goodbye or its loss.

    A hostname has one for each start. Its description (tasks and signatures) is the ``Worker`` of that name.
    """

    boot_id = models.CharField(max_length=64, unique=True)
    hostname = models.CharField(max_length=255)
    pool = models.CharField(max_length=64, blank=True)
    # Processes or threads that run jobs; null when the pool does not tell.
    concurrency = models.PositiveIntegerField(null=True, blank=True)
    queues = models.JSONField(default=list)
    started_at = models.DateTimeField()
    # When its newest batch was made, by its clock, and when that arrived here.
    reported_at = models.DateTimeField()
    last_seen_at = models.DateTimeField(db_index=True)
    goodbye_at = models.DateTimeField(null=True, blank=True)
    # When it was given up for lost: it fell silent without a goodbye.
    lost_at = models.DateTimeField(null=True, blank=True)
    # Its newest batch that was counted, and the batches before it that were not, as [first, last]: a batch is
    # known by boot and sequence, so that one that is delivered again adds nothing.
    sequence = models.BigIntegerField(default=0)
    missing = models.JSONField(default=list)
    # The machine's load average over one minute, and the resident memory of the worker and its children.
    load = models.FloatField(null=True, blank=True)
    memory_bytes = models.BigIntegerField(null=True, blank=True)
    # See agent.batches: what runs, what waits for its time in its memory, and what it took and has not started.
    running = JSONTextField(default=list)
    held = JSONTextField(default=dict)
    reserved = JSONTextField(default=dict)
    # Finished attempts it reported, and how many of those it reported without their record.
    attempts = models.BigIntegerField(default=0)
    dropped = models.BigIntegerField(default=0)
    # Its early-acknowledged jobs that became dead letters when it was lost, and those of them that nobody has
    # told to have ended all the same, as [letter's uuid, publication, attempt, task id].
    jobs_lost = models.PositiveIntegerField(default=0)
    presumed = JSONTextField(default=list)

    class Meta:
        indexes = (models.Index(fields=["hostname", "-started_at"], name="worker_boot_host"),)
        permissions = (
            ("control_workerboot", "Can grow, shrink and shut down workers"),
            ("revoke_job", "Can revoke a job"),
        )

    def __str__(self) -> str:
        return f"{self.hostname} since {self.started_at:%Y-%m-%d %H:%M:%S}"


class Run(models.Model):
    """One finished attempt. Kept for a day, capped, perhaps sampled: counts are ``Rollup``'s."""

    class Outcome(models.TextChoices):
        """``core.words.RunOutcome`` with its words."""

        DONE = RunOutcome.DONE, "Done"
        RETRIED = RunOutcome.RETRIED, "Retried"
        DEAD = RunOutcome.DEAD, "Died"
        REVOKED = RunOutcome.REVOKED, "Revoked"
        IGNORED = RunOutcome.IGNORED, "Ignored"

    task_id = models.CharField(max_length=255)
    publication_id = models.CharField(max_length=255, blank=True)
    root_id = models.CharField(max_length=255, blank=True)
    task = models.CharField(max_length=255)
    queue = models.CharField(max_length=255, blank=True)
    outcome = models.CharField(max_length=16, choices=Outcome.choices)
    attempt = models.PositiveIntegerField(default=0)
    worker = models.CharField(max_length=255, blank=True)
    error_type = models.CharField(max_length=255, blank=True)
    # Null when the publisher has no agent; the start is null for what never started (expired, revoked).
    published_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField()
    latency_seconds = models.FloatField(null=True, blank=True)
    runtime_seconds = models.FloatField(null=True, blank=True)

    class Meta:
        ordering = ("-finished_at", "-id")
        indexes = (
            # The list, newest first, and its counts under any search: read from the index alone, which only
            # ever grows at its end.
            models.Index(
                fields=["finished_at", "id", "task", "queue", "outcome", "worker", "error_type"],
                name="run_newest",
            ),
            # A job's life, and find by its id or the beginning of it.
            models.Index(fields=["task_id"], name="run_task_id", opclasses=["varchar_pattern_ops"]),
            # What followed a job. Most are their own root, and need no entry.
            models.Index(
                fields=["root_id"],
                name="run_root_id",
                opclasses=["varchar_pattern_ops"],
                condition=~Q(root_id=F("task_id")),
            ),
            models.Index(fields=["task", "finished_at"], name="run_task"),
        )

    def __str__(self) -> str:
        return f"{self.task} {self.outcome} at {self.finished_at:%Y-%m-%d %H:%M:%S}"


class Rollup(models.Model):
    """Counts and histograms of a minute, hour or day (UTC), exact whatever was sampled or dropped.

    Four scopes are kept side by side, so that no page adds up all tasks and queues: one task on one
    queue, a task, a queue, everything; what a scope sums over is "". A minute in which a worker reported
    has a row of scope "all", also when nothing ran: a minute without one is unknown, not zero.
    """

    level = models.CharField(max_length=8, choices=[(each.value, each.value) for each in RollupLevel])
    scope = models.CharField(max_length=8, choices=[(each.value, each.value) for each in RollupScope])
    starts_at = models.DateTimeField()
    task = models.CharField(max_length=255, blank=True)
    queue = models.CharField(max_length=255, blank=True)
    # Messages that a worker took from the queue; the rest are attempts by how they ended.
    received = models.BigIntegerField(default=0)
    done = models.BigIntegerField(default=0)
    retried = models.BigIntegerField(default=0)
    dead = models.BigIntegerField(default=0)
    revoked = models.BigIntegerField(default=0)
    ignored = models.BigIntegerField(default=0)
    # Attempts among these whose record the agent dropped under pressure.
    dropped = models.BigIntegerField(default=0)
    latency_sum_seconds = models.FloatField(default=0)
    runtime_sum_seconds = models.FloatField(default=0)
    # core.histograms.pack
    latency = models.BinaryField(default=bytes)
    runtime = models.BinaryField(default=bytes)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=["level", "scope", "starts_at", "task", "queue"], name="rollup_once"
            ),
            models.CheckConstraint(
                name="rollup_level", condition=Q(level__in=[each.value for each in RollupLevel])
            ),
            models.CheckConstraint(
                name="rollup_scope", condition=Q(scope__in=[each.value for each in RollupScope])
            ),
        )
        indexes = (
            models.Index(fields=["level", "scope", "task", "starts_at"], name="rollup_task"),
            models.Index(fields=["level", "scope", "queue", "starts_at"], name="rollup_queue"),
        )

    def __str__(self) -> str:
        return f"{self.level} {self.starts_at:%Y-%m-%d %H:%M} {self.task or '*'} on {self.queue or '*'}"


class Deploy(models.Model):
    """A deployment, drawn as a line in the charts. Set by ``manage.py mark_deploy NAME``."""

    name = models.CharField(max_length=100)
    at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return f"{self.name} at {self.at:%Y-%m-%d %H:%M:%S}"
