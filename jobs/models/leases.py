"""Who carries out a duty now."""

from __future__ import annotations

from django.db import models


class Lease(models.Model):
    """A duty of runops or beat, held by one process until it expires.

    ``token`` grows by one each time the holder changes; a holder writes only while its token is
    the row's (a fencing token).
    """

    duty = models.CharField(max_length=64, primary_key=True)
    holder = models.CharField(max_length=255, blank=True)
    token = models.BigIntegerField(default=0)
    acquired_at = models.DateTimeField(null=True, blank=True)
    renewed_at = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    # What keeps the holder from doing it, such as a broker that is away, and since when; empty while it works.
    trouble = models.CharField(max_length=500, blank=True, db_default="")
    trouble_since = models.DateTimeField(null=True, blank=True)
    # What should be known of it although it works, such as reports that could not be read.
    remark = models.CharField(max_length=500, blank=True, db_default="")

    def __str__(self) -> str:
        return f"{self.duty}: {self.holder or 'nobody'}"
