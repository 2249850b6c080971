"""The list of operations, the page of one, and its controls."""

from __future__ import annotations

import html
import json
from datetime import timedelta

import pytest
import time_machine
from django.test import Client
from django.urls import reverse

from console import operation_charts
from jobs.core.words import ItemState, OperationKind, OperationState
from jobs.models import Lease, Operation, OperationEvent, OperationItem, OperationStage
from jobs.operations import Progress, StageRow
from jobs.roles import VIEWER
from tests.factories import NOW, make_group, make_item, make_letter, make_operation
from tests.web.acting import audited, client_of, form_actions, person, text_of
from tests.web.people import HTMX, tags

pytestmark = pytest.mark.django_db

LATER = NOW + timedelta(minutes=4)


@pytest.fixture(autouse=True)
def frozen():
    with time_machine.travel(LATER, tick=False):
        yield


@pytest.fixture
def client() -> Client:
    return client_of(person())


@pytest.fixture
def replay() -> Operation:
    """A replay in its second stage: 3 done, 1 died, 1 skipped, 2 waiting, 3 not sent."""
    operation = make_operation(
        selected_count=10,
        stages=[4, None],
        rate_per_second=2,
        started_at=NOW,
        why="the relay is back\nINC-2291",
    )
    group = make_group()
    states = (
        [ItemState.DONE] * 3
        + [ItemState.DIED, ItemState.SKIPPED]
        + [ItemState.SENT] * 2
        + [ItemState.PENDING] * 3
    )
    for number, state in enumerate(states):
        is_sent = state in {ItemState.DONE, ItemState.DIED, ItemState.SENT}
        make_item(
            operation,
            make_letter(group=group),
            state=state,
            stage=(1 if number < 4 else 2) if is_sent else 0,
            sent_at=NOW + timedelta(seconds=number) if is_sent else None,
            ended_at=NOW + timedelta(seconds=number + 1)
            if state in {ItemState.DONE, ItemState.DIED}
            else None,
        )
    OperationStage.objects.create(operation=operation, number=1, size=4, started_at=NOW, ended_at=NOW)
    OperationStage.objects.create(operation=operation, number=2, size=None, started_at=NOW)
    OperationEvent.objects.create(
        operation=operation, at=NOW, actor="runops-1", kind="passed", text="Stage 1 passed"
    )
    return operation


def url(operation: Operation, action: str = "") -> str:
    name = f"operation-{action}" if action else "operation"
    return reverse(f"console:{name}", args=[operation.pk])


def test_the_figures_add_up_to_the_total(client: Client, replay: Operation) -> None:
    text = text_of(client.get(url(replay)))

    assert "6 of 10 sent, 70 %" in text
    for figure in ("Done 3", "Died again 1", "Skipped 1", "Waiting for outcome 2", "Not sent yet 3"):
        assert figure in text
    assert "75.0 % of those finished" in text
    assert "25.0 %, in 1 group" in text


def test_the_bar_has_a_part_for_each_figure_without_inline_styles(client: Client, replay: Operation) -> None:
    body = client.get(url(replay)).content.decode()

    assert body.count('<rect class="part-') == 1 + 5
    assert "3 done, 1 died, 1 skipped, 2 waiting, 3 rest" in body
    assert "style=" not in body


def test_stages_log_and_facts_are_told(client: Client, replay: Operation) -> None:
    text = text_of(client.get(url(replay)))

    assert "Running, stage 2 of 2" in text
    assert "1 4 letters Finished 4 3 1 25.0 % 03:12:00 03:12:00" in text
    assert "2 5 letters, the rest Running 2 0 0" in text
    assert "03:12:00 Stage 1 passed runops-1" in text
    assert "the relay is back INC-2291" in text


def test_the_chart_has_a_table_that_says_the_same(client: Client, replay: Operation) -> None:
    body = client.get(url(replay)).content.decode()

    assert 'data-chart="sent-figure"' in body
    assert "Show as a table" in body
    assert "03:12:03 0 1 0" in text_of(client.get(url(replay)))


def test_htmx_gets_one_region_and_goes_on_polling(client: Client, replay: Operation) -> None:
    response = client.get(url(replay), headers={"HX-Request": "true"})

    assert response.status_code == 200
    assert response.content.decode().lstrip().startswith('<div id="operation">')
    assert "HX-Request" in response["Vary"]
    whole = client.get(url(replay)).content.decode()
    assert f'hx-get="{url(replay)}" hx-trigger="every 2s, refresh" hx-target="#operation"' in whole


def test_polling_stops_when_nothing_will_change(client: Client, replay: Operation) -> None:
    Operation.objects.update(
        state=OperationState.FINISHED, ended_at=LATER, outcome="Of 10 replayed: 10 done."
    )
    OperationItem.objects.update(state=ItemState.DONE)

    assert client.get(url(replay), headers={"HX-Request": "true"}).status_code == 286
    whole = client.get(url(replay))
    assert whole.status_code == 200
    assert "hx-get" not in whole.content.decode()
    assert "Of 10 replayed: 10 done." in text_of(whole)


def test_a_cancelled_replay_is_polled_while_outcomes_are_out(client: Client, replay: Operation) -> None:
    Operation.objects.update(state=OperationState.CANCELLED, ended_at=LATER, outcome="Cancelled by Mara.")

    response = client.get(url(replay), headers={"HX-Request": "true"})

    assert response.status_code == 200
    assert "2 outcomes may still come." in text_of(response)


def hold_operations(**fields: object) -> None:
    # Leases are by the database's clock, which nothing freezes.
    fields = {"holder": "runops@web-1:411", "expires_at": NOW + timedelta(days=36_500)} | fields
    Lease.objects.create(duty="operations", renewed_at=NOW, **fields)


def test_a_replay_that_stands_still_says_why_where_the_operator_waits_for_it(
    client: Client, replay: Operation
) -> None:
    """It said "200 of 200 sent" and waited for outcomes while the broker took nothing."""
    hold_operations(
        trouble="BrokerUnavailable: The broker at redis://mq:6379/0 did not take 200 messages: OOM <b>."
    )

    page = tags(client.get(url(replay), headers=HTMX)).text

    assert "It stands still. The broker at redis://mq:6379/0 did not take 200 messages: OOM <b>." in page
    assert "It goes on by itself once it can. What is counted as sent last may not be sent yet." in page


def test_an_operation_that_no_runops_carries_out_says_so(client: Client, replay: Operation) -> None:
    purge = make_operation(kind=OperationKind.PURGE, selected_count=3)

    assert (
        "It stands still. No runops does this. Start one: manage.py runops."
        in tags(client.get(url(purge))).text
    )


@pytest.mark.parametrize("state", [OperationState.RUNNING, OperationState.PAUSED, OperationState.FINISHED])
def test_an_operation_that_goes_on_or_shall_not_is_not_said_to_stand_still(
    client: Client, replay: Operation, state: str
) -> None:
    if state == OperationState.RUNNING:
        hold_operations()
    Operation.objects.filter(pk=replay.pk).update(state=state)

    assert "It stands still." not in tags(client.get(url(replay))).text


def test_pause_resume_and_cancel(client: Client, replay: Operation) -> None:
    for action, state in (
        ("pause", OperationState.PAUSED),
        ("resume", OperationState.RUNNING),
        ("cancel", OperationState.CANCELLED),
    ):
        response = client.post(url(replay, action))

        replay.refresh_from_db()
        assert (response.status_code, response["Location"]) == (302, url(replay))
        assert replay.state == state
    assert [entry.action for entry in audited()] == ["cancel", "resume", "pause"]


def test_cancel_asks_first_and_says_what_stays(client: Client, replay: Operation) -> None:
    response = client.get(url(replay, "cancel"))

    assert "6 of 10 sent so far. What was sent stays sent" in text_of(response)
    assert "Cancel and leave 3 letters as they are" in text_of(response)
    replay.refresh_from_db()
    assert replay.state == OperationState.RUNNING


@pytest.mark.parametrize(
    ("action", "state", "says"),
    [
        ("pause", OperationState.PAUSED, "it is paused"),
        ("resume", OperationState.RUNNING, "it is running"),
        ("cancel", OperationState.FINISHED, "it is finished"),
        ("continue", OperationState.PAUSED, "it is paused"),
        ("rate", OperationState.CANCELLED, "it is cancelled"),
    ],
)
def test_the_wrong_state_is_refused_with_the_reason(
    client: Client, replay: Operation, action: str, state: OperationState, says: str
) -> None:
    Operation.objects.update(state=state)

    response = client.post(url(replay, action), {"rate": "5"})

    assert response.status_code == 409
    assert "Nothing was changed." in text_of(response)
    assert says in text_of(response)
    replay.refresh_from_db()
    assert replay.state == state
    assert not audited().exists()


@pytest.mark.parametrize("action", ["pause", "resume", "continue", "rate", "note"])
def test_a_control_is_refused_by_get_by_role_and_without_csrf(replay: Operation, action: str) -> None:
    by_get = client_of(person("a")).get(url(replay, action), follow=True)
    assert by_get.redirect_chain == [(url(replay), 302)]
    assert "Nothing was done: only the button on this page acts." in text_of(by_get)
    viewer = client_of(person("ines", role=VIEWER)).post(url(replay, action), {"rate": "5", "text": "x"})
    assert viewer.status_code == 403
    assert "Controlling an operation takes the permission “control operations”." in text_of(viewer)
    assert client_of(person("b"), enforce_csrf_checks=True).post(url(replay, action)).status_code == 403
    assert not audited().exists()


def test_a_viewer_sees_everything_and_no_form_that_acts(replay: Operation) -> None:
    response = client_of(person("ines", role=VIEWER)).get(url(replay))

    assert "6 of 10 sent" in text_of(response)
    assert "Your role may look, not control. Ask an admin." in text_of(response)
    assert 'type="submit"' not in response.content.decode()
    for action in form_actions(response):
        if action.startswith(url(replay)):
            # The form stands around a refused button, which submits nothing.
            assert action in {url(replay, "pause"), url(replay, "continue")}


@pytest.mark.parametrize(("typed", "rate"), [("5", 5.0), ("0.5", 0.5), ("1,000", 1000.0), ("", None)])
def test_the_rate_is_set(client: Client, replay: Operation, typed: str, rate: float | None) -> None:
    response = client.post(url(replay, "rate"), {"rate": typed})

    replay.refresh_from_db()
    assert response.status_code == 302
    assert replay.rate_per_second == rate


@pytest.mark.parametrize("typed", ["0", "-1", "nan", "1e9", "fast"])
def test_a_rate_that_is_none_is_refused(client: Client, replay: Operation, typed: str) -> None:
    response = client.post(url(replay, "rate"), {"rate": typed})

    replay.refresh_from_db()
    assert response.status_code == 422
    assert f"“{typed}” is not a rate." in text_of(response)
    assert replay.rate_per_second == 2


def test_waiting_for_outcomes_can_be_stopped(client: Client, replay: Operation) -> None:
    OperationItem.objects.filter(state=ItemState.PENDING).update(state=ItemState.DONE)
    assert "Stop waiting for outcomes" in text_of(client.get(url(replay)))

    response = client.post(url(replay, "continue"))

    assert response.status_code == 302
    assert OperationItem.objects.filter(state=ItemState.UNKNOWN).count() == 2


def test_a_replay_that_still_sends_offers_no_end_of_waiting(client: Client, replay: Operation) -> None:
    assert "Stop waiting for outcomes" not in text_of(client.get(url(replay)))


def test_a_note_goes_into_the_log_also_after_the_end(client: Client, replay: Operation) -> None:
    Operation.objects.update(state=OperationState.FINISHED)

    response = client.post(url(replay, "note"), {"text": "receipts arrive"})

    assert response.status_code == 302
    assert "Note: receipts arrive Mara Lindqvist" in text_of(client.get(url(replay)))


def test_an_empty_note_is_refused(client: Client, replay: Operation) -> None:
    response = client.post(url(replay, "note"), {"text": ""})

    assert response.status_code == 422
    assert "it is empty. Write at least one word." in text_of(response)


def test_a_stopped_replay_says_why_and_what_resuming_means(client: Client, replay: Operation) -> None:
    Operation.objects.update(
        state=OperationState.STOPPED, outcome="Stage 2: 24 of 100 died again, limit 20 %."
    )

    text = text_of(client.get(url(replay)))

    assert "Stage 2: 24 of 100 died again, limit 20 %. Nothing more is sent until somebody resumes" in text
    assert "Resume in spite of it" in text


def test_a_purge_shows_what_can_be_restored_until_when(client: Client) -> None:
    purge = make_operation(
        kind=OperationKind.PURGE,
        state=OperationState.FINISHED,
        selected_count=1,
        changed_count=1,
        delete_after=NOW + timedelta(days=7),
    )
    make_letter(state="purged", purged_by=purge)

    response = client.get(url(purge))

    assert "1 letter can be restored until 19 Nov, 03:12 UTC." in text_of(response)
    assert url(purge, "restore") in response.content.decode()


def test_hostile_words_of_an_operation_are_escaped(client: Client) -> None:
    evil = "<script>alert(1)</script>\u202e"
    operation = make_operation(why=evil, actor=evil, selection_words=evil, target_queue=evil, outcome=evil)
    OperationEvent.objects.create(operation=operation, at=NOW, actor=evil, kind="note", text=evil)

    for address in (url(operation), reverse("console:operations"), url(operation, "cancel")):
        body = client.get(address).content.decode()
        assert "<script>alert" not in body
        assert "\u202e" not in body


def test_the_list_shows_the_newest_first_with_their_bars(client: Client, replay: Operation) -> None:
    make_operation(
        kind=OperationKind.PURGE, state=OperationState.FINISHED, selected_count=28, changed_count=28
    )

    text = text_of(client.get(reverse("console:operations")))

    assert "1 operation is running." in text
    assert text.index("Purge of 28 letters") < text.index("Replay of 10 letters")
    assert "70 %: 3 done, 1 died again, 1 skipped, 2 waiting" in text


def test_the_list_goes_on_page_by_page(client: Client) -> None:
    for _ in range(31):
        make_operation(state=OperationState.FINISHED)
    oldest = Operation.objects.order_by("pk").first()
    assert oldest is not None

    first = client.get(reverse("console:operations")).content.decode()
    second = client.get(f"{reverse('console:operations')}?before={oldest.pk + 1}").content.decode()

    assert f"?before={oldest.pk + 1}" in first
    assert url(oldest) not in first
    assert url(oldest) in second


def test_an_empty_list_says_what_will_be_here(client: Client) -> None:
    assert "No operations yet" in text_of(client.get(reverse("console:operations")))


@pytest.mark.parametrize("number", [7, 2**70])
def test_an_operation_that_does_not_exist_says_so(client: Client, number: int) -> None:
    response = client.get(f"/operations/{number}/")

    assert response.status_code == 404
    assert "There is no operation" in text_of(response)


def test_the_page_asks_the_database_a_fixed_number_of_times(
    client: Client, replay: Operation, django_assert_max_num_queries
) -> None:
    with django_assert_max_num_queries(30):
        client.get(url(replay))


def test_a_paused_operation_has_no_running_stage(client: Client, replay: Operation) -> None:
    Operation.objects.update(state=OperationState.PAUSED)

    assert "2 5 letters, the rest Paused 2 0 0" in text_of(client.get(url(replay)))


def test_the_log_names_a_letter_once(client: Client, replay: Operation) -> None:
    letter = make_letter()
    OperationEvent.objects.create(
        operation=replay,
        at=NOW,
        actor="celery@web-1",
        kind="died",
        letter=letter,
        text=f"{letter.short_id} shop.tasks.send_receipt died again: KeyError",
    )

    text = text_of(client.get(url(replay)))

    assert f"03:12:00 shop.tasks.send_receipt died again: KeyError letter {letter.short_id}" in text


def test_the_chart_is_there_before_the_first_letter_is_sent(client: Client) -> None:
    operation = make_operation(selected_count=3)

    body = client.get(url(operation)).content.decode()

    assert 'data-chart="sent-figure"' in body
    figure = json.loads(html.unescape(body.split('<pre id="sent-figure" hidden>')[1].split("</pre>")[0]))
    assert figure["layout"]["xaxis"]["range"] == ["2026-11-12 03:16:00", "2026-11-12 03:16:30"]


def test_stages_that_began_together_share_a_label(replay: Operation) -> None:
    stages = [
        StageRow(
            number=n,
            size=size,
            state="passed",
            planned=1,
            sent=1,
            done=1,
            died=0,
            waiting=0,
            unknown=0,
            share_percent=0.0,
            started_at=NOW + timedelta(seconds=after),
            ended_at=None,
        )
        for n, (size, after) in enumerate(((1, 0), (10, 0.2), (None, 9)), start=1)
    ]
    progress = Progress(3, 3, 0, 0, 0, 0, 0, 0, 3, stages=stages)

    figure = operation_charts.sent(progress, now=NOW)

    assert [label["text"] for label in figure["layout"]["annotations"]] == ["1, 10", "all"]


def test_an_operation_of_one_letter_links_it(client: Client) -> None:
    letter = make_letter()
    operation = make_operation(selected_count=1, selection={"ids": [str(letter.uuid)]})

    assert (
        f'<a href="/dead-letters/{letter.uuid}/">letter {letter.short_id}</a>'
        in client.get(url(operation)).content.decode()
    )
