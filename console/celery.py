"""The Celery application that ``manage.py up`` runs, and in which a new project writes its jobs."""

from __future__ import annotations

import atexit
import gc
import os

from celery import Celery
from django.conf import settings
from kombu import Exchange, Queue

from jobs.agent import attach

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")

# Long jobs on a queue of their own do not hold up short ones; "celery" is where an application
# without routing sends.
QUEUES = ("critical", "default", "low", "long", "celery")

DEFAULTS = {
    "broker_url": settings.BROKER_URL,
    "broker_transport_options": settings.BROKER_TRANSPORT_OPTIONS,
    "broker_connection_retry_on_startup": True,
    # JSON and nothing else: a pickled message would run whatever its sender likes.
    "accept_content": ["json"],
    "task_serializer": "json",
    "result_serializer": "json",
    "task_ignore_result": True,
    # A job leaves the broker only when it is done; one whose worker died is delivered again, and the
    # agent ends that after three times.
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    "worker_prefetch_multiplier": 1,
    # Never unlimited. The hard limit must stay below Redis's visibility timeout (1 h), or a job that
    # still runs is delivered a second time.
    "task_soft_time_limit": 600,
    "task_time_limit": 660,
    "task_default_queue": "default",
    # Each with an exchange and a key of its own, as Celery makes them for a queue it does not know;
    # without, all five would be bound to the key of the default queue and get every job.
    "task_queues": [Queue(name, Exchange(name), routing_key=name) for name in QUEUES],
    # On SIGQUIT, or SIGTERM with REMAP_SIGTERM=SIGQUIT, jobs get this long before they go back.
    "worker_soft_shutdown_timeout": getattr(settings, "JOBS_SOFT_SHUTDOWN_SECONDS", 10),
    # The agent reports what the console needs; events would cost a third of the throughput.
    "worker_send_task_events": False,
    "task_send_sent_event": False,
    "worker_hijack_root_logger": False,
    "timezone": "UTC",
}

app = Celery("console")
app.config_from_object("django.conf:settings", namespace="CELERY")
# What a CELERY_* setting says wins.
app.conf.update(
    {key: value for key, value in DEFAULTS.items() if not hasattr(settings, f"CELERY_{key.upper()}")}
)
app.autodiscover_tasks()
attach(app)
# For every thread: the admin's "Run selected tasks" sends through the current application.
app.set_default()
# A worker or beat that stops need not look through all that it has loaded once more; on a busy machine that takes
# a second of those in which `manage.py up` has to stop.
atexit.register(gc.freeze)
