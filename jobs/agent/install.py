"""Puts the agent into an application: nothing happens before one of its workers starts."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any

from celery import Celery, bootsteps, signals
from celery.utils.imports import symbol_by_name

from .publications import start_stamping
from .settings import AgentSettings

if TYPE_CHECKING:
    from .agent import Agent

logger = logging.getLogger(__name__)

_settings: weakref.WeakKeyDictionary[Celery, AgentSettings] = weakref.WeakKeyDictionary()


def install(app: Celery, settings: AgentSettings) -> None:
    """Attach an application; once more only changes the settings of workers that start later."""
    if app not in _settings:
        app.steps["worker"].add(GuardPool)
    _settings[app] = settings
    start_stamping()
    signals.worker_init.connect(join_worker, weak=False, dispatch_uid="jobs.agent.worker_init")


def is_attached(app: Celery) -> bool:
    """Say whether the agent captures what this application's workers run."""
    return app in _settings


def join_worker(sender: Any = None, **_: Any) -> None:
    """Put capture in front of the consumer that the worker is about to create.

    Receiver of ``worker_init``, which comes after the ``worker_consumer`` setting was read, so that
    it does not matter whether the application was configured before or after it was attached.
    """
    settings = _settings.get(sender.app)
    if settings is None:
        return
    # Imported here: a process that only publishes needs none of it.
    from . import control  # noqa: F401 (registers jobs_describe)
    from .agent import Agent
    from .consumers import CapturingConsumer, capturing_consumer
    from .originals import keep_originals

    base = symbol_by_name(sender.consumer_cls)
    if issubclass(base, CapturingConsumer):
        return
    keep_originals()
    agent = Agent(sender.app, settings, sender.hostname)
    sender.jobs_agent = agent
    sender.consumer_cls = capturing_consumer(base, agent)
    # Held by the agent's life: the signal refers to it weakly.
    signals.worker_process_init.connect(agent.leave_connection_to_parent)
    _report_until_the_end(sender, agent)
    logger.info(
        "Dead letters are captured; what the broker does not take waits in %s.", agent.spool.directory
    )


def _report_until_the_end(worker: Any, agent: Agent) -> None:
    """Say goodbye when the worker has stopped, and go on reporting until then."""

    def say_goodbye(**_: Any) -> None:
        agent.say_goodbye()

    signals.worker_shutdown.connect(say_goodbye, sender=worker, weak=False)
    # Here, since it loads Celery's worker, which a web process that attaches has no use for.
    from . import load

    wait = getattr(worker, "wait_for_soft_shutdown", None)
    if wait is None:
        return  # before Celery 5.5

    def wait_for_soft_shutdown() -> None:
        # Celery sleeps in its signal handler, perhaps for minutes.
        agent.start_last_beats()
        wait()
        # Elsewhere a job is accepted by what runs it, and is known at once.
        agent.is_ending_jobs = load.pool_name(worker) == "prefork"

    worker.wait_for_soft_shutdown = wait_for_soft_shutdown


class GuardPool(bootsteps.StartStopStep):
    """Guards the pool once it exists, see ``guard.py``, and says goodbye before a cold shutdown ends it."""

    requires = ("celery.worker.components:Pool",)

    def start(self, worker: Any) -> None:
        """Wrap the pool before the consumer hands it the first job."""
        from .guard import guard_pool

        if getattr(worker, "jobs_agent", None) is not None:
            guard_pool(worker.pool)

    def terminate(self, worker: Any) -> None:
        """Say goodbye: after a cold shutdown Celery does not say that it has ended."""
        agent = getattr(worker, "jobs_agent", None)
        if agent is not None:
            agent.say_goodbye()
