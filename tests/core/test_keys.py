"""Keys: which templates are good, and that different jobs have different keys."""

from __future__ import annotations

import datetime
import decimal
import enum
import hashlib
import re
import uuid
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from jobs.core.cleaning import clean_name
from jobs.core.keys import (
    LONGEST_KEY,
    Field,
    KeyRefused,
    check_template,
    checked_key,
    format_key,
    is_key,
    parse_template,
)


class Colour(enum.StrEnum):
    RED = "red"


class Size(enum.IntEnum):
    SMALL = 1


class Plain(enum.Enum):
    ONE = 1


def key(text: str, **arguments: Any) -> str:
    return format_key(parse_template(text), arguments)


@pytest.mark.parametrize(
    ("text", "arguments", "expected"),
    [
        ("receipt:{order_id}", {"order_id": 5}, "receipt:5"),
        ("{a}:{b}", {"a": 1, "b": "x"}, "1:x"),
        ("{a}:{b}", {"a": "1:2", "b": "3%"}, "1%3A2:3%25"),
        ("{a}é{b}", {"a": "é", "b": 1}, "%C3%A9é1"),
        ("once:{a}", {"a": "1:2%"}, "once:1:2%"),
        ("{order[id]}", {"order": {"id": 7}}, "7"),
        ("{order[lines][0][sku]}", {"order": {"lines": [{"sku": "s1"}]}}, "s1"),
        ("{pair[1]}", {"pair": (1, 2)}, "2"),
        ("{by[1]}", {"by": {1: "one"}}, "one"),
        ("{by[1]}", {"by": {"1": "text", 1: "number"}}, "text"),
        ("{{literal}}{a}", {"a": 1}, "{literal}1"),
        ("{a}", {"a": True}, "True"),
        ("{a}", {"a": 1.5}, "1.5"),
        ("{a}", {"a": Colour.RED}, "red"),
        ("{a}", {"a": Size.SMALL}, "1"),
        ("{a}", {"a": decimal.Decimal("1.50")}, "1.50"),
        ("{a}", {"a": uuid.UUID(int=1)}, "00000000-0000-0000-0000-000000000001"),
        ("{a}", {"a": datetime.date(2026, 7, 1)}, "2026-07-01"),
        ("{a}", {"a": datetime.datetime(2026, 7, 1, 12, tzinfo=datetime.UTC)}, "2026-07-01T12:00:00+00:00"),
        ("{a}", {"a": datetime.time(12, 30)}, "12:30:00"),
        ("{a}", {"a": 10**5000}, None),
    ],
)
def test_a_template_and_arguments_make_a_key(
    text: str, arguments: dict[str, Any], expected: str | None
) -> None:
    made = key(text, **arguments)

    assert made == expected if expected is not None else is_key(made)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it names no parameter"),
        ("receipt", "it names no parameter"),
        ("{{order_id}}", "it names no parameter"),
        ("{order_id", "it cannot be read"),
        ("order_id}", "it cannot be read"),
        ("{}", "{} names no parameter"),
        ("{0}", "{0} names no parameter"),
        ("{order id}", "{order id} names no parameter"),
        ("{order[}", "it cannot be read|names no parameter"),
        ("{order[]}", "names no parameter"),
        ("{order.id}", "{order.id} reads an attribute"),
        ("{order.__class__}", "reads an attribute"),
        ("{order[id].x}", "reads an attribute"),
        ("{order_id!r}", "has a format or a conversion"),
        ("{order_id:>5}", "has a format or a conversion"),
        ("{order_id:{width}}", "has a format or a conversion"),
        ("{a}{b}", "{a}{b} stand side by side"),
        ("{a}%{b}", "a percent sign between two fields"),
    ],
)
def test_a_template_that_is_none_or_mixes_jobs_up_is_refused(text: str, why: str) -> None:
    with pytest.raises(KeyRefused, match=why if "|" in why else re.escape(why)):
        parse_template(text)


def test_a_template_may_only_name_parameters() -> None:
    template = parse_template("{order_id}:{day[0]}")

    check_template(template, ["order_id", "day"], takes_any=False)
    check_template(template, [], takes_any=True)
    with pytest.raises(KeyRefused, match=re.escape("{day[0]} is no parameter; the job has order_id")):
        check_template(template, ["order_id"], takes_any=False)
    with pytest.raises(KeyRefused, match="the job has none"):
        check_template(template, [], takes_any=False)
    assert template.fields == (Field("order_id", ()), Field("day", ("0",)))


@pytest.mark.parametrize(
    ("text", "arguments", "why"),
    [
        ("{a}", {}, "{a} was not given; the job has no arguments"),
        ("{a}", {"b": 1}, "{a} was not given; the job has b"),
        ("{a}", {"a": None}, "{a} is None"),
        ("{a[x]}", {"a": {"x": None}}, "{a[x]} is None"),
        ("{a}", {"a": [1]}, "{a} is of type list"),
        ("{a}", {"a": {"x": 1}}, "{a} is of type dict"),
        ("{a}", {"a": object()}, "{a} is of type object"),
        ("{a}", {"a": Plain.ONE}, "{a} is of type Plain"),
        ("{a}", {"a": b"x"}, "{a} is of type bytes"),
        ("{a[x]}", {"a": {"y": 1}}, "{a[x]} has no item [x] in a value of type dict"),
        ("{a[5]}", {"a": [1]}, "{a[5]} has no item [5] in a value of type list"),
        ("{a[-1]}", {"a": [1]}, "has no item [-1]"),
        ("{a[x]}", {"a": [1]}, "has no item [x]"),
        ("{a[0]}", {"a": "text"}, "{a[0]} has no item [0] in a value of type str"),
        ("{a}", {"a": ""}, "it is empty"),
        ("{a}", {"a": "x\0"}, "a character that a database does not take"),
        ("{a}", {"a": "x\ud800"}, "a character that a database does not take"),
    ],
)
def test_a_value_that_makes_no_key_is_refused(text: str, arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(KeyRefused, match=re.escape(why)):
        key(text, **arguments)


@pytest.mark.parametrize("value", [None, 5, b"x", ["x"]])
def test_a_key_that_is_no_text_is_refused(value: Any) -> None:
    with pytest.raises(KeyRefused, match="not a text"):
        checked_key(value)


def test_a_long_key_is_cut_and_ends_in_a_hash_of_the_whole() -> None:
    long = "x" * 300

    made = checked_key(long)

    assert made == "x" * 190 + "~" + hashlib.sha256(long.encode()).hexdigest()
    assert len(made) == LONGEST_KEY
    assert checked_key("x" * LONGEST_KEY) == "x" * LONGEST_KEY
    assert checked_key(made) == made


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a", True),
        ("", False),
        (None, False),
        (5, False),
        ("a\0", False),
        ("x" * 256, False),
        ("x" * 255, True),
    ],
)
def test_a_header_is_a_key_or_is_not(value: Any, expected: bool) -> None:
    assert is_key(value) is expected


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
separators = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0{}%"), min_size=1, max_size=3
)


@given(separators, st.tuples(texts, texts), st.tuples(texts, texts))
def test_different_values_make_different_keys(
    separator: str, one: tuple[str, str], two: tuple[str, str]
) -> None:
    assume(one != two)
    text = f"{{a}}{separator}{{b}}"

    assert key(text, a=one[0], b=one[1]) != key(text, a=two[0], b=two[1])


@given(st.tuples(texts, texts, texts), st.tuples(texts, texts, texts))
def test_different_values_make_different_keys_over_three_fields(
    one: tuple[str, ...], two: tuple[str, ...]
) -> None:
    assume(one != two)

    assert key("k:{a}:{b}/{c}", **dict(zip("abc", one, strict=True))) != key(
        "k:{a}:{b}/{c}", **dict(zip("abc", two, strict=True))
    )


@given(st.text(max_size=300), st.text(max_size=300))
def test_keys_are_cut_without_becoming_one(one: str, two: str) -> None:
    try:
        made = checked_key(one), checked_key(two)
    except KeyRefused:
        return
    assert (made[0] == made[1]) is (one == two)
    assert all(is_key(each) for each in made)


@given(st.text(max_size=40))
def test_any_text_is_a_template_or_is_refused(text: str) -> None:
    try:
        template = parse_template(text)
    except KeyRefused:
        return
    assert template.fields


@given(
    st.text(),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=5,
    ),
)
def test_any_arguments_make_a_key_or_are_refused(item: str, value: Any) -> None:
    for text in ("{a}", f"{{a[{item}]}}"):
        try:
            made = key(text, a=value)
        except KeyRefused:
            continue
        assert is_key(made)


@pytest.mark.parametrize(("one", "other"), [("a\n", "a\t"), ("a\u2028b", "a\u2029b"), ("a\x7f", "a\ufffd")])
def test_keys_that_differ_in_a_control_character_are_stored_apart(one: str, other: str) -> None:
    """The ledger shows each as U+FFFD, so the second job would be taken for done."""
    keys = [clean_name(checked_key(text)) for text in (one, other)]

    assert keys[0] != keys[1]
    assert all(is_key(each) for each in keys)
