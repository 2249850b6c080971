"""The overview: its sentence, what needs attention, the figures and the tables."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
import time_machine

from jobs import overview as figures
from jobs.core.words import GroupState, ItemState, LetterState, OperationState
from jobs.models import Lease
from tests.factories import NOW, make_group, make_item, make_letter, make_operation
from tests.metrics_rows import make_rollup, make_sample
from tests.web.people import HTMX, href, operator, tags, viewer
from tests.web.test_letters import query_of

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _at_night():
    with time_machine.travel(NOW, tick=False):
        yield


@pytest.fixture(autouse=True)
def _runops() -> None:
    """All duties are carried out; the leases are by the database's clock, which nothing freezes."""
    for duty in ("collector", "runs", "queues", "operations", "alerts", "notifications", "relay"):
        Lease.objects.create(
            duty=duty, holder="runops@web-1:411", renewed_at=NOW, expires_at=NOW + timedelta(days=36_500)
        )


def fill(count: int, *, minutes: float = 1, queue: str = "critical", state=LetterState.DEAD, **fields):
    group = make_group(**fields)
    died_at = NOW - timedelta(minutes=minutes)
    for _ in range(count):
        make_letter(group=group, death=False, died_at=died_at, queue=queue, state=state)
    return group


def sentence(client=None) -> str:
    html = (client or viewer()).get("/").content.decode()
    return html.split("<h1>Overview</h1>")[1].split('<p class="hostile">')[1].split("</p>")[0]


def test_an_empty_store_says_that_nothing_is_dead():
    client = viewer()

    assert sentence(client) == "No job is dead, and none died in the last hour."
    text = tags(client.get("/")).text
    assert "No alert is firing, nothing that is new or came back has failed in the last 15 minutes" in text
    assert "and runops does its work." in text


def test_what_workers_told_and_could_not_be_counted_is_said_although_runops_does_its_work():
    Lease.objects.filter(duty="runs").update(
        remark="3 batches on jobs.runs could not be read or counted: <b>"
    )

    client = viewer()

    assert sentence(client).endswith("3 batches on jobs.runs could not be read or counted: &lt;b&gt;.")
    assert "and runops does its work." in tags(client.get("/")).text


def test_a_broker_that_is_away_is_told_before_everything_else():
    big = fill(3)
    trouble = "BrokerUnavailable: The broker at redis://mq:6379/0 does not answer. Trying again is safe."
    Lease.objects.update(trouble=trouble, trouble_since=NOW - timedelta(seconds=20))

    client = viewer()

    assert sentence(client).startswith("What died in the last 20 s is not known here. All 3 jobs")
    page = tags(client.get("/"))
    assert [each["id"] for each in page.all("li", class_="attention-row")] == [
        "standstill",
        f"group-{big.pk}",
    ]
    assert (
        "Blocked Runops does not do its work Dead letters are not collected, attempts are not counted, queues are not "
        "measured, replays and purges stand still, no alert rule is judged, nobody is told of alerts, and what waits in "
        "the outbox is not sent. The broker at redis://mq:6379/0 does not answer. Trying again is safe. "
        "It goes on by itself once it can."
    ) in page.text
    assert "2 things, worst first" in page.text


def test_a_trouble_of_the_relay_alone_leaves_the_figures_whole():
    Lease.objects.filter(duty="relay").update(trouble="BrokerUnavailable: It is away.", trouble_since=NOW)

    client = viewer()

    assert sentence(client) == "No job is dead, and none died in the last hour."
    assert "Blocked What waits in the outbox is not sent It is away." in tags(client.get("/")).text


def test_without_runops_the_overview_says_so_and_what_to_do():
    Lease.objects.update(expires_at=NOW - timedelta(days=3650), renewed_at=NOW - timedelta(minutes=3))

    client = viewer()

    assert sentence(client).startswith("What died in the last 3 min is not known here.")
    assert "No runops does this. Start one: manage.py runops. for 3 min" in tags(client.get("/")).text


def test_a_site_that_never_ran_runops_does_not_say_that_nothing_died():
    Lease.objects.all().delete()

    client = viewer()

    assert sentence(client).startswith("No runops has run, so nobody collects what dies.")
    assert (
        "Not running Runops does not do its work Dead letters are not collected" in tags(client.get("/")).text
    )


def test_the_sentence_counts_what_died_in_groups_that_still_fail():
    fill(5)
    fill(2)
    fill(1, state=LetterState.DEAD, minutes=40, queue="low")

    assert (
        sentence() == "7 of the 8 jobs that died in the last hour are dead letters of 2 groups "
        "that still fail, both on queue critical."
    )


def test_of_a_message_without_a_queue_no_queue_is_said():
    fill(3, queue="")

    client = viewer()

    assert sentence(client) == "All 3 jobs that died in the last hour belong to 1 group."
    assert "send_receipt on" not in tags(client.get("/")).text


def test_the_sentence_of_one_group_with_all():
    fill(3)

    assert sentence() == "All 3 jobs that died in the last hour belong to 1 group, on queue critical."


def test_the_sentence_when_it_is_quiet_again():
    fill(3, minutes=180)

    assert sentence() == (
        "No job died in the last hour; the last job died 3 h ago. 3 dead letters wait for somebody to look."
    )


def test_attention_is_for_new_and_regressed_groups_that_still_fail_worst_first():
    small = fill(1)
    big = fill(3, state=LetterState.DEAD)
    fill(5, minutes=30)
    known = fill(7)
    known.state = GroupState.KNOWN
    known.save()

    response = operator().get("/")

    rows = [each["id"] for each in tags(response).all("li", class_="attention-row")]
    assert rows == [f"group-{big.pk}", f"group-{small.pk}"]
    assert query_of(href(response, "Replay…")) == f"group:{big.pk}"
    assert query_of(href(response, "Letters")) == f"group:{big.pk}"


def test_attention_counts_all_dead_letters_of_a_group_not_only_the_last_hours():
    group = fill(2)
    for _ in range(3):
        make_letter(group=group, death=False, died_at=NOW - timedelta(hours=5))

    found = figures.overview(now=NOW).groups

    assert [(each.letters, each.row.letters) for each in found] == [(5, 2)]


def test_operations_that_have_not_ended_are_shown_with_their_progress():
    letter = make_letter(state=LetterState.REPLAYING)
    running = make_operation(selected_count=1)
    make_item(running, letter, state=ItemState.SENT)
    stopped = make_operation(state=OperationState.STOPPED)
    make_operation(state=OperationState.FINISHED)

    response = viewer().get("/")

    page = tags(response)
    rows = [each["id"] for each in page.all("li", class_="attention-row")]
    assert rows == [f"operation-{stopped.pk}", f"operation-{running.pk}"]
    assert href(response, "Replay of 1 letter") == f"/operations/{running.pk}/"
    assert "2 operations are not finished." in page.text


def test_the_tables_list_what_ran_waits_or_died_by_queue_and_by_task():
    fill(2, queue="critical")
    fill(1, queue="low", minutes=90)
    make_rollup(
        at=NOW - timedelta(minutes=2), queue="default", task="shop.tasks.sync_stock", done=9, received=9
    )
    make_sample(queue="long", at=NOW - timedelta(seconds=2), ready=7, consumers=1)
    client = viewer()

    by_queue, by_task = client.get("/"), client.get("/?by=task")

    assert rows_of(by_queue) == ["long", "critical", "low", "default"]
    assert rows_of(by_task) == ["shop.tasks.send_receipt", "shop.tasks.sync_stock"]
    assert "/dead-letters/?q=queue%3Acritical" in by_queue.content.decode()
    assert "/dead-letters/?q=task%3Ashop.tasks.send_receipt" in by_task.content.decode()


def test_the_poll_gets_the_part_of_the_page_and_the_count():
    fill(1)

    response = viewer().get("/?by=task", **HTMX)

    page = tags(response)
    assert page.tags[0] == ("div", {"class": "stack", "id": "overview"})
    assert page.all("section", id="overview-tables", hx_swap_oob="true") != []
    # The charts are polled apart.
    assert page.all("div", id="overview-charts") == []
    assert page.all("span", id="dead-count", hx_swap_oob="true") != []
    assert page.all("html") == []


@pytest.mark.parametrize("by", ["queue", "task"])
def test_the_number_of_queries_is_fixed(by, django_assert_max_num_queries):
    client = viewer()
    for number in range(20):
        fill(1, queue=f"queue-{number}", task=f"shop.tasks.task_{number}")
        make_rollup(
            at=NOW - timedelta(minutes=number),
            queue=f"queue-{number}",
            task=f"shop.tasks.task_{number}",
            done=3,
        )
        make_sample(queue=f"queue-{number}", at=NOW - timedelta(seconds=2), ready=3, consumers=0)

    with django_assert_max_num_queries(50):
        client.get(f"/?by={by}")


def rows_of(response) -> list[str]:
    """Return the names in the first column of the page's table."""
    table = response.content.decode().split('id="overview-tables"')[1]
    rows = [row.split("</th>")[0] for row in table.split('<th scope="row">')[1:]]
    return ["".join(re.sub(r"<[^>]+>", "", row).split()) for row in rows]
