"""Durations in logarithmic buckets: any percentile within 5 %, however many values, merged by adding.

Bucket i holds what lies in (γ^(i-1), γ^i]; its values are told as one that is within α of all of them.
Source: Masson, Rim, Lee, "DDSketch: a fast and fully-mergeable quantile sketch with relative-error
guarantees" (2019), https://arxiv.org/abs/1908.10693.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from operator import sub

# The relative error of a percentile, and what follows from it.
ALPHA = 0.05
GAMMA = (1 + ALPHA) / (1 - ALPHA)
# Below 0.1 ms a duration is told as none at all; above a year as a year.
LEAST_SECONDS = 1e-4
MOST_SECONDS = 31_536_000.0

# The counts of a histogram by bucket.
Histogram = dict[int, int]

_LOG_GAMMA = math.log(GAMMA)
# Of durations below LEAST_SECONDS.
ZERO_BUCKET = math.ceil(math.log(LEAST_SECONDS) / _LOG_GAMMA) - 1
LAST_BUCKET = math.ceil(math.log(MOST_SECONDS) / _LOG_GAMMA)


def bucket_of(seconds: float) -> int:
    """Return the bucket of a duration; one that is negative, by clocks that differ, counts as none."""
    if not seconds >= LEAST_SECONDS:
        return ZERO_BUCKET
    return min(
        max(math.ceil(math.log(min(seconds, MOST_SECONDS)) / _LOG_GAMMA), ZERO_BUCKET + 1), LAST_BUCKET
    )


def seconds_of(bucket: int) -> float:
    """Return the duration that stands for a bucket's."""
    if bucket <= ZERO_BUCKET:
        return 0.0
    return 2 * GAMMA ** min(bucket, LAST_BUCKET) / (GAMMA + 1)


def merge(histograms: Iterable[Mapping[int, int]]) -> Histogram:
    """Add histograms up."""
    each = iter(histograms)
    merged: Histogram = dict(next(each, {}))
    for histogram in each:
        add(merged, histogram)
    return merged


def add(into: Histogram, histogram: Mapping[int, int]) -> None:
    """Add a histogram to another one."""
    known = into.get
    for bucket, number in histogram.items():
        into[bucket] = known(bucket, 0) + number


def total(histogram: Mapping[int, int]) -> int:
    """Return how many durations it holds."""
    return sum(histogram.values())


def percentile(histogram: Mapping[int, int], percent: float) -> float | None:
    """Return the duration below which ``percent`` (0 to 100) of them lie; None of an empty one.

    The value of the lower rank, as numpy's ``method="lower"``, within ALPHA.
    """
    number = total(histogram)
    if not number:
        return None
    rank = math.floor(percent / 100 * (number - 1))
    passed = 0
    for bucket in sorted(histogram):
        passed += histogram[bucket]
        if passed > rank:
            return seconds_of(bucket)
    return seconds_of(max(histogram))


def pack(histogram: Mapping[int, int]) -> bytes:
    """Write a histogram as bytes: bucket distances and counts as variable-length integers."""
    buckets = sorted(histogram)
    distances = list(map(sub, buckets, [ZERO_BUCKET, *buckets]))
    numbers = [histogram[bucket] for bucket in buckets]
    if max(distances, default=0) < 0x80 and max(numbers, default=0) < 0x80:
        # Most of a minute's: without a step of Python for each.
        return bytes(chain.from_iterable(zip(distances, numbers, strict=True)))
    packed: list[int] = []
    put = packed.append
    for distance, number in zip(distances, numbers, strict=True):
        rest = distance
        if rest > 0x7F:
            rest = _begin(rest, packed)
        put(rest)
        rest = number
        if rest > 0x7F:
            rest = _begin(rest, packed)
        put(rest)
    return bytes(packed)


def _begin(value: int, packed: list[int]) -> int:
    """Write all of a value of several bytes but its last, and return that."""
    while value > 0x7F:
        packed.append(value & 0x7F | 0x80)
        value >>= 7
    return value


def unpack(packed: bytes | memoryview) -> Histogram:
    """Read what ``pack`` wrote.

    Raises:
        ValueError: when the bytes end within a value.
    """
    histogram: Histogram = {}
    bucket, distance, value, shift = ZERO_BUCKET, -1, 0, 0
    for byte in bytes(packed):
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte & 0x80:
            continue
        if distance < 0:
            distance = value
        else:
            bucket += distance
            histogram[bucket] = histogram.get(bucket, 0) + value
            distance = -1
        value = shift = 0
    if shift or distance >= 0:
        raise ValueError("a packed histogram ends within a value")
    return histogram


def merge_packed(packed: Iterable[bytes]) -> Histogram:
    """Add up what ``pack`` wrote, in a third of the time of ``unpack`` and ``merge``: pages read thousands.

    Raises:
        ValueError: when bytes end within a value.
    """
    merged: Histogram = {}
    known = merged.get
    for data in packed:
        bucket = ZERO_BUCKET
        values = iter(data)
        for byte in values:
            bucket += byte if byte < 0x80 else _rest_of(byte & 0x7F, 7, values)
            number = next(values, -1)
            if number >= 0x80:
                # Most counts of an hour have two bytes; a call for each would take as long as all the rest.
                second = next(values, -1)
                number = number & 0x7F | (second & 0x7F) << 7
                if second >= 0x80:
                    number = _rest_of(number, 14, values)
                elif second < 0:
                    number = -1
            if number < 0:
                raise ValueError("a packed histogram ends within a value")
            merged[bucket] = known(bucket, 0) + number
    return merged


def _rest_of(value: int, shift: int, values: Iterator[int]) -> int:
    """Read the rest of a value of several bytes; ``value`` is what its first ``shift`` bits are."""
    for byte in values:
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
        shift += 7
    raise ValueError("a packed histogram ends within a value")
