"""The database is away, busy or comes back: at the claim, while the job runs, and when it is done."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest
from django.db import connection

from jobs.core.claims import Claimant
from jobs.core.words import LedgerState
from jobs.errors import HeldBack
from jobs.idempotency import end_progress, record_progress, running, sent_attempt
from jobs.idempotency.heartbeat import heart
from jobs.idempotency.ledger import Ledger
from jobs.models import JobProgress
from tests.idempotency.copies import KEY, TASK, Body, Elsewhere, copy, expire, record
from tests.postgres import default_database
from tests.servers import free_port, wait_until

pytestmark = pytest.mark.postgres


@pytest.fixture(params=[False, True], ids=["lease", "atomic"])
def atomic(request) -> bool:
    return bool(request.param)


class Database:
    """The database under the test, which can go away and come back."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock: sqlite3.Connection | None = None

    def go_away(self) -> None:
        """Refuse PostgreSQL's connections; keep SQLite's one writer busy."""
        if self._url.startswith("sqlite"):
            self._lock = sqlite3.connect(
                self._url.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False
            )
            self._lock.execute("BEGIN IMMEDIATE")
            return
        with psycopg.connect(self._other_database, autocommit=True) as other:
            other.execute("ALTER DATABASE ledger ALLOW_CONNECTIONS false")
            other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'ledger'")

    def come_back(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        elif not self._url.startswith("sqlite"):
            with psycopg.connect(self._other_database, autocommit=True) as other:
                other.execute("ALTER DATABASE ledger ALLOW_CONNECTIONS true")

    def come_back_to_the_test(self) -> None:
        """Come back, with a connection for the test's own thread."""
        self.come_back()
        connection.close()

    def break_connections(self) -> None:
        """End the sessions, as a restart does."""
        if not self._url.startswith("sqlite"):
            self.go_away()
            self.come_back()

    @property
    def _other_database(self) -> str:
        return self._url.replace("/ledger", "/postgres")


@pytest.fixture
def server(database, database_url) -> Iterator[Database]:
    server = Database(database_url)
    try:
        yield server
    finally:
        server.come_back()


def be_impatient() -> None:
    """Let this thread's connection wait 0.1 s for SQLite's writer instead of 20."""
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout = 100")


def test_without_its_ledger_a_job_does_not_start(django_db_setup, django_db_blocker, atomic, caplog):
    body = Body()
    nobody_listens = f"postgresql://postgres@127.0.0.1:{free_port()}/ledger"

    with (
        django_db_blocker.unblock(),
        default_database(nobody_listens),
        pytest.raises(HeldBack, match="did not answer") as held,
    ):
        copy(body, atomic=atomic)

    assert body.runs == 0
    assert 10 <= held.value.seconds <= 15
    assert "has used no attempt" in caplog.text
    assert "Connection refused" in caplog.text


def test_a_job_does_not_start_while_the_ledger_is_busy_or_refuses_and_does_afterwards(server, atomic):
    body = Body()
    connection.ensure_connection()
    server.go_away()

    begun = time.monotonic()
    with pytest.raises(HeldBack):
        copy(body, atomic=atomic)

    assert body.runs == 0
    # SQLite's timeout is 20 s; a worker slot is not blocked for that long.
    assert time.monotonic() - begun < 12
    server.come_back()
    assert copy(body, atomic=atomic) == "sent"


def test_sqlites_own_patience_is_what_it_was_afterwards(database, atomic):
    if database != "sqlite":
        # PostgreSQL's settings are not touched at all.
        return

    def body() -> int:
        return patience()

    before = patience()

    assert copy(body, atomic=atomic) == before
    assert patience() == before > running.SQLITE_WAIT_MILLISECONDS


def patience() -> int:
    with connection.cursor() as cursor:
        return int(cursor.execute("PRAGMA busy_timeout").fetchone()[0])


def test_a_connection_that_broke_since_its_last_job_costs_nothing(server, atomic):
    connection.ensure_connection()
    server.break_connections()

    assert copy(Body(), atomic=atomic) == "sent"


def test_a_connection_that_breaks_under_the_body_is_no_loss_under_a_lease(server):
    def body() -> str:
        server.break_connections()
        return "sent"

    assert copy(body) == "sent"
    assert record().state == LedgerState.DONE


def test_a_connection_that_breaks_under_an_atomic_body_undoes_the_body(server, database):
    if database == "sqlite":
        # It has no connection that could break.
        return

    def body() -> None:
        server.break_connections()

    with pytest.raises(Exception, match=r"terminat|closed|lost"):
        copy(body, atomic=True)

    connection.close()
    again = Body()
    assert copy(again, atomic=True) == "sent"


def test_a_completion_that_the_database_does_not_take_is_written_when_it_is_back(server, caplog, monkeypatch):
    monkeypatch.setattr(running, "RECORD_SECONDS", 0.5)

    def body() -> str:
        be_impatient()
        server.go_away()
        return "sent"

    assert copy(body) == "sent"

    assert "is done, and the ledger cannot be told" in caplog.text
    server.come_back()
    wait_until(lambda: record().state == LedgerState.DONE, what="the completion")
    assert record().result == '"sent"'


def test_a_late_completion_does_not_overwrite_who_took_the_key_over(server, caplog, monkeypatch):
    monkeypatch.setattr(running, "RECORD_SECONDS", 0.1)

    def body() -> str:
        be_impatient()
        expire()
        server.go_away()
        return "sent"

    copy(body)
    server.come_back()
    # In the test's own time: whichever comes first, the key is done once and nothing is overwritten.
    with contextlib.suppress(HeldBack):
        copy(Body("by another"), task_id="b")

    wait_until(lambda: record().state == LedgerState.DONE, what="a completion")
    line = record()
    assert (line.task_id, line.result) in {("a", '"sent"'), ("b", '"by another"')}


def test_a_key_that_cannot_be_freed_ends_with_its_lease_and_the_error_stays_the_bodys(server, caplog):
    def body() -> None:
        be_impatient()
        server.go_away()
        raise ConnectionError("relay down")

    with pytest.raises(ConnectionError, match="relay down"):
        copy(body)

    assert "its key could not be freed" in caplog.text
    server.come_back()
    assert record().state == LedgerState.RUNNING
    with pytest.raises(HeldBack):
        copy(Body(), attempt=1)
    expire()
    assert copy(Body(), attempt=1) == "sent"
    assert record().takeovers == 0


def test_a_retry_that_cannot_be_noted_is_told_and_breaks_nothing(server, caplog):
    be_impatient()
    server.go_away()

    sent_attempt(task=TASK, key=KEY, task_id="a", attempt=1, using="default")

    assert "could not note that attempt 1 was sent" in caplog.text


def test_progress_that_cannot_be_brought_up_to_date_at_the_end_is_told(server, caplog):
    record_progress(task=TASK, task_id="a", worker="w", done=1, total=2)
    wait_until(JobProgress.objects.exists, what="the line")
    be_impatient()
    server.go_away()

    end_progress(task_id="a", is_done=True)

    assert "its progress could not be brought up to date" in caplog.text
    server.come_back_to_the_test()
    assert JobProgress.objects.get().done == 1


def test_the_heartbeat_survives_a_database_that_goes_and_comes_back(server, caplog):
    elsewhere = Elsewhere(lease_seconds=2.0)
    server.go_away()
    wait_until(lambda: "could not be extended and is tried again" in caplog.text, what="the trouble")
    server.come_back_to_the_test()
    first = record().lease_expires_at

    wait_until(lambda: record().lease_expires_at > first, what="the next heartbeat")

    assert caplog.text.count("could not be extended and is tried again") == 1
    assert elsewhere.end() == "sent elsewhere"
    assert record().state == LedgerState.DONE


def test_a_job_that_loses_its_lease_while_it_runs_is_told_at_once(database, caplog):
    elsewhere = Elsewhere(lease_seconds=3.0)
    expire()

    copy(Body(), task_id="b")

    wait_until(lambda: "lost its lease while it runs" in caplog.text, what="the heartbeat to notice")
    elsewhere.end()


def test_a_time_limit_that_strikes_while_the_record_is_written_does_not_undo_the_job(database, monkeypatch):
    class TooLate(Exception):
        pass

    original = running._Run._record

    def struck(self, claim, text):  # type: ignore[no-untyped-def]
        raise TooLate

    monkeypatch.setattr(running._Run, "_record", struck)
    with pytest.raises(TooLate):
        copy(Body())
    monkeypatch.setattr(running._Run, "_record", original)

    # The retry that follows finds it done.
    again = Body("again")
    assert copy(again, attempt=1) == "sent"
    assert again.runs == 0


def test_a_time_limit_that_strikes_right_after_the_body_leaves_no_lease_that_lives_for_ever(
    database, monkeypatch
):
    """Every other job with the key would be held back for as long as this process lives."""

    class TooLate(Exception):
        pass

    def struck(self, result):  # type: ignore[no-untyped-def]
        raise TooLate

    monkeypatch.setattr(running._Run, "_encoded", struck)
    with pytest.raises(TooLate):
        copy(Body())

    assert not heart()._leases


def test_a_completion_that_is_written_late_says_when_the_job_ended(database):
    """Preflight compares how long jobs run with the broker's timeout: an outage is no runtime."""
    ledger = Ledger(using="default", task=TASK, key=KEY)
    token = ledger.insert(Claimant("a", 0), holder="here:1", lease_seconds=60)

    assert ledger.complete(token, None, ago_seconds=1_500)

    assert record().updated_at - record().completed_at == timedelta(seconds=1_500)


def test_many_jobs_share_one_thread(database):
    def count() -> int:
        return sum(thread.name == "jobs-heartbeat" for thread in threading.enumerate())

    for number in range(5):
        copy(Body(), key=f"receipt:{number}")

    assert count() == 1
