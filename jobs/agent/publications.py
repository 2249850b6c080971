"""Gives each publication an id and a time, so that a death can be told from another."""

from __future__ import annotations

import time
import uuid
from typing import Any

from celery import signals
from celery._state import get_current_task

from .wire import (
    DELIVERIES_HEADER,
    PUBLICATION_HEADER,
    PUBLISHED_AT_HEADER,
    REPLAY_ITEM_HEADER,
    REPLAY_NUMBER_HEADER,
    REPLAY_OF_HEADER,
)

REPLAY_HEADERS = (REPLAY_OF_HEADER, REPLAY_ITEM_HEADER, REPLAY_NUMBER_HEADER)


def stamp(
    sender: object = None,
    headers: dict[str, Any] | None = None,
    properties: dict[str, Any] | None = None,
    **_: Any,
) -> None:
    """Write a fresh publication id and time; keep replay headers with their job and off its children.

    Receiver of ``before_task_publish``, which does not say whose application publishes: every
    message of the process is stamped.
    """
    if headers is None:
        return
    # A retry copies custom headers, so both are overwritten, and the count of comebacks, which
    # belongs to one publication, is dropped.
    headers[PUBLICATION_HEADER] = uuid.uuid4().hex
    headers[PUBLISHED_AT_HEADER] = time.time()
    headers.pop(DELIVERIES_HEADER, None)
    task = get_current_task()
    if task is None:
        return
    request = task.request
    inherited = request.headers or {}
    if REPLAY_OF_HEADER not in inherited:
        return
    # A retry and a replacement (Task.replace) carry the id of the job that runs: they are that job.
    job_id = headers.get("id") or (properties or {}).get("correlation_id")
    for name in REPLAY_HEADERS:
        if job_id == request.id and name in inherited:
            headers[name] = inherited[name]
        elif job_id != request.id and headers.get(name) == inherited.get(name):
            headers.pop(name, None)


def start_stamping() -> None:
    """Stamp what this process publishes from now on; calling it again changes nothing."""
    signals.before_task_publish.connect(stamp, weak=False, dispatch_uid="jobs.agent.publications")
