"""The numbers of the overview: tiles against the window before, what is unknown, alerts, workers, queues, windows."""

from __future__ import annotations

from datetime import timedelta

import pytest
import time_machine

from console.templatetags.console_tags import error_line, group_title
from jobs.core.words import AlertKind, LetterState
from jobs.models import Alert, AlertRule, Deploy, FailureGroup, StateSample
from tests.factories import NOW, make_group, make_letter
from tests.metrics_rows import make_boot, make_heartbeat, make_rollup, make_sample, running_job
from tests.web.people import HTMX, href, operator, tags, viewer

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _at_night():
    with time_machine.travel(NOW + timedelta(seconds=10), tick=False):
        yield


def tiles_of(response) -> dict[str, str]:
    """Return the text of each tile by its name."""
    parts = response.content.decode().split('<div class="tile">')[1:]
    texts = [tags(FakeResponse(part.split("</section>")[0])).text for part in parts]
    names = ("Dead letters", "Failure rate", "Latency p99", "Backlog", "Workers", "Outbox lag")
    assert len(texts) == len(names)
    return {name: text.removeprefix(name).strip() for name, text in zip(names, texts, strict=True)}


class FakeResponse:
    """A part of a page, to read as one."""

    def __init__(self, html: str) -> None:
        self.content = html.encode()


def state(moment, **columns) -> None:
    StateSample.objects.create(level="minute", at=moment, **columns)


def test_each_tile_says_its_figure_its_change_and_one_fact():
    for minute in (10, 20):
        make_rollup(
            at=NOW - minute * MINUTE, done=45, dead=5, received=50, latency=[0.1] * 90 + [1.6] * 8 + [4.8] * 2
        )
        make_rollup(at=NOW - (60 + minute) * MINUTE, done=99, dead=1, received=100, latency=[1.9] * 50)
    make_heartbeat(at=NOW - MINUTE)
    make_sample(at=NOW - 60 * MINUTE, ready=212)
    make_sample(at=NOW, ready=1846, oldest_age_seconds=134)
    make_boot("celery@web-1")
    make_boot("celery@web-2")
    state(NOW - 60 * MINUTE, dead_letters=1, outbox_lag_seconds=0.4, workers_online=1)
    for _ in range(3):
        make_letter(died_at=NOW - 2 * MINUTE)

    tiles = tiles_of(viewer().get("/"))

    assert tiles == {
        "Dead letters": "3 up 2 from 1 not growing now",
        "Failure rate": "10.0 % up 9.0 points from 1.0 % 10 of 100 jobs",
        "Latency p99": "4.7 s up 2.8 s from 1.9 s p50 95 ms, p95 1.6 s",
        "Backlog": "1,846 up 1,634 from 212 oldest 2 min 14 s",
        "Workers": "2 online up 1 from 1 none is lost",
        "Outbox lag": "0 s no change from 400 ms no message waits",
    }


def test_without_any_report_the_tiles_say_no_data_and_since_when_not_zero():
    make_rollup(at=NOW - 200 * MINUTE, done=5, received=5)

    tiles = tiles_of(viewer().get("/"))

    assert tiles["Failure rate"] == "no data since 11 Nov 23:52"
    assert tiles["Latency p99"].startswith("no data since")
    assert tiles["Backlog"] == "no data no queue was counted"
    assert tiles["Workers"] == "no data no worker has reported"


def test_a_console_that_nobody_reports_to_says_so_in_every_chart_and_what_to_do():
    text = tags(viewer().get("/")).text

    assert text.count("No worker has reported in this time.") >= 3
    assert "Attach the agent to your workers" in text


def test_workers_that_fell_silent_within_the_window_are_told_beside_the_rate():
    make_rollup(at=NOW - 9 * MINUTE, done=9, dead=1, received=10)

    assert "no data since 03:03" in tiles_of(viewer().get("/"))["Failure rate"]


def test_a_window_in_which_nothing_ran_has_no_rate_and_is_no_gap():
    make_heartbeat(at=NOW - MINUTE)

    tiles = tiles_of(viewer().get("/"))

    assert tiles["Failure rate"] == "– not known before no job finished"
    assert tiles["Latency p99"] == "– not known before no job ran"


def test_a_firing_alert_comes_first_marks_its_tile_and_leads_to_its_page_and_to_silence():
    rule = AlertRule.objects.filter(kind=AlertKind.LETTERS_GROWING).first()
    assert rule is not None
    alert = Alert.objects.create(
        rule=rule,
        state="firing",
        began_at=NOW - 31 * MINUTE,
        fired_at=NOW - 26 * MINUTE,
        value=125,
        peak=125,
        told_at=NOW - 26 * MINUTE,
    )
    make_letter(died_at=NOW - MINUTE)
    client = operator()

    response = client.get("/")

    page = tags(response)
    rows = [each["id"] for each in page.all("li", class_="attention-row")]
    assert f"alert-{alert.pk}" in rows
    assert rows.index(f"alert-{alert.pk}") <= 1
    assert href(response, "Open alert") == f"/alerts/{alert.pk}/"
    assert href(response, "Silence…") == f"/alerts/silence/?rule={rule.pk}"
    assert "1 alert is firing." in page.text
    assert tiles_of(response)["Dead letters"].startswith("alert 1")


def test_a_queue_without_a_consumer_and_a_lost_worker_need_attention():
    make_sample(queue="long", at=NOW, ready=78, consumers=0, oldest_age_seconds=41)
    make_boot(
        "celery@img-2",
        last_seen_at=NOW - 21 * MINUTE,
        lost_at=NOW - 20 * MINUTE,
        jobs_lost=3,
        running=[running_job(task="shop.tasks.resize_image") for _ in range(3)],
    )
    make_boot("celery@img-1")

    response = viewer().get("/")

    text = tags(response).text
    assert "Nobody takes from long" in text
    assert "78 messages wait" in text
    assert "celery@img-2 stopped reporting" in text
    assert "It ran 3 jobs of resize_image; all 3 are dead letters now." in text
    assert href(response, "celery@img-2 stopped") == "/workers/one/?name=celery%40img-2"
    assert tiles_of(response)["Workers"].startswith("1 of 2")


def test_two_jobs_that_were_lost_with_a_worker_are_both_dead_letters():
    jobs = [running_job(is_acknowledged=True) for _ in range(2)]
    make_boot("celery@img-2", last_seen_at=NOW - MINUTE, lost_at=NOW, jobs_lost=2, running=jobs)

    text = tags(viewer().get("/")).text

    assert "It ran 2 jobs of send_receipt; both are dead letters now." in text


def test_a_title_that_is_cut_says_so_and_one_that_fits_does_not():
    assert group_title(FailureGroup(error_type="E", title="E: " + "word " * 40), 160).endswith("…</span>")
    assert "…" not in group_title(FailureGroup(error_type="E", title="E: " + "w" * 157), 160)
    assert "…" in error_line("E", "x" * 400)


def test_a_queue_that_would_end_a_worker_says_so_before_it_asks_for_one():
    trouble = "Its oldest item is no message: it ends the worker that takes it. Pause the queue, look at it and purge it."
    make_sample(queue="long", at=NOW, ready=78, consumers=0, trouble=trouble)

    text = tags(viewer().get("/")).text

    assert f"Nobody takes from long {trouble} Start a worker that consumes from this queue" in text


def test_what_an_alert_tells_is_not_told_a_second_time():
    make_sample(queue="long", at=NOW, ready=78, consumers=0, oldest_age_seconds=41)
    make_boot("celery@img-2", last_seen_at=NOW - 21 * MINUTE, lost_at=NOW - 20 * MINUTE)
    for kind, subject in ((AlertKind.NO_CONSUMER, "long"), (AlertKind.WORKER_LOST, "celery@img-2")):
        fires(AlertRule.objects.get(kind=kind), subject=subject)

    response = viewer().get("/")

    text = tags(response).text
    assert "Nobody works on queue long" in text
    assert "Nobody takes from long" not in text
    assert "stopped reporting" not in text
    assert "for 5 min" in text
    links = {link.get("href") for link in tags(response).all("a")}
    assert {"/queues/one/?name=long", "/workers/one/?name=celery%40img-2"} <= links


def test_what_an_alert_leads_to_keeps_the_time_window():
    fires(AlertRule.objects.get(kind=AlertKind.NO_CONSUMER), subject="long")
    fires(AlertRule.objects.get(kind=AlertKind.WORKER_LOST), subject="celery@img-2")

    links = {link.get("href") for link in tags(viewer().get("/?window=6h")).all("a")}

    assert {"/queues/one/?name=long&window=6h", "/workers/one/?name=celery%40img-2&window=6h"} <= links


def test_a_worker_that_came_back_and_ended_in_order_hours_ago_is_not_lost():
    make_boot(
        "celery@img-2",
        started_at=NOW - 900 * MINUTE,
        last_seen_at=NOW - 600 * MINUTE,
        lost_at=NOW - 599 * MINUTE,
    )
    make_boot("celery@img-2", last_seen_at=NOW - 90 * MINUTE, goodbye_at=NOW - 90 * MINUTE)

    response = viewer().get("/")

    assert "stopped reporting" not in tags(response).text


def test_a_worker_that_came_back_is_not_lost():
    make_boot("celery@img-2", last_seen_at=NOW - 21 * MINUTE, lost_at=NOW - 20 * MINUTE)
    make_boot("celery@img-2")

    response = viewer().get("/")

    assert "stopped reporting" not in tags(response).text
    assert tiles_of(response)["Workers"].startswith("1 online")


def test_fewer_consumers_than_within_the_window_are_marked():
    make_sample(queue="long", at=NOW - 30 * MINUTE, ready=4, consumers=2)
    make_sample(queue="long", at=NOW, ready=4, consumers=1)

    assert "1 of 2 fewer than before" in tags(viewer().get("/")).text


def test_links_keep_the_window_and_the_tabs_too():
    make_rollup(at=NOW - 2 * MINUTE, done=3, received=3)
    response = viewer().get("/?window=6h")

    page = response.content.decode()
    assert "/queues/one/?name=critical&amp;window=6h" in page
    assert href(response, "By task") == "?window=6h&by=task#overview-tables"
    assert "Last 6 hours" in tags(response).text
    assert "arrows compare with the 6 hours before" in tags(response).text


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (
            "from=yesterday&to=",
            "The time &#x27;yesterday&#x27; cannot be read. Write it as 2026-11-12T02:41Z.",
        ),
        ("from=2026-11-12T03:00Z&to=2026-11-12T02:00Z", "The range ends before it begins."),
        ("from=2027-01-01T00:00Z&to=2027-01-02T00:00Z", "The range lies in the future."),
        ("from=0001-01-01T00:00Z&to=2026-11-12T02:00Z", "The range is longer than 730 days"),
        ("window=5y", "The window &#x27;5y&#x27; is not known. Use one of 1h, 6h, 24h, 7d, 30d."),
    ],
)
def test_a_window_that_cannot_be_read_is_said_and_the_usual_one_is_shown(query, words):
    response = viewer().get(f"/?{query}")

    assert response.status_code == 200
    page = response.content.decode()
    assert words in page
    assert "The last hour is shown." in page


def test_a_range_of_ones_own_is_shown_and_kept():
    make_rollup(at=NOW - 30 * MINUTE, done=7, dead=1, received=8)

    response = viewer().get("/?from=2026-11-12T02:30&to=2026-11-12T03:00")

    assert tiles_of(response)["Failure rate"].startswith("12.5 %")
    assert tiles_of(response)["Backlog"].startswith("now ")
    assert tiles_of(response)["Workers"].startswith("now ")
    page = response.content.decode()
    assert 'value="2026-11-12T02:30"' in page
    assert "from=2026-11-12T02%3A30Z&amp;to=2026-11-12T03%3A00Z" in page


def test_the_charts_are_polled_apart_from_the_figures():
    make_rollup(at=NOW - 2 * MINUTE, done=3, received=3)
    client = viewer()

    figures = tags(client.get("/?window=6h", **HTMX))
    charts = tags(client.get("/?window=6h&part=charts", **HTMX))

    assert figures.all("div", class_="chart") == []
    assert [each["id"] for each in charts.all("div", class_="chart")] == [
        "throughput-chart",
        "dead-letters-chart",
        "failure-rate-chart",
    ]
    again = charts.all("a", id="charts-again")[0]
    assert (again["href"], again["hx-get"]) == ("/?window=6h", "/?window=6h&part=charts")


def test_a_window_in_the_past_is_not_polled_for_charts():
    response = viewer().get("/?from=2026-11-11T02:30Z&to=2026-11-11T03:00Z")

    assert tags(response).all("div", id="overview-charts") != []
    assert tags(response).all("a", id="charts-again") == []


def test_polls_within_seconds_are_told_the_same_without_asking_the_database_again(
    django_assert_max_num_queries,
):
    make_letter(died_at=NOW - MINUTE)
    client = viewer()
    client.get("/?window=6h", **HTMX)

    with django_assert_max_num_queries(8):
        client.get("/?window=6h", **HTMX)


def test_a_page_that_is_loaded_shows_what_is_so_now():
    client = viewer()
    client.get("/", **HTMX)
    make_letter(died_at=NOW - MINUTE, state=LetterState.DEAD)

    assert tiles_of(client.get("/"))["Dead letters"].startswith("1 ")


def test_names_of_strangers_are_text_in_tables_charts_and_rows():
    hostile = '<b onmouseover="x">%{y}\u202e</b>'
    make_sample(queue=hostile, at=NOW, ready=5, consumers=0)
    make_rollup(at=NOW - 2 * MINUTE, queue=hostile, task=hostile, done=3, received=3)
    make_boot(hostile, last_seen_at=NOW - 21 * MINUTE, lost_at=NOW - 20 * MINUTE)
    Deploy.objects.create(name=hostile, at=NOW - 20 * MINUTE)

    client = viewer()
    for address in ("/", "/?by=task"):
        page = client.get(address).content.decode()
        assert "<b onmouseover" not in page
        # What plotly would take for a tag is escaped once more than the page's own text.
        assert "&amp;lt;b onmouseover" in page
        assert "\u202e" not in page


def test_a_new_failure_of_which_an_alert_tells_has_no_second_row():
    rule = AlertRule.objects.get(kind=AlertKind.GROUP_FAILING)
    told, untold = make_group(), make_group()
    for group in (told, told, untold):
        make_letter(group=group, died_at=NOW - MINUTE, death=False)
    alert = fires(rule, subject=str(told.pk))

    response = operator().get("/")

    rows = [each["id"] for each in tags(response).all("li", class_="attention-row")]
    assert [row for row in rows if row.startswith(("alert", "group"))] == [
        f"alert-{alert.pk}",
        f"group-{untold.pk}",
    ]
    assert href(response, "Group") == f"/groups/{told.pk}/"
    # The sentence counts both, since both fail.
    assert "3 jobs" in tags(response).text
    assert "2 groups" in tags(response).text


def test_eight_failures_are_eight_rows_and_the_alerts_that_are_not_shown_are_linked():
    rule = AlertRule.objects.get(kind=AlertKind.GROUP_FAILING)
    groups = [make_group() for _ in range(8)]
    for group in groups:
        make_letter(group=group, died_at=NOW - MINUTE, death=False)
        fires(rule, subject=str(group.pk))

    response = viewer().get("/")

    page = tags(response)
    rows = [each["id"] for each in page.all("li", class_="attention-row")]
    assert len([row for row in rows if row.startswith("alert-")]) == 5
    assert len([row for row in rows if row.startswith("group-")]) == 3
    assert href(response, "All 8 firing alerts") == "/alerts/"


def test_groups_that_alerts_tell_of_take_no_place_from_other_groups():
    rule = AlertRule.objects.get(kind=AlertKind.GROUP_FAILING)
    groups = [make_group() for _ in range(13)]
    for number, group in enumerate(groups):
        for _ in range(20 - number):
            make_letter(group=group, died_at=NOW - MINUTE, death=False)
    for group in groups[:5]:
        fires(rule, subject=str(group.pk))

    response = viewer().get("/")

    rows = [each["id"] for each in tags(response).all("li", class_="attention-row")]
    assert [row for row in rows if row.startswith("group-")] == [f"group-{each.pk}" for each in groups[5:]]
    assert "firing alerts" not in response.content.decode()
    assert "13 groups" in tags(response).text


def fires(rule: AlertRule, *, subject: str) -> Alert:
    """Make an alert that fires for a minute."""
    return Alert.objects.create(
        rule=rule,
        subject=subject,
        state="firing",
        began_at=NOW - 5 * MINUTE,
        fired_at=NOW - MINUTE,
        measured_at=NOW,
        value=1.0,
        peak=1.0,
    )
