"""Errors that say of themselves that trying again cannot help."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.agent import reasons
from jobs.agent.endings import Attempt, judge, permanent_reason

TRACEBACK = (
    'Traceback (most recent call last):\n  File "/srv/shop/tasks.py", line 3, in send\nValueError: x\n'
)


class Error(Exception):
    """Carries whatever a test gives it."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__("x")
        self.__dict__.update(attributes)


class Hostile(Exception):
    """Raises when it is looked at."""

    @property
    def permanent(self) -> bool:
        raise RuntimeError("do not look")


class HostileReason(Exception):
    permanent = True

    @property
    def dead_letter_reason(self) -> str:
        raise RuntimeError("do not look")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("x"), None),
        (Error(permanent=False), None),
        (Error(permanent=1), None),
        (Error(permanent="yes"), None),
        (Error(dead_letter_reason="expired"), None),
        (Error(permanent=True), "failed"),
        (Error(permanent=True, dead_letter_reason=""), "failed"),
        (Error(permanent=True, dead_letter_reason="gremlins"), "failed"),
        (Error(permanent=True, dead_letter_reason="revoked"), "failed"),
        (Error(permanent=True, dead_letter_reason=["expired"]), "failed"),
        (Error(permanent=True, dead_letter_reason="expired"), "expired"),
        (Error(permanent=True, dead_letter_reason="worker_lost"), "worker_lost"),
        (Hostile(), None),
        (HostileReason(), None),
    ],
)
def test_an_error_names_its_own_reason_when_it_is_a_known_death(error: Exception, reason: str | None) -> None:
    assert permanent_reason(error) == reason


@pytest.mark.parametrize("retries", [0, 1, 4])
def test_a_permanent_error_exhausts_no_retries(retries: int) -> None:
    ending = judge(Error(permanent=True), TRACEBACK, Attempt(retries=retries, max_retries=4))

    assert ending is not None
    assert (ending.reason, ending.is_death) == (reasons.FAILED, True)


@pytest.mark.parametrize(
    ("retries", "max_retries", "reason"), [(0, 0, "failed"), (0, 4, "failed"), (4, 4, "retries_exhausted")]
)
def test_a_job_with_one_attempt_exhausts_none(retries: int, max_retries: int, reason: str) -> None:
    ending = judge(ValueError("x"), TRACEBACK, Attempt(retries=retries, max_retries=max_retries))

    assert ending is not None
    assert ending.reason == reason


@given(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text()),
    st.one_of(st.none(), st.text(), st.integers(), st.lists(st.text())),
)
def test_any_attributes_give_a_known_death_or_nothing(permanent: Any, named: Any) -> None:
    reason = permanent_reason(Error(permanent=permanent, dead_letter_reason=named))

    assert reason is None or reason in reasons.DEATHS
