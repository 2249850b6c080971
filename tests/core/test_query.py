"""The search language: what it means, how it is written back, and what it says of a mistake."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from jobs.core.query import MAX_LENGTH, MAX_TERMS, Query, QuerySyntaxError, matches_pattern, parse, quote
from jobs.core.words import LetterState
from jobs.errors import QueryError

NOW = datetime(2026, 11, 12, 3, 16, 2, tzinfo=UTC)


def read(text: str):
    return parse(text, now=NOW)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("task:shop.send", [("task", ("shop.send",), False)]),
        ("-task:x", [("task", ("x",), True)]),
        ("queue:a,b", [("queue", ("a", "b"), False)]),
        ('queue:"a,b",c', [("queue", ("a,b", "c"), False)]),
        ('task:"two words"', [("task", ("two words",), False)]),
        ('error:a" b "c', [("error", ("a b c",), False)]),
        ("timed out", [("", ("timed",), False), ("", ("out",), False)]),
        ('"timed out"', [("", ("timed out",), False)]),
        ('-"timed out"', [("", ("timed out",), True)]),
        ("a,b", [("", ("a,b",), False)]),
        ("Task:x QUEUE:Y", [("task", ("x",), False), ("queue", ("Y",), False)]),
        ("reason:failed,timed_out", [("reason", ("failed", "timed_out"), False)]),
        ("reason:Timed-Out", [("reason", ("timed_out",), False)]),
        ("reason:re*", [("reason", ("retries_exhausted", "rejected", "retry_not_sent", "result_not_stored"), False)]),
        ("group:17", [("group", ("17",), False)]),
        ("group:0123456789abcdef", [("group", ("0123456789abcdef",), False)]),
        ("id:7c1f9a2e", [("id", ("7c1f9a2e",), False)]),
        ("args.order_id:48213", [("args.order_id", ("48213",), False)]),
        ("args.Order.0.sku:x", [("args.Order.0.sku", ("x",), False)]),
        ("worker:celery@web-1", [("worker", ("celery@web-1",), False)]),
        ('task:""', [("task", ("",), False)]),
        (r"error:\"quoted\"", [("error", ('"quoted"',), False)]),
        (r'"C:\\temp"', [("", ("C:\\temp",), False)]),
        ("12:30", [("", ("12:30",), False)]),
        ("-", [("", ("-",), False)]),
        ("", []),
        ("  \t ", []),
    ],
)  # fmt: skip
def test_terms(text, expected):
    assert [(term.qualifier, term.values, term.negated) for term in read(text).terms] == expected


@pytest.mark.parametrize(
    ("text", "patterns"),
    [
        ("task:shop.*", (("shop.", ""),)),
        ("task:*", (("", ""),)),
        ("task:a*b**c", (("a", "b", "c"),)),
        (r"task:a\*b", (("a*b",),)),
        ('task:"a b*"', (("a b", ""),)),
        ("task:a*,b", (("a", ""), ("b",))),
    ],
)
def test_wildcards(text, patterns):
    assert read(text).terms[0].patterns == patterns


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        (("a",), "a", True),
        (("a",), "A", False),
        (("a", ""), "abc", True),
        (("", "c"), "abc", True),
        (("", "b", ""), "abc", True),
        (("a", "c"), "a.c", True),
        (("a", "c"), "ac", True),
        (("a", "c"), "a.d", False),
        (("a.", "c"), "abc", False),
    ],
)
def test_a_pattern_matches_the_whole(pattern, text, expected):
    assert matches_pattern(pattern, text) is expected


def test_a_term_keeps_what_was_typed():
    assert [term.text for term in read('task:"x"  -queue:y').terms] == ['task:"x"', "-queue:y"]


@pytest.mark.parametrize(
    ("text", "states"),
    [
        ("", {"dead"}),
        ("task:x", {"dead"}),
        ("state:purged", {"purged"}),
        ("state:dead,replaying", {"dead", "replaying"}),
        ("state:any", {"dead", "replaying", "resolved", "purged"}),
        ("state:any,dead", {"dead", "replaying", "resolved", "purged"}),
        ("state:re*", {"replaying", "resolved"}),
        ("-state:dead", {"replaying", "resolved", "purged"}),
        ("state:dead -state:dead", set()),
    ],
)
def test_states(text, states):
    assert read(text).states == {LetterState(state) for state in states}


@pytest.mark.parametrize(
    ("text", "since", "until"),
    [
        ("", None, None),
        ("since:2h", NOW - timedelta(hours=2), None),
        ("until:2h", None, NOW - timedelta(hours=2)),
        ("since:00:30 until:03:12", NOW.replace(hour=0, minute=30, second=0), NOW.replace(minute=12, second=0)),
        ("until:03:12 since:00:30", NOW.replace(hour=0, minute=30, second=0), NOW.replace(minute=12, second=0)),
        ("since:2026-11-11 until:2026-11-11", datetime(2026, 11, 11, tzinfo=UTC), datetime(2026, 11, 12, tzinfo=UTC)),
    ],
)  # fmt: skip
def test_since_and_until(text, since, until):
    query = read(text)

    assert (query.since, query.until) == (since, until)


@pytest.mark.parametrize(
    ("text", "message", "suggestion"),
    [
        ("sinc:2h", "Word 1: `sinc:` is not a qualifier. Did you mean `since:`?", "since:2h"),
        ("x sinc:2h y", "Word 2: `sinc:` is not a qualifier. Did you mean `since:`?", "x since:2h y"),
        ("-taks:x", "Word 1: `taks:` is not a qualifier. Did you mean `task:`?", "-task:x"),
        ("kwargs.order:1", "Word 1: `kwargs.order:` is not a qualifier. Did you mean `args.order:`?", "args.order:1"),
        (
            "args:1",
            "Word 1: `args:` needs the argument's name, for instance args.order_id:48213.",
            "",
        ),
        (
            "http://x",
            "Word 1: `http:` is not a qualifier. Qualifiers are task, queue, reason, error, group, state, since, "
            'until, worker, id, args.<name>. To search for the text itself, put it in quotes: "http://x"',
            '"http://x"',
        ),
        ("task:", "Word 1: `task:` needs a value right after the colon, for instance task:send_receipt.", ""),
        ("until:", "Word 1: `until:` needs a value right after the colon, for instance until:03:12.", ""),
        ("args.x:", "Word 1: `args.x:` needs a value right after the colon, for instance args.x:48213.", ""),
        ("reason:fialed", "Word 1: `fialed` is not a reason. Did you mean `reason:failed`?", "reason:failed"),
        (
            "-reason:failed,tmied_out",
            "Word 1: `tmied_out` is not a reason. Did you mean `reason:timed_out`?",
            "-reason:failed,timed_out",
        ),
        ("state:xyz", "Word 1: `xyz` is not a state. Use dead, replaying, resolved, purged, any.", ""),
        (
            'task:"x',
            'Word 1: the quote at character 6 is never closed. Close it with ", or write \\" for the sign itself.',
            'task:"x"',
        ),
        ("since:soon", "Word 1: `since:soon` is not a time. Write 2h, 30m, 7d, 90s, 00:30, 2026-11-12 or "
         "2026-11-12T00:30.", ""),
        ("since:1h,2h", "Word 1: `since:` takes one time, not 2.", ""),
        ("-since:2h", "Word 1: `-since:` cannot be: use `until:` for the other side.", "until:2h"),
        ("since:1h since:2h", "Word 2: `since:` is given twice. Keep one.", "since:1h"),
        (
            "state:dead state:purged",
            "Word 2: `state:` is given twice. Write state:dead,purged for either.",
            "state:dead",
        ),
        (
            "since:1h until:2h",
            "Word 2: `until:` is 2026-11-12T01:16:02Z, not after `since:`, 2026-11-12T02:16:02Z. "
            "Nothing can match: swap them.",
            "",
        ),
        (
            "group:xyz",
            "Word 1: `group:xyz` is neither a group's number nor 10 to 40 characters of its fingerprint. "
            "Open the group and copy its link.",
            "",
        ),
        (
            "id:abc",
            "Word 1: `id:abc` must be a job's whole id, or at least the first 4 characters of a letter's id, "
            "without `*`.",
            "",
        ),
        ("*", "Word 1: * matches everything. Leave it out.", ""),
        ('a ""', 'Word 2: "" matches everything. Leave it out.', "a"),
    ],
)  # fmt: skip
def test_a_mistake_says_which_word_and_what_was_probably_meant(text, message, suggestion):
    with pytest.raises(QuerySyntaxError) as caught:
        read(text)

    assert (str(caught.value), caught.value.suggestion) == (message, suggestion)
    assert isinstance(caught.value, QueryError)


def test_a_mistake_in_the_times_is_told_to_the_second():
    with pytest.raises(QuerySyntaxError) as caught:
        parse("since:1h until:2h", now=NOW.replace(microsecond=123_456))

    assert "2026-11-12T01:16:02Z, not after `since:`, 2026-11-12T02:16:02Z" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x" * (MAX_LENGTH + 1), "The search has 2,001 characters, at most 2,000 are read. Use fewer words."),
        ("x " * (MAX_TERMS + 1), "The search has 41 words, at most 40 are read. Put a sentence in quotes."),
        ("task:" + ",".join("x" * 201), "Word 1: `task:` has 201 values, at most 200 are read."),
    ],
)
def test_a_search_has_a_limit(text, message):
    with pytest.raises(QuerySyntaxError) as caught:
        read(text)

    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ('  task:"x"   queue:y ', "task:x queue:y"),
        ("Task:x", "task:x"),
        ('task:"a b"', 'task:"a b"'),
        (r"task:a\*b", r'task:"a\*b"'),
        ("state:re*", "state:replaying,resolved"),
        ('-"-x"', '-"-x"'),
        ('"task:x"', '"task:x"'),
        ("task:*", "task:*"),
    ],
)
def test_the_canonical_text(text, canonical):
    assert read(text).text == canonical


def test_a_term_can_be_taken_out():
    query = read("task:x queue:y since:2h")

    assert query.without(query.terms[1]) == "task:x since:2h"


@pytest.mark.parametrize(
    ("text", "added", "expected"),
    [
        ("", "task:x", "task:x"),
        ("task:x", "task:y", "task:x task:y"),
        ("task:x", "task:x", "task:x"),
        ("since:2h task:x", "since:1h", "task:x since:1h"),
        ("since:2h until:1h", "since:00:30 until:03:12", "since:00:30 until:03:12"),
        ("state:dead x", "state:any", "x state:any"),
    ],
)
def test_a_term_can_be_added(text, added, expected):
    assert read(text).with_term(added) == expected


def test_a_frozen_text_means_the_same_later():
    query = read("since:2h until:03:12 task:x")

    frozen = query.frozen_text()
    later = parse(frozen, now=NOW + timedelta(days=9))

    assert frozen == "since:2026-11-12T01:16:02Z until:2026-11-12T03:12:00Z task:x"
    assert (later.since, later.until) == (query.since, query.until)
    assert later.frozen_text() == frozen


def test_control_characters_are_searched_for_as_they_are_stored():
    assert read("task:a\x00b").terms[0].values == ("a\ufffdb",)


def read_or_refuse(text: str) -> Query | QuerySyntaxError:
    try:
        return read(text)
    except QuerySyntaxError as error:
        return error


@given(st.text(st.characters()))
def test_any_text_is_read_or_refused_with_a_sentence(text):
    result = read_or_refuse(text)

    if isinstance(result, Query):
        result.text.encode("utf-8")
    else:
        assert str(result).endswith((".", "?", '"'))
        assert 0 <= result.position <= len(text)


LANGUAGE = st.lists(
    st.sampled_from(["task:", "-", "args.a:", "queue:", '"', "\\", "*", ",", " ", "a", "b:", ":", "since:2h"])
).map("".join)


@given(LANGUAGE)
def test_the_canonical_text_reads_back_as_the_same_search(text):
    query = read_or_refuse(text)
    assume(isinstance(query, Query))

    again = read(query.text)

    assert [(t.qualifier, t.patterns, t.negated) for t in again.terms] == [
        (t.qualifier, t.patterns, t.negated) for t in query.terms
    ]
    assert again.text == query.text


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp"]), min_size=1))
def test_a_quoted_value_is_that_value(value):
    for qualifier in ("task:", "args.x:", ""):
        query = read(f"{qualifier}{quote(value, starts_term=not qualifier)}")

        assert [(t.qualifier, t.patterns) for t in query.terms] == [(qualifier.rstrip(":"), ((value,),))]


@given(LANGUAGE)
@example("* *")
def test_a_suggestion_is_never_the_same_mistake(text):
    """Of a mistake that was made twice, the second then stands where the first did."""
    first = read_or_refuse(text)
    assume(isinstance(first, QuerySyntaxError) and first.suggestion)

    second = read_or_refuse(first.suggestion)

    is_another = isinstance(second, Query) or (str(second), second.position) != (str(first), first.position)
    assert is_another or len(first.suggestion) < len(text)
