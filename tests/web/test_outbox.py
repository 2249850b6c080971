"""The outbox's pages: what is stuck, why, what happens next, and the button that sends it now."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.urls import reverse

from console.presenters import outbox_page
from jobs.audit import Actor
from jobs.core.words import LetterState, OutboxState, Reason
from jobs.models import AuditEntry, Lease, OutboxMessage
from jobs.outbox import service
from jobs.roles import OPERATOR, VIEWER
from tests.factories import NOW, make_letter
from tests.web.acting import audited
from tests.web.outbox_rows import ERROR, given_up, held, make_message, refused, sent
from tests.web.people import HTMX, client_of, href, operator, tags, viewer

pytestmark = pytest.mark.django_db

OUTBOX = "/outbox/"


@pytest.fixture(autouse=True)
def _at_night():
    with time_machine.travel(NOW, tick=False):
        yield


@pytest.fixture
def relay() -> Lease:
    """A runops that carries the relay out; the lease is by the database's clock, which nothing freezes."""
    return Lease.objects.create(
        duty="relay", holder="runops@web-1:411", renewed_at=NOW, expires_at=NOW + timedelta(days=36_500)
    )


def page(address: str = OUTBOX, client: Any = None) -> str:
    response = (client or viewer()).get(address)
    assert response.status_code == 200
    return tags(response).text


def of(message: OutboxMessage, action: str = "") -> str:
    return reverse(f"console:outbox-message{action}", args=[message.uuid])


# What the page says


def test_an_empty_outbox_says_what_would_be_here_and_why_it_is_not(relay):
    text = page()

    assert "Nothing waits: every message of a committed transaction has been sent." in text
    assert "A job that is enqueued inside a transaction is written here with it" in text
    assert "Lag 0 s nothing is late" in text
    assert "The relay does not run" not in text


def test_what_waits_is_counted_with_its_lag(relay):
    make_message(seconds=4)
    make_message(seconds=0.4)

    text = page()

    assert "2 messages wait to be sent. The relay sends what is due within a second." in text
    assert "Waiting 2 to be sent" in text
    assert "Lag 4 s due since 03:11:56 UTC" in text
    assert "Stuck 0 nothing is refused or late" in text


def test_what_is_stuck_says_since_when_why_and_what_happens_next(relay):
    refused()
    make_message()

    text = page()

    assert "2 messages wait; 1 of them is stuck. The oldest was written 4 min ago." in text
    assert f"The broker refused send_receipt 3 times. {ERROR}" in text
    assert f"Stuck written 4 min ago 03:08:00 3 {ERROR} next try in 40 s" in text


def test_a_refusal_is_named_though_older_messages_were_not_refused(relay):
    make_message(seconds=300)
    refused()

    assert f"The broker refused send_receipt 3 times. {ERROR}" in page()


def test_what_was_given_up_is_not_called_sent(relay):
    given_up()

    text = page()

    assert "Nothing waits to be sent. 1 message was given up and became a dead letter." in text
    assert "has been sent" not in text


def test_a_message_that_nobody_has_sent_for_a_minute_is_stuck(relay):
    make_message(seconds=252)

    text = page()

    assert "1 message waits and is stuck. It was written 4 min ago." in text
    assert "Lag 4 min 12 s due since 03:07:48 UTC" in text


def test_what_keeps_the_relay_from_sending_is_told_since_when(relay):
    Lease.objects.update(
        trouble="BrokerUnavailable: The broker at redis://mq:6379/0 does not answer. Trying again is safe.",
        trouble_since=NOW - timedelta(minutes=3),
    )
    message = make_message(seconds=90)

    for address in (OUTBOX, of(message)):
        text = page(address, client=client_of(VIEWER, login=uuid.uuid4().hex))
        assert (
            "The relay has been unable to send for 3 min. The broker at redis://mq:6379/0 does not answer."
            in text
        )
        assert "What waits here is sent by itself once it can." in text
    assert "Due for 1 min and not sent yet." in text


def test_without_a_relay_the_page_says_what_that_means_and_what_to_do():
    assert "The relay does not run. Messages still leave right after their commit" in page()

    make_message()

    text = page(client=client_of(VIEWER, login="two"))
    assert "The relay does not run. No runops carries it out, so what waits here stays." in text
    assert "Start one: manage.py runops." in text
    assert "next try when the relay runs" in text


def test_a_relay_that_died_is_named(relay):
    Lease.objects.update(expires_at=NOW - timedelta(days=3650), renewed_at=NOW - timedelta(minutes=3))

    assert "runops@web-1:411 did, and was last seen 3 min ago." in page()


def test_each_database_with_an_outbox_needs_its_relay(relay, settings):
    settings.JOBS_OUTBOX_DATABASES = ("default", "shop")

    assert outbox_page.relay().idle == ("shop",)


@pytest.mark.parametrize(
    ("state", "wanted"),
    [
        ("", ["receipt:waits", "receipt:stuck"]),
        ("waiting", ["receipt:waits", "receipt:stuck"]),
        ("stuck", ["receipt:stuck"]),
        ("held", ["receipt:held"]),
        ("gave_up", ["receipt:gone"]),
        ("published", ["receipt:sent"]),
    ],
)
def test_the_address_chooses_the_list(relay, state, wanted):
    make_message(idempotency_key="receipt:waits")
    refused(idempotency_key="receipt:stuck")
    held(idempotency_key="receipt:held")
    given_up(idempotency_key="receipt:gone")
    sent(idempotency_key="receipt:sent")

    text = page(f"{OUTBOX}?state={state}")

    assert [word for word in text.split() if word.startswith("receipt:")] == wanted
    for words in ("Waiting 2", "Stuck 1", "Held for later 1", "Given up 1"):
        assert words in text


def test_a_sent_message_says_how_and_how_soon(relay):
    sent()

    assert "right after its commit, 20 ms after it was written" in page(f"{OUTBOX}?state=published")


def test_a_held_message_says_when_it_is_due_and_when_its_job_starts(relay):
    held()

    text = page(f"{OUTBOX}?state=held")

    assert "Held due in 2 h 05:12:00" in text
    assert "05:12:00 UTC" in text
    assert "next due in 2 h" in text


def test_a_list_is_searched_by_task_queue_job_or_key(relay):
    make_message(idempotency_key="receipt:1")
    make_message(idempotency_key="receipt:2", queue="low")

    for text, number in (("receipt:2", 1), ("low", 1), ("shop.tasks.send_receipt", 2), ("nothing", 0)):
        response = operator_or_again().get(OUTBOX, {"q": text})
        assert len(tags(response).all("tr", class_="row")) == number


def operator_or_again() -> Any:
    return client_of(OPERATOR, login=uuid.uuid4().hex)


def test_pages_follow_by_key_without_a_gap(relay, monkeypatch):
    monkeypatch.setattr("console.views.outbox.PAGE_SIZE", 2)
    for number in range(5):
        make_message(seconds=50 - number, idempotency_key=f"receipt:{number}")
    client, address, seen = viewer(), OUTBOX, []

    for _ in range(3):
        response = client.get(address)
        seen += [word for word in tags(response).text.split() if word.startswith("receipt:")]
        address = href(response, "Next page") if "Next page" in tags(response).text else ""

    assert seen == [f"receipt:{number}" for number in range(5)]
    assert address == ""


@pytest.mark.parametrize("address", ["?state=nonsense", "?at=nonsense", "?state=stuck&at=1.2.3"])
def test_an_address_that_cannot_be_read_says_so_on_the_first_page(relay, address):
    response = viewer().get(f"{OUTBOX}{address}", follow=True)

    assert response.redirect_chain == [(OUTBOX, 302)]
    assert "That part of the outbox cannot be shown" in tags(response).text


def test_what_a_message_says_of_itself_is_escaped(relay):
    message = refused(
        task="<script>alert(1)</script>",
        queue="<b>q</b>",
        last_error="<img src=x>\u202e",
        idempotency_key="<i>",
    )

    for address in (OUTBOX, of(message)):
        html = client_of(VIEWER, login=uuid.uuid4().hex).get(address).content.decode()
        assert "<script>alert" not in html
        assert "<img" not in html
        assert "<b>q" not in html
        assert "<i>" not in html
        assert "\u202e" not in html


# One message


def test_one_message_shows_its_arguments_masked_its_headers_and_its_history(relay):
    message = make_message(
        seconds=90, kwargs={"order_id": 7, "card_token": "tok_hunter2"}, attempts=1, last_error=ERROR
    )

    response = viewer().get(of(message))
    text = tags(response).text

    assert "tok_hunter2" not in response.content.decode()
    assert '"order_id": 7' in text
    assert "Masked values are sent unchanged." in text
    assert "Written in a transaction, by web-1 to queue critical" in text
    assert f"The broker refused it once. {ERROR}. It is tried again with the relay's next batch." in text
    assert "After 8 refusals it is given up and becomes a dead letter." in text
    assert "Published not yet, written by web-1" in text


def test_a_message_that_was_given_up_leads_to_its_dead_letter(relay):
    message = given_up()
    letter = make_letter(task_id=message.task_id, reason=Reason.PUBLISH_FAILED)

    response = viewer().get(of(message))

    assert f"{ERROR}. It is a dead letter now" in tags(response).text
    assert "Published never, written by web-1" in tags(response).text
    assert href(response, f"Open letter {letter.short_id}") == reverse("console:letter", args=[letter.uuid])
    assert "It was given up: replay its dead letter instead." in tags(response).text


def test_a_message_whose_letter_was_replayed_is_not_called_dead(relay):
    message = given_up()
    make_letter(task_id=message.task_id, reason=Reason.PUBLISH_FAILED, state=LetterState.RESOLVED)

    text = page(of(message))

    assert "It became a dead letter, which is resolved now." in text
    assert "It is a dead letter now" not in text


def test_a_message_that_expired_says_that_it_was_not_refused(relay):
    text = page(of(given_up(attempts=0, last_error="", expires_at=NOW - timedelta(seconds=5))))

    assert "It expired at 03:11:55, before it could be sent." in text
    assert "Given up because it had expired" in text
    assert "refusal" not in text


def test_a_message_whose_letter_is_gone_says_so(relay):
    assert "Its dead letter is not here any more." in page(of(given_up()))


def test_a_body_that_is_not_json_is_never_loaded(relay):
    message = make_message(body=b"\x80\x04cposix\nsystem\n", content_type="application/x-python-serialize")

    text = page(of(message))

    assert "It is never loaded here, and the relay sends it byte for byte." in text
    assert "000000 80 04 63" in text


def test_a_message_that_is_not_here_says_why_that_may_be(relay):
    response = viewer().get(reverse("console:outbox-message", args=[uuid.uuid4()]))

    assert response.status_code == 404
    assert "What was sent is kept for 24 h; search for its job." in tags(response).text


# The button


def test_retry_now_makes_it_due_and_says_so_and_who_asked(relay):
    message, client = refused(), operator()

    response = client.post(of(message, "-retry"), follow=True)

    message.refresh_from_db()
    assert message.available_at == NOW
    assert response.redirect_chain == [(of(message), 302)]
    assert "1 message is due now; the relay sends it next." in tags(response).text
    entry = audited().get()
    assert (entry.action, entry.text) == ("retry", "asked for 1 outbox message to be sent at once")
    assert entry.user == client.user


def test_without_a_relay_the_answer_says_that_nothing_sends_it():
    response = operator().post(of(refused(), "-retry"), follow=True)

    assert "1 message is due now; but the relay does not run: start a runops." in tags(response).text


def test_a_press_in_the_list_leads_back_to_the_list(relay):
    message = refused()

    response = operator().post(of(message, "-retry"), {"state": "stuck", "q": "critical"}, follow=True)

    assert response.redirect_chain == [("/outbox/?q=critical&state=stuck", 302)]


def test_ticked_messages_are_retried_and_those_that_left_are_named(relay):
    first, second, gone = refused(), refused(), sent()

    response = operator().post(
        "/outbox/retry/", {"id": [first.uuid, second.uuid, gone.uuid], "state": "stuck"}, follow=True
    )

    text = tags(response).text
    assert "2 messages are due now; the relay sends them next." in text
    assert f"Cannot retry outbox message {gone.uuid.hex[:8]}: it is published as job" in text
    assert OutboxMessage.objects.filter(available_at=NOW).count() == 2


def test_all_that_is_stuck_is_asked_about_first(relay):
    messages = [refused() for _ in range(3)]
    waiting = make_message()
    client = operator()

    asked = client.get("/outbox/retry/")
    assert "Retry 3 messages now" in tags(asked).text
    assert "Nothing is sent until you press the button on this page." in tags(asked).text
    assert not OutboxMessage.objects.filter(available_at=NOW).exists()
    response = client.post("/outbox/retry/", {"all": "stuck"}, follow=True)

    assert "3 messages are due now" in tags(response).text
    assert set(OutboxMessage.objects.filter(available_at=NOW)) == set(messages)
    waiting.refresh_from_db()
    assert waiting.available_at < NOW


def test_nothing_stuck_leaves_nothing_to_ask(relay):
    client = operator()

    assert "Nothing is stuck: there is nothing to retry." in tags(client.get("/outbox/retry/")).text
    response = client.post("/outbox/retry/", {"all": "stuck"})

    assert response.status_code == 409
    assert "Nothing was retried: no outbox message is stuck." in tags(response).text


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (held, "a broker hands a job that waits so long out more than once"),
        (given_up, "it was given up"),
        (sent, "it is published as job"),
    ],
)
def test_a_message_in_another_state_is_refused_with_the_reason(relay, make, why):
    message, client = make(), operator()

    for values in ({}, {"state": ""}):
        response = client.post(of(message, "-retry"), values)

        assert response.status_code == 409
        assert "Nothing was retried." in tags(response).text
        assert why in tags(response).text
    assert not audited().exists()


def test_a_form_without_a_tick_says_what_to_do(relay):
    response = operator().post("/outbox/retry/", {"state": ""})

    assert response.status_code == 422
    assert "Tick at least one." in tags(response).text


def test_an_id_that_is_none_is_refused(relay):
    response = operator().post("/outbox/retry/", {"id": "nonsense"})

    assert response.status_code == 409
    assert "it is not the id of an outbox message" in tags(response).text


def test_a_viewer_sees_the_buttons_and_why_they_do_nothing(relay):
    message, client = refused(), viewer()

    for address in (OUTBOX, of(message)):
        found = tags(client.get(address))
        assert (
            "Retrying takes the permission “send waiting outbox messages at once”. Ask an admin."
            in found.text
        )
        assert [each for each in found.all("span", class_="button") if each.get("aria-disabled") == "true"]
    assert client.post(of(message, "-retry")).status_code == 403
    assert client.post("/outbox/retry/", {"id": message.uuid}).status_code == 403
    assert client.get("/outbox/retry/").status_code == 403
    message.refresh_from_db()
    assert message.available_at > NOW


def test_without_the_permission_to_look_nothing_is_shown(relay):
    message, client = refused(), client_of(None)

    for address in (OUTBOX, of(message), "/outbox/retry/"):
        assert client.get(address).status_code == 403


def test_a_get_of_the_address_that_acts_does_nothing_and_leads_to_the_message(relay):
    message = refused()

    response = operator().get(of(message, "-retry"), follow=True)

    assert response.redirect_chain == [(of(message), 302)]
    assert "Nothing was done: only the button on this page acts." in tags(response).text
    assert not audited().exists()


# Live


def version_of(client: Any, message: OutboxMessage) -> str:
    (row,) = tags(client.get(OUTBOX)).all("tr", id=f"outbox-{message.uuid}")
    return f"{message.uuid}:{row['data-version']}"


def test_a_poll_is_answered_the_figures_and_the_rows_that_changed(relay):
    client = operator()
    leaves, stays = refused(), refused()
    shown = f"{version_of(client, leaves)},{version_of(client, stays)}"
    OutboxMessage.objects.filter(pk=leaves.pk).update(
        state=OutboxState.PUBLISHED, published_at=NOW, published_by="relay"
    )

    response = client.get(OUTBOX, {"drawn": "2", "rows": shown}, **HTMX)

    found = tags(response)
    assert [row["id"] for row in found.all("tr")] == [f"outbox-{leaves.uuid}"]
    assert "row-dimmed" in found.all("tr")[0]["class"]
    assert "1 message waits and is stuck." in found.text
    assert "2 of 2; now 1. Show the list as it is now" in found.text
    assert not found.all("html")


@pytest.mark.parametrize(
    "values", [{"drawn": "0"}, {"drawn": "9" * 30, "rows": "x,y:z,"}, {"drawn": "1", "state": "zz"}]
)
def test_a_poll_that_no_page_of_ours_sent_is_answered_too(relay, values):
    assert viewer().get(OUTBOX, values, **HTMX).status_code == 200


def test_the_page_of_a_message_stops_polling_once_it_has_left(relay):
    client, message = viewer(), refused()
    assert client.get(of(message), **HTMX).status_code == 200

    OutboxMessage.objects.update(state=OutboxState.PUBLISHED, published_at=NOW, published_by="relay")
    response = client.get(of(message), **HTMX)

    assert response.status_code == 286
    assert "Sent at 03:12:00." in tags(response).text
    assert 'id="outbox-history"' in response.content.decode()


def test_the_number_of_queries_does_not_grow_with_the_rows(relay, django_assert_max_num_queries):
    for _ in range(50):
        refused()
    client = operator()
    client.get(OUTBOX)

    with django_assert_max_num_queries(20):
        client.get(OUTBOX)


# Elsewhere


def test_the_overview_tells_the_lag_and_what_is_stuck(relay):
    make_message(seconds=4)
    refused()

    text = page("/")

    assert "1 message is stuck in the outbox." in text
    assert "Outbox lag 4 s not known before 2 messages wait, 1 stuck" in text
    assert "Stuck Messages stay in the outbox" in text
    assert "for 4 min" in text


def test_the_overview_of_an_empty_outbox_asks_for_nothing(relay):
    text = page("/")

    assert "Outbox lag 0 s not known before no message waits" in text
    assert "Messages stay in the outbox" not in text


def test_a_retry_is_found_in_the_audit(relay):
    service.retry_now(ids=[refused().uuid], actor=Actor(name="mara"), now=NOW)

    assert AuditEntry.objects.get().action == "retry"
    assert "asked for 1 outbox message to be sent at once" in page("/audit/?action=retry")
