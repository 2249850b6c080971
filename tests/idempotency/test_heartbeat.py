"""The thread goes on, whatever one of its errands meets."""

from __future__ import annotations

import time

from django.db import OperationalError

from jobs.core.words import LedgerState
from jobs.idempotency.heartbeat import Errand, heart
from jobs.idempotency.ledger import Ledger
from tests.idempotency.copies import Body, Elsewhere, copy, record
from tests.servers import wait_until


def test_an_errand_that_can_never_be_done_is_given_up_and_told(database, caplog):
    tried: list[float] = []

    def impossible() -> None:
        tried.append(time.monotonic())
        raise ValueError("no such column")

    heart().send("impossible", Errand("default", impossible, "The impossible"))
    wait_until(lambda: "The impossible could not be written and is given up" in caplog.text, what="the log")
    done: list[bool] = []
    heart().send("next", Errand("default", lambda: done.append(True), "The next"))

    wait_until(lambda: done, what="the next errand")
    assert len(tried) == 1


def test_an_errand_is_tried_again_while_the_database_is_away_and_told_once(database, caplog):
    tried: list[float] = []

    def away() -> None:
        tried.append(time.monotonic())
        if len(tried) < 3:
            raise OperationalError("the server is starting up")

    heart().send("away", Errand("default", away, "The line"))

    wait_until(lambda: len(tried) == 3, what="three tries")
    assert caplog.text.count("The line could not be written and is tried again") == 1


def test_an_errand_that_was_taken_back_is_not_done(database):
    done: list[str] = []
    heart().send("later", Errand("default", lambda: done.append("later"), "Later", time.monotonic() + 1.0))

    assert heart().take_back("later", wait_seconds=1.0) is not None
    heart().send("now", Errand("default", lambda: done.append("now"), "Now", time.monotonic() + 1.1))

    wait_until(lambda: done, what="the other errand")
    assert done == ["now"]
    assert heart().take_back("later", wait_seconds=1.0) is None


def test_an_error_of_one_heartbeat_does_not_end_the_next(database, caplog, monkeypatch):
    extend = Ledger.extend
    failed: list[bool] = []

    def extend_badly(self: Ledger, token: int, *, lease_seconds: float) -> bool:
        if not failed:
            failed.append(True)
            raise ValueError("a bug")
        return extend(self, token, lease_seconds=lease_seconds)

    monkeypatch.setattr(Ledger, "extend", extend_badly)
    elsewhere = Elsewhere(lease_seconds=1.5)
    first = record().lease_expires_at

    wait_until(lambda: record().lease_expires_at > first, what="the next heartbeat")

    assert elsewhere.end() == "sent elsewhere"
    assert "its lease could not be extended" in caplog.text


def test_a_completion_whose_answer_was_lost_is_a_completion(database, monkeypatch):
    """The statement reached the database; the connection broke before it said so."""
    complete = Ledger.complete
    told: list[bool] = []

    def complete_in_silence(self: Ledger, token: int, result: str | None, **more: float) -> bool:
        is_mine = complete(self, token, result, **more)
        if not told:
            told.append(True)
            raise OperationalError("server closed the connection unexpectedly")
        return is_mine

    monkeypatch.setattr(Ledger, "complete", complete_in_silence)

    assert copy(Body()) == "sent"

    assert record().state == LedgerState.DONE
