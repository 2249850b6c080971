"""The search language of finished attempts, and what it says of a mistake."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.core.query import MAX_TERMS, QuerySyntaxError, quote
from jobs.core.run_query import QUALIFIERS, parse

NOW = datetime(2026, 11, 12, 3, 16, 2, tzinfo=UTC)


def read(text: str):
    return parse(text, now=NOW)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("task:shop.send", [("task", ("shop.send",), False)]),
        ("-queue:low", [("queue", ("low",), True)]),
        ("outcome:dead,done", [("outcome", ("dead", "done"), False)]),
        ("outcome:RE*", [("outcome", ("retried", "revoked"), False)]),
        ("7c1f9a2e", [("", ("7c1f9a2e",), False)]),
        ("id:7c1f9a2e,root-1", [("id", ("7c1f9a2e", "root-1"), False)]),
        ('worker:"celery@two words"', [("worker", ("celery@two words",), False)]),
        ("Task:x ERROR:y", [("task", ("x",), False), ("error", ("y",), False)]),
    ],
)
def test_a_search_is_read(text, expected):
    assert [(term.qualifier, term.values, term.negated) for term in read(text).terms] == expected


def test_times_are_read_from_now():
    query = read("since:2h until:03:12")

    assert query.since == NOW - timedelta(hours=2)
    assert query.until == NOW.replace(minute=12, second=0)


@pytest.mark.parametrize(
    ("text", "message", "suggestion"),
    [
        ("outcme:dead", "Word 1: `outcme:` is not a qualifier. Did you mean `outcome:`?", "outcome:dead"),
        (
            "task:x outcome:ded",
            "Word 2: `ded` is not an outcome. Did you mean `outcome:dead`?",
            "task:x outcome:dead",
        ),
        ("reason:failed", "`reason:` is asked of dead letters, not of finished attempts", ""),
        ("args.order_id:5", "`args.order_id:` is asked of dead letters", ""),
        ("abc", "`abc` must be a job's id or at least its first 4 characters", "task:abc"),
        ("id:7c1f*", "without `*`", ""),
        ("task:", "needs a value right after the colon, for instance task:send_receipt", ""),
        ("-since:2h", "use `until:` for the other side", "until:2h"),
        ("since:1h since:2h", "Word 2: `since:` is given twice", "since:1h"),
        ("since:1h until:2h", "not after `since:`", ""),
        ("since:soon", "`since:soon` is not a time", ""),
        ("urn:x-1", "put it in quotes", '"urn:x-1"'),
        ('task:"x', "the quote at character 6 is never closed", 'task:"x"'),
        (" ".join(["task:x"] * (MAX_TERMS + 1)), f"at most {MAX_TERMS} are read", ""),
    ],
)
def test_a_mistake_is_named_with_its_word_and_what_was_meant(text, message, suggestion):
    with pytest.raises(QuerySyntaxError) as caught:
        read(text)

    assert message in str(caught.value)
    assert caught.value.suggestion == suggestion


@given(st.sampled_from(["task", "queue", "worker", "error"]), st.text(min_size=1, max_size=40))
def test_any_name_can_be_searched_for_as_a_link_writes_it(qualifier, name):
    query = read(f"{qualifier}:{quote(name)}")

    again = read(query.text)

    assert [term.values for term in again.terms] == [term.values for term in query.terms]
    assert len(query.terms) == 1


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_with_a_message(text):
    try:
        query = read(text)
    except QuerySyntaxError as caught:
        error = caught
    else:
        assert [term.values for term in read(query.text).terms] == [term.values for term in query.terms]
        return

    assert error.message


def test_each_example_in_the_help_can_be_read():
    for qualifier, (_, example) in QUALIFIERS.items():
        assert read(f"{qualifier}:{example}").terms[0].qualifier == qualifier


def test_a_term_that_is_added_replaces_the_time_and_is_not_doubled():
    query = read("task:x since:1h")

    assert query.with_term("since:2h") == "task:x since:2h"
    assert query.with_term("task:x") == "since:1h task:x"
