"""The beats that were seen running."""

from __future__ import annotations

from django.db import models


class BeatProcess(models.Model):
    """A process that sends scheduled jobs. Two that are alive at once send each run twice."""

    hostname = models.CharField(max_length=255)
    pid = models.PositiveIntegerField()
    started_at = models.DateTimeField()
    seen_at = models.DateTimeField(db_index=True)

    class Meta:
        verbose_name_plural = "beat processes"
        constraints = (models.UniqueConstraint(fields=["hostname", "pid"], name="beat_process_once"),)

    def __str__(self) -> str:
        return f"beat@{self.hostname}:{self.pid}"
