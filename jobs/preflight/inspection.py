"""Gathers what the checks need, in two sizes: everything, and what a worker that starts waits for."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from django.db import DatabaseError
from django.utils import timezone

from jobs import conf
from jobs.core.cleaning import clean_line
from jobs.preflight import gather_application, gather_broker, gather_fleet
from jobs.preflight.facts import ApplicationFacts, Facts

COMMAND_TIMEOUT_SECONDS = 5.0


def everything(app: Any, *, has_agent: bool, now: datetime | None = None) -> Facts:
    """Gather all facts, those of the fleet too; waits a second or two for the workers' answers.

    Raises:
        BrokerUnavailable: when the broker does not answer.
    """
    now = timezone.now() if now is None else now
    application = gather_application.application_facts(app, has_agent=has_agent)
    with gather_broker.opened(app, timeout_seconds=COMMAND_TIMEOUT_SECONDS) as connection:
        facts = _server(application, connection, with_jobs=True)
        declared = gather_application.declared_queues(app)
        if facts.redis is not None:
            queues, is_complete = gather_broker.redis_queues(connection, declared)
            facts = replace(facts, queues=queues, are_queues_complete=is_complete)
        elif facts.rabbit is not None:
            facts = replace(facts, queues=gather_broker.rabbit_queues(connection, declared))
        try:
            facts = replace(
                facts,
                beats=gather_fleet.living_beats(now=now),
                workers=gather_fleet.living_workers(connection, now=now),
            )
        except DatabaseError as error:
            facts = replace(facts, fleet_refusal=_words(error))
    return _with_runtimes(facts, now)


def of_the_broker(app: Any, *, application: ApplicationFacts, timeout_seconds: float) -> Facts:
    """Gather what decides whether a worker may start: the broker and the runtimes.

    Raises:
        BrokerUnavailable: when the broker does not answer.
    """
    with gather_broker.opened(app, timeout_seconds=timeout_seconds) as connection:
        facts = _server(application, connection, with_jobs=False)
    return _with_runtimes(facts, timezone.now())


def _server(application: ApplicationFacts, connection: Any, *, with_jobs: bool) -> Facts:
    if application.transport == "redis":
        return Facts(application, redis=gather_broker.redis_facts(connection, with_jobs=with_jobs))
    if application.transport == "amqp":
        seconds = conf.current().rabbitmq_consumer_timeout_seconds
        return Facts(
            application, rabbit=gather_broker.rabbit_facts(connection, consumer_timeout_seconds=seconds)
        )
    return Facts(application)


def _with_runtimes(facts: Facts, now: datetime) -> Facts:
    try:
        return replace(facts, runtime=gather_fleet.measured_runtime(now=now))
    except DatabaseError as error:
        return replace(facts, runtimes_refusal=_words(error))


def _words(error: Exception) -> str:
    return clean_line(str(error), limit=200)
