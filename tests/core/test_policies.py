"""The table of policies: what each takes, and what looks like one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.core.policies import (
    FOREIGN_NAMES,
    POLICIES,
    PolicyRefused,
    check,
    check_together,
    complete_time_limits,
    explain_unknown,
)

DEFAULTS = {name: policy.default for name, policy in POLICIES.items()}
NAN, INFINITE = float("nan"), float("inf")

GOOD: dict[str, list[Any]] = {
    "idempotency_key": [None, "{a}", lambda self: None],
    "atomic": [True, False],
    "using": [None, "default"],
    "idempotency_lease_seconds": [1, 3600, 2.5],
    "max_attempts": [1, 1000],
    "backoff_base_seconds": [0, 0.5, 86_400],
    "backoff_factor": [1, 1.5, 100],
    "backoff_cap_seconds": [0, 86_400],
    "payload_limit_bytes": [1, 16_777_216],
    "soft_time_limit": [0.1, 604_800],
    "time_limit": [0.1, 604_800],
    "rate": [None, "100/m"],
    "concurrency": [None, 1, 100_000],
    "limit_key": [None, "{a}", len],
    "queue": [None, "critical", "größe"],
}
BAD: dict[str, list[tuple[Any, str]]] = {
    "idempotency_key": [
        ("", "it names no parameter"),
        (5, "neither a template nor a method"),
        ("{a.b}", "attribute"),
    ],
    "atomic": [(1, "not a switch"), (None, "not a switch"), ("yes", "not a switch")],
    "using": [("", "empty"), (5, "not a name"), ("a\nb", "cannot be printed")],
    "idempotency_lease_seconds": [
        (0, "below 1"),
        (3601, "above 3,600"),
        (None, "not a number"),
        (True, "not a number"),
    ],
    "max_attempts": [
        (0, "below 1"),
        (1001, "above 1,000"),
        (2.0, "not a whole number"),
        ("3", "not a whole number"),
        (True, "not a whole number"),
    ],
    "backoff_base_seconds": [
        (-1, "below 0"),
        (NAN, "not a number"),
        (INFINITE, "not a number"),
        ("1", "not a number"),
    ],
    "backoff_factor": [(0.5, "below 1"), (101, "above 100")],
    "backoff_cap_seconds": [(-0.1, "below 0"), (86_401, "above 86,400")],
    "payload_limit_bytes": [(0, "below 1"), (16_777_217, "above 16,777,216"), (1.5, "not a whole number")],
    "soft_time_limit": [
        (0, "not above 0"),
        (-1, "not above 0"),
        (None, "not a number"),
        (604_801, "above 604,800"),
    ],
    "time_limit": [(0, "not above 0"), (None, "not a number")],
    "rate": [("100", "it is not a number of jobs in a time"), (100, "not a text"), ("0/s", "from 1 to")],
    "concurrency": [(0, "below 1"), (True, "not a whole number"), (100_001, "above 100,000")],
    "limit_key": [("x", "it names no parameter"), (5, "neither")],
    "queue": [("", "empty"), (" ", "empty"), (5, "not a name")],
}


def test_the_tables_name_every_policy() -> None:
    assert list(GOOD) == list(BAD) == list(POLICIES)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in GOOD.items() for value in values]
)
def test_a_good_value_passes(name: str, value: Any) -> None:
    check(name, value)


@pytest.mark.parametrize(
    ("name", "value", "why"), [(name, *pair) for name, pairs in BAD.items() for pair in pairs]
)
def test_a_wrong_value_is_told_why_and_what_is_allowed(name: str, value: Any, why: str) -> None:
    with pytest.raises(PolicyRefused) as refused:
        check(name, value)

    assert why in str(refused.value)
    assert str(refused.value).endswith(f" Give {POLICIES[name].allowed}.")


def test_defaults_pass_alone_and_together() -> None:
    for name, value in DEFAULTS.items():
        check(name, value)
    check_together(DEFAULTS)


def test_every_policy_says_what_it_means() -> None:
    assert all(policy.meaning.endswith(".") and policy.allowed for policy in POLICIES.values())


def test_a_policy_that_is_none_is_no_question() -> None:
    with pytest.raises(KeyError):
        check("max_atempts", 3)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"soft_time_limit": 660}, "soft_time_limit=660 is not below time_limit=660"),
        ({"limit_key": "{a}"}, "limit_key limits nothing"),
    ],
)
def test_policies_that_contradict_each_other_are_refused(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(PolicyRefused, match=why):
        check_together({**DEFAULTS, **changed})


@pytest.mark.parametrize("limit", [{"rate": "1/s"}, {"concurrency": 1}])
def test_a_limit_key_needs_one_limit(limit: dict[str, Any]) -> None:
    check_together({**DEFAULTS, "limit_key": "{a}", **limit})


@pytest.mark.parametrize(
    ("levels", "limits"),
    [
        ([], (600, 660)),
        ([{}, {}], (600, 660)),
        ([{"time_limit": 30}], (27, 30)),
        ([{"time_limit": 700}], (600, 700)),
        ([{"soft_time_limit": 3600}], (3600, 3960)),
        ([{"soft_time_limit": 100}], (100, 660)),
        ([{"time_limit": 5}], (5 / 1.1, 5)),
        ([{"time_limit": 30}, {"soft_time_limit": 20, "time_limit": 100}], (20, 30)),
        ([{"soft_time_limit": 50, "time_limit": 60}, {"time_limit": 30}], (50, 60)),
        ([{}, {"time_limit": 30}, {"soft_time_limit": 20}], (20, 30)),
    ],
)
def test_the_limit_that_is_not_given_fits_the_one_that_is(
    levels: list[dict[str, float]], limits: tuple[float, float]
) -> None:
    assert complete_time_limits([*levels, DEFAULTS]) == limits


def test_the_last_level_must_give_both() -> None:
    with pytest.raises(KeyError):
        complete_time_limits([{"time_limit": 5}])


@given(
    st.lists(
        st.fixed_dictionaries(
            {}, optional={"soft_time_limit": st.floats(0.01, 604_800), "time_limit": st.floats(0.01, 604_800)}
        ),
        max_size=4,
    )
)
def test_limits_from_any_levels_fit_unless_one_level_contradicts_itself(
    levels: list[dict[str, float]],
) -> None:
    soft, hard = complete_time_limits([*levels, DEFAULTS])

    last = {name: DEFAULTS[name] for name in ("soft_time_limit", "time_limit")}
    first = next((level for level in levels if level), last)
    if len(first) == 2:
        assert (soft, hard) == (first["soft_time_limit"], first["time_limit"])
    else:
        assert soft < hard
        assert first.items() <= {"soft_time_limit": soft, "time_limit": hard}.items()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("max_atempts", "Write max_attempts,"),
        ("max_attempt", "Write max_attempts,"),
        ("idempotent_key", "Write idempotency_key,"),
        ("timelimit", "Write time_limit,"),
        ("concurency", "Write concurrency,"),
        ("backoff_base", "Write backoff_base_seconds"),
        ("payload_limit", "Write payload_limit_bytes"),
        ("max_retries", "Write max_attempts with one more"),
        ("retry_backoff", "Write backoff_base_seconds and backoff_factor"),
    ],
)
def test_a_name_that_was_meant_as_a_policy_is_told_which(name: str, meant: str) -> None:
    assert meant in explain_unknown(name)


@pytest.mark.parametrize("name", ["colour", "template", "run", "x", "", "serializer", *POLICIES])
def test_a_name_of_ones_own_and_a_policy_itself_are_left_alone(name: str) -> None:
    assert explain_unknown(name) == ""


def test_no_policy_is_called_a_foreign_name() -> None:
    assert FOREIGN_NAMES.keys().isdisjoint(POLICIES)


@given(
    st.sampled_from(sorted(POLICIES)),
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.lists(st.integers())
    ),
)
def test_any_value_passes_or_is_told(name: str, value: Any) -> None:
    told = ""
    try:
        check(name, value)
    except PolicyRefused as refused:
        told = str(refused)
    assert told == "" or " Give " in told
