"""A look at the messages that wait on a real Redis: masked, escaped, and still there afterwards."""

from __future__ import annotations

from html import unescape
from typing import Any

import pytest
from celery import Celery
from django.utils import timezone

from jobs.broker.peeking import MESSAGE_BYTES
from jobs.models import QueueAction, QueuePause, Worker
from tests.factories import NOW
from tests.metrics_rows import make_sample
from tests.servers import RedisServer, free_port
from tests.web.acting import form_actions
from tests.web.people import admin, href, operator, tags

pytestmark = pytest.mark.django_db

PAGE = "/queues/one/waiting/?name=critical"


@pytest.fixture
def app(broker: RedisServer) -> Celery:
    make_sample(ready=1)
    return Celery(broker=broker.url, set_as_current=False)


def send(app: Celery, *args: Any, task: str = "shop.tasks.send_receipt", **kwargs: Any) -> str:
    return str(app.send_task(task, args, kwargs, queue="critical").id)


def page(client: Any = None, status: int = 200) -> str:
    response = (client or operator()).get(PAGE)
    assert response.status_code == status
    return tags(response).text


def test_the_oldest_are_shown_first_and_all_still_wait(app, broker):
    first, second = send(app, order_id=1), send(app, order_id=2)

    response = operator().get(PAGE)
    text = tags(response).text

    assert "The oldest 2 of 2 messages, in the order in which workers take them." in text
    assert text.index(first[:8]) < text.index(second[:8])
    assert href(response, first[:8]) == f"/jobs/one/?id={first}"
    with broker.client() as client:
        assert client.llen("critical") == 2


def test_arguments_are_masked_by_the_names_that_workers_told(app):
    Worker.objects.create(
        hostname="celery@web-1",
        seen_at=NOW,
        tasks={"shop.tasks.send_receipt": {"names": ["order_id", "password"]}},
    )
    send(app, 48213, "hunter2", token="s3cret", note="hello")

    response = operator().get(PAGE)
    text = tags(response).text

    assert b"hunter2" not in response.content
    assert b"s3cret" not in response.content
    assert '"order_id": 48213' in text
    assert '"note": "hello"' in text
    assert "Masked values are hidden here for everybody; workers get them as they are." in text


def test_rows_12_and_13_what_no_worker_could_read_is_shown_with_its_bytes(app, broker):
    send(app, order_id=1)
    with broker.client() as client:
        client.rpush("critical", b"not JSON <b>at all</b>")

    response = operator().get(PAGE)

    assert "6e 6f 74 20 4a 53 4f 4e" in tags(response).text
    assert b"<b>at all" not in response.content
    assert "No worker can run it:" in tags(response).text


@pytest.mark.parametrize(
    ("number", "head", "foot"),
    [
        (1, "1 message waits on it.", "1 message is too large to be fetched for this page."),
        (2, "2 messages wait on it.", "2 messages are too large to be fetched for this page."),
    ],
)
def test_where_all_are_too_large_to_be_shown_the_page_says_so(app, number, head, foot):
    for _ in range(number):
        send(app, "x" * MESSAGE_BYTES)

    text = page()

    assert head in text
    assert foot in text


@pytest.mark.parametrize("action", ["pause", "resume", "purge", "waiting"])
def test_what_is_done_to_a_queue_keeps_the_time_window(action: str, app: Celery) -> None:
    send(app, order_id=1)
    make_sample(at=timezone.now(), ready=1)
    if action == "resume":
        QueuePause.objects.create(queue="critical", paused_at=NOW, actor="Tomas", why="")
    queue, client = "/queues/one/?name=critical&window=6h", admin()
    address = f"/queues/one/{action}/?name=critical&window=6h"

    shown = client.get(queue)
    offered = {each.get("href") for each in tags(shown).all("a")} | {*map(unescape, form_actions(shown))}
    assert address in offered

    if action != "resume":
        asked = tags(client.get(address))
        assert asked.all("a", href="/queues/?window=6h")
        assert asked.all("a", href=queue)
    if action != "waiting":
        done = client.post(address, {"why": "the gateway is down", "expected": "1"})
        assert done.headers["Location"] == queue


def test_an_empty_queue_says_so(broker):
    make_sample(ready=0)

    assert "No message waits on it." in page()


def test_a_broker_that_is_away_is_told(settings):
    settings.BROKER_URL = f"redis://127.0.0.1:{free_port()}/0"
    make_sample(ready=1)

    text = page(status=409)

    assert "It cannot be looked into." in text


def test_a_purge_of_what_really_waits_is_written_down_for_runops(app):
    for number in range(3):
        send(app, order_id=number)

    done = admin().post(
        "/queues/one/purge/?name=critical", {"why": "they are stale", "expected": "2"}, follow=True
    )

    action = QueueAction.objects.get()
    assert (action.queue, action.expected, action.why, str(action.state)) == (
        "critical",
        2,
        "they are stale",
        "waiting",
    )
    text = tags(done).text
    assert "2 messages of critical are being purged. How far it is stands on this page." in text
    assert "2 to purge; runops has not begun. By Mara Lindqvist" in text


def test_a_second_purge_waits_for_the_first(app):
    send(app, order_id=1)
    make_sample(ready=1)
    client = admin()
    client.post("/queues/one/purge/?name=critical", {"why": "stale", "expected": "1"})

    asked = client.get("/queues/one/purge/?name=critical")
    again = client.post("/queues/one/purge/?name=critical", {"why": "stale", "expected": "1"})

    assert "A purge of it goes on: 1 to purge; runops has not begun. Wait for its end." in tags(asked).text
    assert again.status_code == 409
    assert "a purge by Mara Lindqvist goes on" in tags(again).text
