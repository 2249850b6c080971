"""What the online workers know."""

from __future__ import annotations

from django.db import models


class Worker(models.Model):
    """A worker as it last described itself: its queues, tasks and their signatures.

    Online means seen within the last 60 seconds.
    """

    hostname = models.CharField(max_length=255, unique=True)
    boot_id = models.CharField(max_length=64, blank=True)
    pool = models.CharField(max_length=64, blank=True)
    has_agent = models.BooleanField(default=False)
    queues = models.JSONField(default=list)
    # {task name: [parameter, …] or null when it takes anything}, see agent.wire.
    tasks = models.JSONField(default=dict)
    digest = models.CharField(max_length=64, blank=True)
    seen_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.hostname
