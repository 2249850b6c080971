"""Figures, limits and rules in words."""

from __future__ import annotations

import pytest

from jobs.core import alert_words
from jobs.core.alert_kinds import Unit
from jobs.core.alert_words import RuleWords
from jobs.core.words import AlertKind


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-5, ""), (0.9, ""), (4.9, " (4 s ago)"), (134, " (2 min ago)"), (9_660, " (2 h 41 min ago)")],
)
def test_what_began_is_as_long_ago_as_pages_say(seconds: float, words: str) -> None:
    assert alert_words.ago(seconds) == words


@pytest.mark.parametrize(
    ("unit", "value", "words"),
    [
        (Unit.SECONDS, 605, "10 min 5 s"),
        (Unit.SECONDS, 0.25, "250 ms"),
        (Unit.PER_CENT, 5, "5 %"),
        (Unit.PER_CENT, 10.5, "10.5 %"),
        (Unit.PER_CENT, 0.05, "0.05 %"),
        (Unit.A_MINUTE, 1_000.5, "1,000.5 a minute"),
        (Unit.MESSAGES, 1, "1 message"),
        (Unit.MESSAGES, 10_000, "10,000 messages"),
        (Unit.MESSAGES, 12_345_678_901, "12,345,678,901 messages"),
    ],
)
def test_a_limit_is_what_was_typed_and_not_rounded(unit: Unit, value: float, words: str) -> None:
    assert alert_words.limit(unit, value) == words


def test_a_rule_says_its_limit_and_its_hold_time_exactly() -> None:
    rule = RuleWords(kind=AlertKind.OLDEST_AGE, threshold=5_430, hold_seconds=3_605)

    words = "the oldest message has waited for more than 1 h 30 min 30 s, for 1 h 5 s on end, all queues"
    assert alert_words.in_words(rule) == words
