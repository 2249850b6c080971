"""Packed histograms are added up at once as they are one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.core import histograms
from jobs.core.histograms import LAST_BUCKET, ZERO_BUCKET

HISTOGRAMS = st.lists(
    st.dictionaries(
        st.integers(ZERO_BUCKET, LAST_BUCKET),
        st.one_of(st.integers(1, 130), st.integers(1, 20_000), st.integers(1, 2**62)),
        max_size=30,
    ),
    max_size=6,
)


@given(HISTOGRAMS)
def test_merging_packed_ones_is_merging_them_unpacked(found):
    packed = [histograms.pack(each) for each in found]

    assert histograms.merge_packed(packed) == histograms.merge(map(histograms.unpack, packed))
    assert histograms.merge_packed(packed) == histograms.merge(found)


@given(HISTOGRAMS.filter(lambda found: any(found)), st.data())
def test_bytes_that_end_within_a_value_are_refused_by_both(found, data):
    packed = histograms.pack(next(each for each in found if each))
    cut = packed[: data.draw(st.integers(1, len(packed) - 1))]

    try:
        whole = histograms.unpack(cut)
    except ValueError:
        with pytest.raises(ValueError, match="ends within a value"):
            histograms.merge_packed([cut])
    else:
        assert histograms.merge_packed([cut]) == whole
