"""A cursor leads back to its row, and what nobody wrote is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.core import cursors

moments = st.integers(0, 4 * 10**15).map(
    lambda microseconds: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
)


@given(moments, st.integers(1, 2**63 - 1), st.booleans())
def test_a_cursor_leads_back_to_its_row(moment, pk, backwards):
    written = cursors.write("before" if backwards else "after", (moment, pk))

    assert cursors.read(written) == (backwards, (moment, pk))


@pytest.mark.parametrize(
    "cursor",
    ["", "x", "after.1.2.3", "after.20261112T031200000000.0", f"after.20261112T031200000000.{2**63}",
     "next.20261112T031200000000.4", "before.yesterday.4"],
)  # fmt: skip
def test_what_nobody_wrote_is_refused_and_named(cursor):
    with pytest.raises(ValueError, match="is not a place in this list"):
        cursors.read(cursor)
