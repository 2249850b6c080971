"""Several that judge or send at the same moment, on real databases with real transactions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.utils import timezone

from jobs.alerts import sending
from jobs.alerts.evaluating import evaluate
from jobs.core.words import AlertKind, NotificationKind
from jobs.models import Alert, AlertRule, DeadLetter, Notification
from tests.factories import make_copies, make_letter
from tests.runops_place import RunopsPlace

THREADS = 4


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def place(request, django_db_setup, django_db_blocker) -> Iterator[RunopsPlace]:
    url = ""
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_server").create_migrated_database(
            f"at_once_{time.monotonic_ns()}"
        )
    with django_db_blocker.unblock(), RunopsPlace(url).entered() as place:
        yield place


def at_once(work: Callable[[], Any]) -> list[Any]:
    """Do the same in several threads that begin together; return what each came to."""
    barrier = threading.Barrier(THREADS)
    results: list[Any] = []

    def run() -> None:
        barrier.wait(timeout=20)
        try:
            results.append(work())
        except Exception as error:  # noqa: BLE001 - shown by the assertion
            results.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    return results


def test_of_several_that_judge_at_once_one_fires_and_one_resolves(place: RunopsPlace) -> None:
    AlertRule.objects.update(is_enabled=False)
    rule = AlertRule.objects.create(
        name="Watched", kind=AlertKind.LETTERS_GROWING, threshold=2, recovery_hold_seconds=0, window_minutes=5
    )
    now = timezone.now()
    make_copies(make_letter(died_at=now - timedelta(seconds=1), death=False), 50)

    fired = at_once(lambda: evaluate(now=now).fired)
    DeadLetter.objects.update(died_at=now - timedelta(hours=1))
    resolved = at_once(lambda: evaluate(now=now + timedelta(seconds=5)).resolved)

    assert sorted(fired) == [0] * (THREADS - 1) + [1]
    assert sorted(resolved) == [0] * (THREADS - 1) + [1]
    assert Alert.objects.get().rule == rule
    assert sorted(Notification.objects.values_list("kind", flat=True)) == [
        NotificationKind.FIRED,
        NotificationKind.RECOVERED,
    ]


def test_of_several_that_claim_at_once_one_sends(place: RunopsPlace) -> None:
    now = timezone.now()
    row = Notification.objects.create(
        rule=AlertRule.objects.earliest("pk"), kind="test", channel="email", message_id="<a@b>", subject="x",
        created_at=now, due_at=now,
    )  # fmt: skip

    claimed = at_once(lambda: sending.claim(row.pk, now=now))

    assert [each for each in claimed if each is not None] == [row]
    row.refresh_from_db()
    assert row.attempts == 1
