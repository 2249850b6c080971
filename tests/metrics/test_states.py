"""What stood open: written down each minute, and read back for any window."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jobs.core import windows
from jobs.core.words import LetterState
from jobs.metrics import states
from jobs.models import StateSample, WorkerBoot
from tests.factories import make_letter

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("each_database")]

NOW = datetime(2026, 11, 12, 3, 12, 20, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def test_a_minute_keeps_what_was_counted_last_in_it():
    make_letter()
    states.write_state(now=NOW)
    make_letter()
    make_letter(state=LetterState.RESOLVED)
    WorkerBoot.objects.create(
        boot_id="a", hostname="celery@web-1", started_at=NOW, reported_at=NOW, last_seen_at=NOW
    )

    states.write_state(now=NOW + timedelta(seconds=20))

    rows = StateSample.objects.order_by("level").values_list(
        "level", "at", "dead_letters", "outbox_lag_seconds", "workers_online"
    )
    assert list(rows) == [
        ("hour", NOW.replace(minute=0, second=0), 2, 0.0, 1),
        ("minute", NOW.replace(second=0), 2, 0.0, 1),
    ]


def test_a_series_has_the_end_of_each_step_and_none_where_nobody_counted():
    for minute, dead in ((10, 4), (3, 5), (2, 6)):
        StateSample.objects.create(
            level="minute", at=NOW.replace(second=0) - MINUTE * minute, dead_letters=dead
        )

    hour = states.series(windows.named("1h", now=NOW), now=NOW)
    six = states.series(windows.named("6h", now=NOW), now=NOW)

    assert [each and each.dead_letters for each in hour[-12:]] == [None, 4, *[None] * 6, 5, 6, None, None]
    assert [each and each.dead_letters for each in six[-3:]] == [4, 5, 6]


def test_a_month_is_read_from_the_hours():
    StateSample.objects.create(level="hour", at=datetime(2026, 11, 1, 4, tzinfo=UTC), dead_letters=7)
    StateSample.objects.create(level="minute", at=NOW.replace(second=0), dead_letters=9)

    month = states.series(windows.named("30d", now=NOW), now=NOW)

    assert [each.dead_letters for each in month if each] == [7]


def test_what_stood_open_at_a_moment_is_known_from_just_before_it_or_not_at_all():
    StateSample.objects.create(level="minute", at=NOW.replace(second=0) - 60 * MINUTE, dead_letters=3)
    StateSample.objects.create(
        level="hour", at=NOW.replace(minute=0, second=0) - timedelta(days=20), dead_letters=8
    )

    def dead(moment: datetime) -> int | None:
        state = states.state_at(moment, now=NOW)
        return None if state is None else state.dead_letters

    assert dead(NOW - 59 * MINUTE) == 3
    assert dead(NOW - 50 * MINUTE) is None
    assert dead(NOW - 61 * MINUTE) is None
    assert dead(NOW - timedelta(days=20)) == 8


def test_what_is_too_old_is_deleted():
    StateSample.objects.create(level="minute", at=NOW - timedelta(days=8), dead_letters=1)
    StateSample.objects.create(level="hour", at=NOW - timedelta(days=8), dead_letters=2)
    StateSample.objects.create(level="hour", at=NOW - timedelta(days=800), dead_letters=3)

    states.write_state(now=NOW)

    assert sorted(StateSample.objects.values_list("dead_letters", flat=True)) == [0, 0, 2]
