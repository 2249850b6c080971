"""Nobody takes from a queue: a mail, though no worker can run anything."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models import F

from jobs.agent.wire import RUNS_QUEUE
from jobs.core.words import AlertKind
from jobs.models import QueueSample, Worker, WorkerBoot
from tests.journeys.alert_place import AlertPlace, Watch, send_jobs, worker_on_critical
from tests.runops_place import kill
from tests.servers import wait_until

pytestmark = pytest.mark.worker


def test_row_101_a_queue_whose_name_is_wrong_is_a_mail_though_workers_live(
    place: AlertPlace, watch: Watch
) -> None:
    # Queues that no worker names are looked for once a minute, and when runops starts.
    send_jobs(place, 3, queue="critcal")
    place.start_runops()
    with worker_on_critical(place):
        watch(AlertKind.NO_CONSUMER)
        wait_until(lambda: place.mails.received, seconds=120, what="the mail")

    (mail,) = place.mails.received
    assert mail.subject.startswith("[production] Nobody works on queue critcal since ")
    assert "3 messages wait; 1 worker online, none on it." in " ".join(mail.text.split())


def test_all_workers_gone_is_a_mail_though_no_worker_can_run_anything(
    place: AlertPlace, watch: Watch
) -> None:
    watch(AlertKind.NO_CONSUMER)
    place.start_runops()
    with worker_on_critical(place) as worker:
        # Asked and counted: an answer that is on its way would be newer than the minute that passes then.
        wait_until(Worker.objects.exists, what="the worker to have answered")
        wait_until(QueueSample.objects.filter(queue="critical").exists, what="its queue to be counted")
        kill(worker)
    send_jobs(place, 7, queue="critical")
    a_minute_of_silence(place)

    wait_until(lambda: place.mails.received, seconds=90, what="the mail")

    (mail,) = place.mails.received
    assert mail.subject.startswith("[production] Nobody works on queue critical since ")
    text = " ".join(mail.text.split())
    assert "7 messages wait; no worker is online." in text
    assert "/queues/one/?name=critical" in text


def a_minute_of_silence(place: AlertPlace) -> None:
    """Date what workers told last a minute back: to runops nobody has said anything since."""
    wait_until(lambda: not place.queue_length(RUNS_QUEUE), what="all that they told to be counted")
    minute = timedelta(minutes=1)
    WorkerBoot.objects.update(last_seen_at=F("last_seen_at") - minute)
    Worker.objects.update(seen_at=F("seen_at") - minute)
