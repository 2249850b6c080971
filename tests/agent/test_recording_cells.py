"""Counts stay exact and bounded, however many minutes and names there are."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.agent.batches import OUTCOMES, Cell, bucket_of
from jobs.agent.counting import Cells

NOON = 1_800_000_000 // 86_400 * 86_400 + 43_200

endings = st.lists(
    st.tuples(
        st.integers(min_value=0, max_value=3 * 86_400),
        st.sampled_from(["a", "b", "c"]) | st.text(max_size=3),
        st.sampled_from(["q", "r"]),
        st.sampled_from(OUTCOMES),
        st.none() | st.floats(min_value=0, max_value=1e4),
        st.none() | st.floats(min_value=0, max_value=1e4),
    ),
    max_size=200,
)


def added(cells: list[Cell]) -> Cell:
    """Add all of them up."""
    one = Cell(0, "", "")
    for cell in cells:
        for name in ("received", "dropped", *OUTCOMES, "latency_sum", "runtime_sum"):
            setattr(one, name, getattr(one, name) + getattr(cell, name))
        one.latency = dict(Counter(one.latency) + Counter(cell.latency))
        one.runtime = dict(Counter(one.runtime) + Counter(cell.runtime))
    return one


@given(endings, st.integers(min_value=1, max_value=12))
def test_whatever_is_folded_the_totals_are_exact(events: list[tuple[object, ...]], most: int) -> None:
    cells = Cells(most=most)
    for at, task, queue, outcome, latency, runtime in sorted(events, key=lambda each: str(each[0]).zfill(9)):
        cells.receive(NOON + at, task, queue)  # type: ignore[arg-type, operator]
        cells.end(NOON + at, task, queue, outcome, latency, runtime)  # type: ignore[arg-type, operator]
    assert cells.attempts() == len(events)
    one = added(cells.take())

    assert one.received == len(events)
    for outcome in OUTCOMES:
        assert getattr(one, outcome) == sum(each[3] == outcome for each in events)
    assert one.latency == Counter(bucket_of(each[4]) for each in events if each[4] is not None)  # type: ignore[arg-type]
    assert one.runtime == Counter(bucket_of(each[5]) for each in events if each[5] is not None)  # type: ignore[arg-type]
    assert one.runtime_sum == pytest.approx(sum(each[5] or 0 for each in events))  # type: ignore[misc]
    assert cells.take() == []


def test_a_day_without_broker_becomes_hours_and_keeps_the_current_minute() -> None:
    cells = Cells(most=500)
    for minute in range(24 * 60):
        for task in ("a", "b"):
            cells.end(NOON + minute * 60, task, "q", "done", None, None)

    kept = cells.take()

    assert len(kept) <= 500
    assert {cell.task for cell in kept} == {"a", "b"}
    last = NOON + (24 * 60 - 1) * 60
    assert [cell.done for cell in kept if cell.minute == last] == [1, 1]
    first_hour = [cell.done for cell in kept if cell.minute == NOON and cell.task == "a"]
    assert first_hour == [60]


def test_a_minute_with_too_many_names_counts_the_rest_under_none() -> None:
    cells = Cells(most=500)
    for number in range(10_000):
        cells.end(NOON, f"made up {number}", "q", "dead", None, None)

    kept = cells.take()

    assert len(kept) <= 501
    assert sum(cell.dead for cell in kept) == 10_000
    assert max(kept, key=lambda cell: cell.dead).task == ""


def test_names_that_are_made_up_each_minute_do_not_pile_up() -> None:
    cells = Cells(most=500)
    for number in range(20_000):
        cells.end(NOON + number, f"made up {number}", "q", "dead", None, None)

    kept = cells.take()

    assert len(kept) <= 501
    assert sum(cell.dead for cell in kept) == 20_000
