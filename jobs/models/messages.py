"""A Celery message, whole, in columns."""

from __future__ import annotations

from django.db import models

from jobs.fields import JSONTextField


class Routing(models.Model):
    """Holds what is asked of a message without opening it: its task, its ids, its way, its kind.

    The names that a page filters on (task, queue, ids) are copies, cut to 255 characters with
    control characters and lone surrogates replaced; the exact values are in the ``headers``.
    """

    task = models.CharField(max_length=255, blank=True)
    task_id = models.CharField(max_length=255, blank=True)
    root_id = models.CharField(max_length=255, blank=True)
    parent_id = models.CharField(max_length=255, blank=True)
    queue = models.CharField(max_length=255, blank=True)
    exchange = models.CharField(max_length=255, blank=True)
    routing_key = models.CharField(max_length=255, blank=True)
    priority = models.SmallIntegerField(null=True, blank=True)
    content_type = models.CharField(max_length=255, blank=True)
    content_encoding = models.CharField(max_length=255, blank=True)

    class Meta:
        abstract = True


class Content(models.Model):
    """Holds what a worker is given, as it was on the broker: raw body, headers and properties."""

    body = models.BinaryField()
    headers = JSONTextField(default=dict)
    properties = JSONTextField(default=dict)

    class Meta:
        abstract = True


class Message(Routing, Content):
    """Holds one message in one row, for a table whose rows are written once and then deleted."""

    class Meta:
        abstract = True
