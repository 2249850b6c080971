"""When a rule would have fired: the judge over values of the past."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.core.alert_rehearsals import Firing, rehearse
from jobs.core.alerts import Limits, shortest_period
from tests.factories import NOW

MINUTE = timedelta(minutes=1)


def at(minutes: float) -> datetime:
    return NOW + MINUTE * minutes


@pytest.mark.parametrize(
    ("limits", "values", "firings"),
    [
        (Limits(20), [], []),
        (Limits(20), [20, 20, 20], []),
        (Limits(20), [0, 21], [Firing(at(1), None)]),
        (Limits(20), [0, 21, 21, 0, 0], [Firing(at(1), at(3))]),
        (Limits(20), [21, 0, 21, 0], [Firing(at(0), at(1)), Firing(at(2), at(3))]),
        (Limits(20, hold=2 * MINUTE), [21, 21, 0, 21, 21, 21], [Firing(at(5), None)]),
        (Limits(20, recovery_hold=2 * MINUTE), [21, 0, 0, 0], [Firing(at(0), at(3))]),
        (Limits(20, recovery_threshold=5), [21, 10, 10, 5], [Firing(at(0), at(3))]),
        (
            Limits(20, cool_down=5 * MINUTE),
            [21, 0, 21, 21, 21, 21, 21],
            [Firing(at(0), at(1)), Firing(at(6), None)],
        ),
        # Of what is not known nothing is concluded: neither that it lasts nor that it is over.
        (Limits(20), [21, None, None, 21], [Firing(at(0), None)]),
        (Limits(20, hold=2 * MINUTE), [21, None, 21, 21, 21], [Firing(at(4), None)]),
        (Limits(20), [None, None], []),
    ],
)
def test_what_would_have_fired_follows_from_the_values(limits, values, firings):
    assert rehearse(limits, values, start=NOW, step=MINUTE) == firings


@given(
    values=st.lists(st.one_of(st.none(), st.floats(min_value=0, max_value=40)), max_size=200),
    hold=st.integers(min_value=0, max_value=4),
    recovery=st.integers(min_value=0, max_value=4),
    cool_down=st.integers(min_value=0, max_value=6),
)
def test_no_values_fire_more_often_than_the_rule_allows(values, hold, recovery, cool_down):
    limits = Limits(20, hold=MINUTE * hold, recovery_hold=MINUTE * recovery, cool_down=MINUTE * cool_down)

    firings = rehearse(limits, values, start=NOW, step=MINUTE)

    for before, after in pairwise(firings):
        assert before.resolved_at is not None
        assert before.fired_at <= before.resolved_at <= after.fired_at
        assert after.fired_at - before.fired_at >= shortest_period(limits)
    assert all(firing.resolved_at is not None for firing in firings[:-1])
