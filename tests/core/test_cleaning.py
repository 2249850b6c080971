"""Text from messages fits a column and a page, and stays recognisable."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.core.cleaning import clean_json, clean_line, clean_name, clean_text

ANY_TEXT = st.text(st.characters())  # surrogates and controls included
FORBIDDEN = {chr(n) for n in (*range(0x20), *range(0x7F, 0xA0))}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("shop.tasks.send_receipt", "shop.tasks.send_receipt"),
        ("a\x00b", "a\ufffdb"),
        ("a\nb\tc", "a\ufffdb\ufffdc"),
        ("\ud800", "\ufffd"),
        ("naïve 🙂", "naïve 🙂"),
        ("", ""),
        ("x" * 255, "x" * 255),
    ],
)
def test_a_name_is_one_clean_line(text, expected):
    assert clean_name(text) == expected


def test_a_long_name_is_cut_and_ends_in_a_hash_of_the_whole():
    cleaned = clean_name("x" * 10_000)

    assert len(cleaned) == 255
    assert cleaned.startswith("x" * 242 + "…")
    assert cleaned != clean_name("x" * 10_001)


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [("a  b\nc", 10, "a b c"), ("abcdef", 4, "abc…"), ("abcd", 4, "abcd"), ("a\x00", 5, "a\ufffd")],
)
def test_a_line_has_single_blanks_and_an_ellipsis_where_it_is_cut(text, limit, expected):
    assert clean_line(text, limit=limit) == expected


def test_a_text_keeps_its_lines_its_beginning_and_its_end():
    text = "first\n" + "x" * 10_000 + "\nlast\x00"

    cleaned = clean_text(text, limit=400)

    assert len(cleaned) <= 400
    assert cleaned.startswith("first\nxxx")
    assert cleaned.endswith("xxx\nlast\ufffd")
    assert "characters left out" in cleaned


@given(ANY_TEXT, st.integers(20, 300))
def test_a_name_of_any_text_fits(text, limit):
    cleaned = clean_name(text, limit=limit)

    assert len(cleaned) <= limit
    assert not set(cleaned) & FORBIDDEN
    cleaned.encode("utf-8")
    assert clean_name(cleaned, limit=limit) == cleaned


@given(ANY_TEXT, st.integers(50, 300))
def test_any_text_fits(text, limit):
    cleaned = clean_text(text * 10, limit=limit)

    assert len(cleaned) <= limit
    assert not set(cleaned) & (FORBIDDEN - {"\n", "\t"})
    cleaned.encode("utf-8")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner),
    )
)
def test_any_value_becomes_json_that_a_database_takes(value):
    text = json.dumps(clean_json(value), allow_nan=False, ensure_ascii=False)

    text.encode("utf-8")
    assert "\\u0000" not in text


def test_what_is_nested_too_deep_is_cut():
    value = []
    for _ in range(100):
        value = [value]

    assert json.dumps(clean_json(value)).count("[") == 20
