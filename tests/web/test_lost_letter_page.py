"""The page of a job that was lost with its worker: what is known, what is not, and what became of it."""

from __future__ import annotations

from datetime import timedelta

import pytest
import time_machine
from django.test import Client
from django.urls import reverse

from jobs.metrics import lost
from jobs.metrics.storing import store
from jobs.models import DeadLetter
from tests.metrics.batches import NOW, make_batch, make_running
from tests.web.acting import client_of, person, text_of

pytestmark = pytest.mark.django_db

LATER = NOW + timedelta(seconds=31)


@pytest.fixture(autouse=True)
def frozen():
    with time_machine.travel(LATER, tick=False):
        yield


@pytest.fixture
def client() -> Client:
    return client_of(person())


def page(client: Client) -> str:
    response = client.get(reverse("console:letter", args=[DeadLetter.objects.get().uuid]))
    assert response.status_code == 200
    return text_of(response)


def test_it_says_what_is_known_and_why_it_cannot_be_replayed(client: Client) -> None:
    store([make_batch(running=[make_running()])], now=NOW)
    lost.declare_lost(now=LATER)

    text = page(client)

    assert "Its worker fell silent while it ran this job" in text
    assert "Its message was lost with its worker, so there is nothing to send." in text


def test_it_says_when_its_worker_came_back(client: Client) -> None:
    store([make_batch(running=[make_running()])], now=NOW)
    lost.declare_lost(now=LATER)
    store([make_batch(sequence=2)], now=LATER)

    assert lost.CAME_BACK in page(client)


def test_the_list_shows_it(client: Client) -> None:
    store([make_batch(running=[make_running()])], now=NOW)
    lost.declare_lost(now=LATER)

    response = client.get(reverse("console:letters") + "?view=letters")

    assert response.status_code == 200
    assert "WorkerLost" in text_of(response)


def test_its_job_has_one_attempt_that_died_and_its_queue_counts_it(client: Client) -> None:
    job = make_running()
    store([make_batch(running=[job])], now=NOW)
    lost.declare_lost(now=LATER)

    life = text_of(client.get(reverse("console:job", args=()), {"id": job.task_id}))
    queue = text_of(client.get(reverse("console:queue"), {"name": "critical"}))
    jobs = text_of(client.get(reverse("console:jobs"), {"q": "queue:critical outcome:dead"}))

    assert life.count("Died: ") == 1
    assert "of waiting" in life
    assert "1 of 1 job" in queue
    assert "WorkerLost" in jobs
