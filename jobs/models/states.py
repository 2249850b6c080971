"""What stood open at a moment, since nobody can count it afterwards."""

from __future__ import annotations

from django.db import models

from jobs.core.words import RollupLevel


class StateSample(models.Model):
    """How much stood open in a minute or an hour: as it was counted last in it. Null is not known.

    Letters are replayed, purged and deleted, and outboxes empty themselves: how many there were an hour ago
    cannot be told from the rows that are left. runops writes it down each minute.
    """

    level = models.CharField(
        max_length=8,
        choices=[(each.value, each.value) for each in (RollupLevel.MINUTE, RollupLevel.HOUR)],
    )
    at = models.DateTimeField()
    dead_letters = models.BigIntegerField(null=True, blank=True)
    outbox_lag_seconds = models.FloatField(null=True, blank=True)
    workers_online = models.PositiveIntegerField(null=True, blank=True)

    class Meta:
        default_permissions = ()
        constraints = (models.UniqueConstraint(fields=["level", "at"], name="state_sample_once"),)

    def __str__(self) -> str:
        return f"{self.level} {self.at:%Y-%m-%d %H:%M}"
