"""``Job``: a Celery task with policies."""

from __future__ import annotations

from celery import Task


class Job(Task):
    """A task whose jobs cannot be sent twice, run twice or be lost."""

    abstract = True
