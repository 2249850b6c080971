"""A search in a sentence."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.core.query import QuerySyntaxError, parse, quote
from jobs.core.query_words import describe

NOW = datetime(2026, 11, 12, 3, 16, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "since:00:30 until:03:12",
            "All dead letters that died between 00:30 and 03:12 UTC on 12 Nov, in any queue, of any task, for any reason",
        ),
        (
            "since:23:30 until:00:30",
            "All dead letters that died between 23:30 UTC on 11 Nov and 00:30 UTC on 12 Nov, in any queue, of any "
            "task, for any reason",
        ),
        ("since:2h", "All dead letters that died since 01:16:02 UTC on 12 Nov, in any queue, of any task, for any reason"),
        (
            "until:2025-12-31",
            "All dead letters that died before 00:00 UTC on 1 Jan, in any queue, of any task, for any reason",
        ),
        (
            "since:2025-12-30",
            "All dead letters that died since 00:00 UTC on 30 Dec 2025, in any queue, of any task, for any reason",
        ),
        ("", "All dead letters, died at any time, in any queue, of any task, for any reason"),
        (
            "queue:a,b task:shop.x reason:failed,timed_out",
            "All dead letters, died at any time, in the queue a or b, of the task shop.x, "
            "for the reason “Failed” or “Timed out”",
        ),
        (
            "-queue:low -task:x,y,z -reason:failed",
            "All dead letters, died at any time, in any queue but low, of any task but x, y or z, "
            "for any reason but “Failed”",
        ),
        (
            "task:shop.* -task:shop.x",
            "All dead letters, died at any time, in any queue, of the task shop.* and of any task but shop.x, "
            "for any reason",
        ),
        (
            'error:"timed out" args.order_id:5 -args.n:1 refused -"by peer" group:17 worker:w id:7c1f',
            "All dead letters, died at any time, in any queue, of any task, for any reason, "
            "with the error “timed out”, in the group 17, on the worker w, with the id 7c1f, with order_id = 5, "
            "without n = 1, with the text “refused”, without the text “by peer”",
        ),
        ("state:purged", "All purged letters, died at any time, in any queue, of any task, for any reason"),
        (
            "state:resolved,purged",
            "All resolved or purged letters, died at any time, in any queue, of any task, for any reason",
        ),
        ("state:any", "All letters in any state, died at any time, in any queue, of any task, for any reason"),
        (
            "state:dead -state:dead",
            "No letters, because the states contradict each other, died at any time, in any queue, of any task, "
            "for any reason",
        ),
        ('queue:""', "All dead letters, died at any time, in the queue “”, of any task, for any reason"),
    ],
)  # fmt: skip
def test_the_sentence(text, words):
    assert describe(parse(text, now=NOW), now=NOW) == words


def test_the_year_is_said_when_it_is_another():
    query = parse("since:2026-11-12", now=NOW)

    assert "on 12 Nov 2026" in describe(query, now=NOW.replace(year=2027))


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp"]), min_size=1, max_size=40))
def test_every_value_is_in_the_sentence(value):
    query = parse(f"task:{quote(value)} {quote(value, starts_term=True)}", now=NOW)

    assert describe(query, now=NOW).count(value) >= 2


@given(
    st.lists(
        st.sampled_from(["state:any", "-task:a", "since:1h", "until:now", "x", "args.b:1", "reason:f*"]),
        unique=True,
    )
)
def test_any_search_has_a_sentence(terms):
    try:
        query = parse(" ".join(terms), now=NOW)
    except QuerySyntaxError:
        return

    assert describe(query, now=NOW).startswith(("All ", "No "))
