"""The list of dead letters: search, chips, pages, selection, and what hostile messages do to it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
import time_machine
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.core.words import LetterState, Reason
from jobs.models import DeadLetter
from tests.factories import NOW, make_group, make_letter
from tests.web.people import HTMX, admin, href, operator, tags, viewer

pytestmark = pytest.mark.django_db
LIST = "/dead-letters/"


@pytest.fixture(autouse=True)
def _at_night():
    with time_machine.travel(NOW, tick=False):
        yield


def ids(response) -> list[str]:
    return [each["value"] for each in tags(response).all("input", name="id")]


def query_of(address: str) -> str:
    return parse_qs(urlsplit(address).query).get("q", [""])[0]


def chips(response) -> list[str]:
    return [each["title"] for each in tags(response).all("span", class_="chip")]


def many(count: int, **fields) -> list[DeadLetter]:
    group = make_group()
    return [
        make_letter(group=group, death=False, died_at=NOW - timedelta(seconds=number), **fields)
        for number in range(count)
    ]


def test_the_list_shows_what_is_dead_newest_first():
    older = make_letter(died_at=NOW - timedelta(minutes=5))
    newer = make_letter(died_at=NOW - timedelta(seconds=4))
    make_letter(state=LetterState.RESOLVED)

    response = viewer().get(LIST)

    assert ids(response) == [str(newer.uuid), str(older.uuid)]
    text = tags(response).text
    assert "2 match, in 2 groups. They died between 03:07 and 03:11 UTC." in text
    assert "4 s ago" in text
    assert "1–2 of 2" in text


def test_a_row_says_error_reason_task_argument_queue_and_deaths():
    letter = make_letter(
        error_type="requests.exceptions.HTTPError",
        error="503 Server Error for url: https://api.pay.example/v1/orders/48213",
        reason=Reason.RETRIES_EXHAUSTED,
        task="shop.tasks.charge_card",
        queue="critical",
        deaths=2,
        arguments_preview="order_id=48213",
    )

    response = viewer().get(LIST)

    html, text = response.content.decode(), tags(response).text
    assert "<b>HTTPError</b> 503 Server Error for url:" in html
    assert '<span class="dim">https://api.pay.example/v1/orders/48213</span>' in html
    assert '<span class="dim task-module">shop.tasks.</span>charge_card' in html
    assert "Retries exhausted" in text
    assert "order_id=48213" in text
    assert 'title="It failed on every attempt it was allowed."' in html
    assert href(response, "503 Server Error") == f"/dead-letters/{letter.uuid}/?q="


def test_a_search_finds_and_its_address_says_so():
    wanted = make_letter(queue="critical")
    make_letter(queue="default")

    response = viewer().get(LIST, {"q": "queue:critical"})

    assert ids(response) == [str(wanted.uuid)]
    assert chips(response) == ["state:dead", "queue:critical"]
    assert {each["value"] for each in tags(response).all("input", type="hidden", name="q")} == {
        "queue:critical"
    }


def test_a_word_typed_into_the_box_joins_the_search():
    make_letter()

    response = viewer().get(LIST, {"q": "queue:critical", "add": "reason:failed"})

    assert query_of(response.headers["Location"]) == "queue:critical reason:failed"


def test_a_brushed_range_replaces_the_times_of_the_search():
    address = {
        "q": "queue:critical since:2h",
        "since": "2026-11-12T02:40:00Z",
        "until": "2026-11-12T03:00:00Z",
    }

    response = viewer().get(LIST, address, follow=True)

    assert (
        response.wsgi_request.GET["q"]
        == "queue:critical since:2026-11-12T02:40:00Z until:2026-11-12T03:00:00Z"
    )
    assert "until:03:00" in tags(response).text.replace("until: 03:00", "until:03:00")


def test_a_chip_takes_its_term_away():
    make_letter()

    response = viewer().get(LIST, {"q": "queue:critical -task:send_sms state:any"})

    assert query_of(href(response, "Remove -task:send_sms")) == "queue:critical state:any"
    assert query_of(href(response, "Remove state:any")) == "queue:critical -task:send_sms"


def test_the_states_left_out_are_said_and_one_link_away():
    make_letter()

    response = viewer().get(LIST)

    assert query_of(href(response, "Remove state:dead")) == "state:any"


@pytest.mark.parametrize(
    ("text", "message", "suggestion"),
    [
        ("sinc:2h", "sinc: is not a qualifier. Did you mean since:?", "since:2h"),
        ("reason:faild", "faild", "reason:failed"),
        ('error:"open', "never closed", 'error:"open"'),
    ],
)
def test_a_search_that_cannot_be_read_says_so_and_is_not_an_empty_list(text, message, suggestion):
    make_letter()

    response = viewer().get(LIST, {"q": text})

    page = tags(response)
    assert response.status_code == 400
    assert message in page.text
    assert page.all("input", id="search-text")[0]["value"] == text
    assert "This search cannot be read" in page.text
    assert query_of(href(response, "Search for")) == suggestion


def test_a_wrong_word_added_to_a_good_search_is_named_within_the_whole():
    response = viewer().get(LIST, {"q": "queue:critical", "add": "sinc:2h"}, follow=True)

    assert response.status_code == 400
    assert "Word 2: sinc: is not a qualifier." in tags(response).text
    assert query_of(href(response, "Search for")) == "queue:critical since:2h"


def test_an_empty_result_offers_the_step_that_helps():
    make_letter(queue="critical")

    response = viewer().get(LIST, {"q": "queue:low since:1h"})

    text = tags(response).text
    assert "No dead letters match" in text
    assert "1 letter is dead" in text
    assert query_of(href(response, "Remove queue:low")) == "since:1h"


def test_an_empty_store_says_what_would_be_here():
    text = tags(viewer().get(LIST)).text

    assert "A job that ends badly on a worker with the agent is listed here within two seconds." in text


def test_pages_go_to_the_end_and_back_without_losing_or_repeating_one():
    letters = many(120)
    client = viewer()
    pages, address = [], LIST
    for _ in range(3):
        response = client.get(address)
        pages.append(ids(response))
        if len(pages) < 3:
            address = href(response, "Older")

    back = ids(client.get(href(response, "Newer")))

    assert [len(page) for page in pages] == [50, 50, 20]
    assert [each for page in pages for each in page] == [str(letter.uuid) for letter in letters]
    assert back == pages[1]
    assert "101–120 of 120" in tags(response).text


def test_the_oldest_can_come_first():
    letters = many(3)
    client = viewer()

    response = client.get(href(client.get(LIST), "Died ↓"))

    assert ids(response) == [str(letter.uuid) for letter in reversed(letters)]


@pytest.mark.parametrize(
    "parameters",
    [
        {"at": "after.rubbish.1"},
        {"at": "after.20261112T031200000000.99999999999999999999"},
        {"order": "task"},
    ],
)
def test_an_address_made_by_hand_leads_to_the_first_page_and_says_why(parameters):
    letter = make_letter()

    response = viewer().get(LIST, {"q": "queue:critical", **parameters}, follow=True)

    assert "That place in the list cannot be shown" in tags(response).text
    assert ids(response) == [str(letter.uuid)]


def test_a_letter_that_is_not_dead_stays_dimmed_with_its_state():
    make_letter(state=LetterState.REPLAYING)

    page = tags(viewer().get(LIST, {"q": "state:any"}))

    assert len(page.all("tr", class_="row-dimmed")) == 1
    assert "Replaying" in page.text


def test_ticked_letters_or_the_search_go_to_the_page_that_asks():
    letter = make_letter()
    client = admin()
    page = tags(client.get(LIST, {"q": "queue:critical"}))

    actions = {each.get("formaction") for each in page.all("button", type="submit")} - {None}
    answers = {each: client.get(each, {"q": "queue:critical", "id": str(letter.uuid)}) for each in actions}

    assert actions == {"/dead-letters/replay/", "/dead-letters/purge/", "/dead-letters/export/"}
    assert {answer.status_code for answer in answers.values()} == {200}


def test_the_poll_counts_what_is_new_and_draws_no_row():
    make_letter()
    client = viewer()
    page = tags(client.get(LIST, {"q": "queue:critical"}))
    poll = page.all("a", id="live")[0]
    make_letter(queue="critical")
    make_letter(queue="default")

    response = client.get(poll["hx-get"], **HTMX)

    answer = tags(response)
    assert (poll["hx-target"], poll["href"]) == ("#letters-news", "/dead-letters/?q=queue%3Acritical")
    assert "1 new, show" in answer.text
    assert query_of(href(response, "1 new")) == "queue:critical"
    assert answer.all("span", id="dead-count", hx_swap_oob="true") != []
    assert answer.all("tr") == []


def test_the_address_of_the_poll_shows_the_whole_page_to_a_browser():
    make_letter()
    client = viewer()

    response = client.get(tags(client.get(LIST)).all("a", id="live")[0]["hx-get"])

    assert "<!DOCTYPE html>" in response.content.decode()
    assert len(ids(response)) == 1


def test_a_cache_keeps_the_two_renderings_apart():
    response = viewer().get(LIST)

    assert {"HX-Request", "HX-Boosted", "HX-History-Restore-Request"} <= set(
        response.headers["Vary"].split(", ")
    )


def test_the_timeline_says_the_same_as_figure_table_and_sentence():
    many(3)
    make_letter(reason=Reason.TIMED_OUT, state=LetterState.RESOLVED)

    response = viewer().get(LIST)

    page = tags(response)
    assert "Failed 3" in page.text
    assert "Replayed or purged since" in page.text
    assert "4 died between" in page.text
    assert page.all("div", data_chart="timeline-figure")[0]["data-brush"] == LIST


def test_the_number_of_queries_does_not_grow_with_the_rows():
    client = viewer()
    many(3)
    with CaptureQueriesContext(
        connection,
    ) as few:
        client.get(LIST)
    many(47)

    with CaptureQueriesContext(connection) as more:
        client.get(LIST)

    assert len(more) == len(few)
    assert len(more) <= 20


def test_times_are_times():
    make_letter(died_at=datetime(2026, 11, 3, 1, 2, 3, tzinfo=UTC))

    html = viewer().get(LIST).content.decode()

    assert (
        '<time datetime="2026-11-03T01:02:03+00:00" title="2026-11-03 01:02:03 UTC" data-ago>3 Nov</time>'
        in html
    )


SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(1)>"
HOSTILE = {
    "script": SCRIPT,
    "quotes": "\" onmouseover=\"alert(1)' x='",
    "controls": "a\x1b[31mred\x07\x08",
    "right to left": "invoice\u202egpj.exe",
    "long": "x" * 10_000,
    "surrogate": "half \ufffd of a pair",
    "template": "{{ settings.SECRET_KEY }}{% debug %}",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("address", [LIST, "/groups/", "/", "/?by=task"])
def test_whatever_a_message_holds_is_shown_and_does_nothing(text, address):
    name = text[:255]
    group = make_group(task=name, error_type=name, title=name, note=text[:500])
    make_letter(
        group=group,
        task=name,
        queue=name,
        error_type=name,
        error=text[:2000],
        arguments_preview=name,
        worker=name,
    )

    response = admin().get(address)

    html = response.content.decode()
    page = tags(response)
    assert response.status_code == 200
    assert page.all("img") == []
    assert [each for _, each in page.tags if any(key.startswith("on") for key in each)] == []
    assert SCRIPT not in html
    assert not set(html) & set("\x1b\x07\x08\u202e")
    assert len(html) < 200_000


@pytest.mark.parametrize(
    "text", [*HOSTILE.values(), "\x00", "\udc80", "²", "queue:" + SCRIPT, "state:" + SCRIPT]
)
@pytest.mark.parametrize("name", ["q", "add", "since", "type", "order", "at", "group_state", "after"])
def test_whatever_an_address_holds_is_shown_and_does_nothing(text, name):
    make_letter()
    client = operator()

    for address in (LIST, "/groups/"):
        response = client.get(
            address, {name: text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")}, follow=True
        )
        assert response.status_code in {200, 400}
        assert SCRIPT not in response.content.decode()


def test_a_question_for_news_since_what_is_no_number_is_answered_with_the_page():
    letter = make_letter()

    response = operator().get(LIST, {"after": "²"}, headers={"HX-Request": "true"})

    assert response.status_code == 200
    assert ids(response) == [str(letter.uuid)]


def test_what_died_and_is_replayed_now_is_not_said_never_to_have_died():
    make_letter(state=LetterState.REPLAYING)

    assert "No letter is dead now, as far as the workers have reported." in tags(viewer().get(LIST)).text


def test_times_within_one_minute_are_told_to_the_second():
    make_letter(died_at=NOW - timedelta(seconds=50))
    make_letter(died_at=NOW - timedelta(seconds=20))

    text = tags(viewer().get(LIST)).text

    assert "They died between 03:11:10 and 03:11:40 UTC." in text


def test_a_part_of_a_name_finds_nothing_but_says_what_would():
    make_letter(task="shop.tasks.charge_card")
    client = viewer()

    response = client.get(f"{LIST}?q=task:charge+since:2h")

    assert "No dead letters match" in tags(response).text
    address = href(response, "Search for task:*charge* (1 letter)")
    assert query_of(address) == "since:2h task:*charge*"
    assert len(ids(client.get(address))) == 1


def test_a_letter_opened_from_the_list_knows_its_neighbours():
    older, newer = (make_letter(died_at=NOW - timedelta(minutes=number)) for number in (5, 1))
    client = viewer()

    page = client.get(href(client.get(LIST), "[Errno 111]"))

    assert "1 of 2" in tags(page).text
    assert href(page, "Older") == f"/dead-letters/{older.uuid}/?q="
    assert newer.short_id in tags(page).text
