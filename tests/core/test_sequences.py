"""Numbers of a sequence are counted once each, in whatever order they come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.core.sequences import MOST_GAPS, Counted, count

NONE = Counted(0, [])


def count_all(numbers: list[int]) -> tuple[Counted, list[int]]:
    counted, taken = NONE, []
    for number in numbers:
        after = count(counted, number)
        if after is not None:
            counted = after
            taken.append(number)
    return counted, taken


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([1, 2, 3], Counted(3, [])),
        ([3], Counted(3, [[1, 2]])),
        ([5, 2], Counted(5, [[1, 1], [3, 4]])),
        ([5, 2, 1, 3, 4], Counted(5, [])),
        ([1, 4, 8], Counted(8, [[2, 3], [5, 7]])),
        ([9, 9, 1, 1], Counted(9, [[2, 8]])),
    ],
)
def test_gaps_open_and_close(numbers, expected):
    counted, _ = count_all(numbers)

    assert counted == expected


@given(st.lists(st.integers(1, 60), max_size=150))
def test_each_number_counts_at_its_first_coming_and_never_again(numbers):
    counted, taken = count_all(numbers)

    assert taken == list(dict.fromkeys(numbers))
    missing = {number for first, last in counted.gaps for number in range(first, last + 1)}
    assert missing == set(range(1, max(numbers, default=0))) - set(numbers)


def test_gaps_beyond_what_is_kept_pass_for_counted():
    counted, _ = count_all(list(range(2, 2 * MOST_GAPS + 42, 2)))

    assert len(counted.gaps) == MOST_GAPS
    assert count(counted, 1) is None
    assert count(counted, counted.newest - 1) is not None
