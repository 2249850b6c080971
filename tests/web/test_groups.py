"""The groups tab."""

from __future__ import annotations

from datetime import timedelta

import pytest
import time_machine

from jobs.core.words import GroupState, Reason
from tests.factories import NOW, make_group, make_letter
from tests.web.people import admin, href, make_person, operator, tags, viewer
from tests.web.test_letters import query_of

pytestmark = pytest.mark.django_db
GROUPS = "/groups/"


@pytest.fixture(autouse=True)
def _at_night():
    with time_machine.travel(NOW, tick=False):
        yield


def fill(count: int, *, died_at=NOW, **fields):
    group = make_group(**fields)
    for _ in range(count):
        make_letter(
            group=group, death=False, died_at=died_at, queue="critical", reason=Reason.RETRIES_EXHAUSTED
        )
    return group


def test_groups_are_listed_with_their_letters_most_first():
    small = fill(1, title="KeyError: 'sku'", error_type="KeyError", state=GroupState.KNOWN)
    big = fill(3, title="HTTPError: 503 Server Error", error_type="requests.HTTPError")

    response = viewer().get(GROUPS)

    page = tags(response)
    assert [each["id"] for each in page.all("tr", class_="row")] == [f"group-{big.pk}", f"group-{small.pk}"]
    assert "4 match, in 2 groups." in page.text
    assert "HTTPError 503 Server Error" in page.text
    assert "2 groups, 4 letters" in page.text
    assert href(response, "503 Server Error") == f"/groups/{big.pk}/"
    assert (
        f'href="/dead-letters/?q=group%3A{big.pk}" title="Show these letters">3</a>'
        in response.content.decode()
    )


def test_the_segments_count_and_choose():
    fill(1, state=GroupState.KNOWN)
    new = fill(2, state=GroupState.NEW)
    client = viewer()

    response = client.get(GROUPS)
    chosen = client.get(href(response, "New 1"))

    assert [each["id"] for each in tags(chosen).all("tr", class_="row")] == [f"group-{new.pk}"]
    assert href(chosen, "Known 1") == "/groups/?group_state=known"


def test_only_a_new_or_regressed_group_that_still_fails_is_red():
    failing = fill(1, state=GroupState.NEW, died_at=NOW - timedelta(minutes=1))
    fill(1, state=GroupState.NEW, died_at=NOW - timedelta(hours=2))
    fill(1, state=GroupState.KNOWN, died_at=NOW - timedelta(minutes=1))

    html = viewer().get(GROUPS).content.decode()

    rows = html.split('<tr class="row"')[1:]
    assert [f'id="group-{failing.pk}"' in row for row in rows if "spark-failing" in row] == [True]


def test_a_row_tells_owner_note_and_what_came_back():
    mara = make_person("mara", None, first_name="Mara", last_name="Lindqvist")
    fill(
        1,
        state=GroupState.REGRESSED,
        regressed_at=NOW - timedelta(minutes=28),
        owner=mara,
        note="SHOP-1884: no sku",
    )

    text = tags(viewer().get(GROUPS)).text

    assert "back since 02:44" in text
    assert "SHOP-1884: no sku" in text
    assert "Mara" in text


def test_a_muted_group_says_until_which_day():
    fill(1, state=GroupState.MUTED, muted_until=NOW + timedelta(days=18))

    assert "until 30 Nov" in tags(viewer().get(GROUPS)).text


def test_assigning_is_offered_to_those_who_may():
    group = fill(1)

    assert href(operator().get(GROUPS), "Assign…") == f"/groups/{group.pk}/#owner"
    assert "Assign…" not in tags(viewer().get(GROUPS)).text


def test_replay_of_a_group_keeps_the_search():
    group = fill(1, died_at=NOW - timedelta(minutes=1))

    response = operator().get(GROUPS, {"q": "queue:critical since:1h"})

    address = href(response, "Replay…")
    assert address.startswith("/dead-letters/replay/?")
    assert query_of(address) == f"queue:critical since:1h group:{group.pk}"


@pytest.mark.parametrize(
    ("go", "path"),
    [
        ("replay", "/dead-letters/replay/"),
        ("purge", "/dead-letters/purge/"),
        ("export", "/dead-letters/export/"),
        ("x", "/dead-letters/replay/"),
    ],
)
def test_ticked_groups_go_to_the_page_that_asks(go, path):
    response = admin().get(
        "/groups/selected/", {"q": "queue:critical", "group": ["3", "5", "x", "1" * 30], "go": go}
    )

    assert response.headers["Location"].split("?")[0] == path
    assert query_of(response.headers["Location"]) == "queue:critical group:3,5"


def test_no_ticked_group_means_all_that_match():
    response = admin().get("/groups/selected/", {"q": "queue:critical", "go": "purge"})

    assert query_of(response.headers["Location"]) == "queue:critical"


def test_an_unknown_order_is_refused_with_a_sentence():
    fill(1)

    response = viewer().get(GROUPS, {"order": "colour"}, follow=True)

    assert "The groups cannot be shown so" in tags(response).text


def test_the_number_of_queries_does_not_grow_with_the_groups(django_assert_max_num_queries):
    for _ in range(30):
        fill(1)
    client = viewer()

    with django_assert_max_num_queries(26):
        client.get(GROUPS)
