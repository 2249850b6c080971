"""A Celery message, whole, in columns."""

from __future__ import annotations

from django.db import models

from jobs.fields import JSONTextField


class Message(models.Model):
    """Holds one message as it was on the broker: raw body, headers, properties and routing.

    The names that a page filters on (task, queue, ids) are copies, cut to 255 characters with
    control characters and lone surrogates replaced; the exact values are in ``headers``.
    """

    task = models.CharField(max_length=255, blank=True)
    task_id = models.CharField(max_length=255, blank=True)
    root_id = models.CharField(max_length=255, blank=True)
    parent_id = models.CharField(max_length=255, blank=True)
    queue = models.CharField(max_length=255, blank=True)
    exchange = models.CharField(max_length=255, blank=True)
    routing_key = models.CharField(max_length=255, blank=True)
    priority = models.SmallIntegerField(null=True, blank=True)
    body = models.BinaryField()
    content_type = models.CharField(max_length=255, blank=True)
    content_encoding = models.CharField(max_length=255, blank=True)
    headers = JSONTextField(default=dict)
    properties = JSONTextField(default=dict)

    class Meta:
        abstract = True
