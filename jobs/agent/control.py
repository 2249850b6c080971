"""The remote control command ``jobs_describe``: what this worker consumes and knows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from celery.worker.control import inspect_command

from . import VERSION
from .signatures import describe_parameters


@inspect_command(args=[("known", list)], signature="[known=[]]", default_timeout=1.0)
def jobs_describe(state: Any, known: Sequence[str] = (), **_: Any) -> dict[str, Any]:
    """Describe the agent, its queues and its tasks; the tasks are left out where ``known`` has their digest."""
    agent = getattr(state.consumer.controller, "jobs_agent", None)
    tasks = {
        name: describe_parameters(task)
        for name, task in sorted(state.app.tasks.items())
        if not name.startswith("celery.")
    }
    digest = hashlib.sha256(json.dumps(tasks, sort_keys=True).encode()).hexdigest()
    queues = getattr(state.consumer.task_consumer, "queues", None) or ()
    return {
        "hostname": state.hostname,
        "boot_id": agent.boot_id if agent is not None else "",
        "pool": type(state.consumer.pool).__module__.rpartition(".")[2],
        "agent": VERSION,
        "queues": sorted(queue.name for queue in queues),
        "digest": digest,
        "tasks": None if digest in list(known or ()) else tasks,
    }
