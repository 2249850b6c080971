"""Failures with one fingerprint."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q

from jobs.core.words import GroupState


class FailureGroup(models.Model):
    """One bug, as far as the fingerprint can tell: a task, an error type and a place in the code.

    new → known (an operator looked, or a day went by); any → muted, resolved; resolved → regressed
    when one of its jobs dies again.
    """

    class State(models.TextChoices):
        """``core.words.GroupState`` with its words."""

        NEW = GroupState.NEW, "New"
        REGRESSED = GroupState.REGRESSED, "Regressed"
        KNOWN = GroupState.KNOWN, "Known"
        MUTED = GroupState.MUTED, "Muted"
        RESOLVED = GroupState.RESOLVED, "Resolved"

    fingerprint = models.CharField(max_length=40, unique=True)
    task = models.CharField(max_length=255, blank=True)
    error_type = models.CharField(max_length=255, blank=True)
    title = models.CharField(max_length=255, blank=True)
    state = models.CharField(max_length=16, choices=State.choices, default=State.NEW)
    first_seen_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()
    resolved_at = models.DateTimeField(null=True, blank=True)
    resolved_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    regressed_at = models.DateTimeField(null=True, blank=True)
    muted_until = models.DateTimeField(null=True, blank=True)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    note = models.CharField(max_length=500, blank=True)
    link = models.URLField(max_length=500, blank=True)

    class Meta:
        constraints = (
            models.CheckConstraint(
                name="failure_group_state",
                condition=Q(state__in=[s.value for s in GroupState]),
            ),
        )
        permissions = (("triage_failuregroup", "Can note, own, mute and resolve failure groups"),)

    def __str__(self) -> str:
        return f"{self.title or self.error_type or 'failure'} in {self.task}"
