"""What happened in a span of time: counts, and the durations as histograms that are read when asked for."""

from __future__ import annotations

from dataclasses import dataclass, field

from jobs.core import histograms
from jobs.core.histograms import Histogram

# The counts that a rollup has, by the names of its columns.
COUNTS = ("received", "done", "retried", "dead", "revoked", "ignored", "dropped")


@dataclass(slots=True)
class Figures:
    """What happened in a span. Latency is from publish (or ETA) to start, runtime of an attempt; seconds.

    Most pages need neither histogram of most rows, so the packed ones are unpacked on the first look.
    """

    received: int = 0
    done: int = 0
    retried: int = 0
    dead: int = 0
    revoked: int = 0
    ignored: int = 0
    dropped: int = 0
    latency_sum_seconds: float = 0.0
    runtime_sum_seconds: float = 0.0
    _latency: Histogram = field(default_factory=dict, repr=False)
    _runtime: Histogram = field(default_factory=dict, repr=False)
    _packed_latency: list[bytes] = field(default_factory=list, repr=False, compare=False)
    _packed_runtime: list[bytes] = field(default_factory=list, repr=False, compare=False)

    @property
    def latency(self) -> Histogram:
        """The latencies by bucket."""
        if self._packed_latency:
            self._latency = _unpacked(self._latency, self._packed_latency)
        return self._latency

    @property
    def runtime(self) -> Histogram:
        """The runtimes by bucket."""
        if self._packed_runtime:
            self._runtime = _unpacked(self._runtime, self._packed_runtime)
        return self._runtime

    def add_packed(self, latency: bytes, runtime: bytes) -> None:
        """Add a rollup's histograms."""
        if latency:
            self._packed_latency.append(bytes(latency))
        if runtime:
            self._packed_runtime.append(bytes(runtime))

    def add(self, other: Figures) -> None:
        """Add another span's figures."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.latency_sum_seconds += other.latency_sum_seconds
        self.runtime_sum_seconds += other.runtime_sum_seconds
        self._latency = histograms.merge((self._latency, other.latency))
        self._runtime = histograms.merge((self._runtime, other.runtime))

    @property
    def attempts(self) -> int:
        """How many attempts ended, whatever way."""
        return self.done + self.retried + self.dead + self.revoked + self.ignored

    @property
    def finished(self) -> int:
        """How many jobs were done or died: of a retry and the rest nothing is decided."""
        return self.done + self.dead

    @property
    def failure_rate(self) -> float | None:
        """Return the share of those finished that died, 0 to 1; None when none finished."""
        return self.dead / self.finished if self.finished else None

    @property
    def retry_rate(self) -> float | None:
        """Return the share of the attempts that failed and are to be tried again, 0 to 1; None when none ended."""
        return self.retried / self.attempts if self.attempts else None

    def latency_percentile(self, percent: float) -> float | None:
        """Return a percentile of the latency in seconds, within 5 %."""
        return histograms.percentile(self.latency, percent)

    def runtime_percentile(self, percent: float) -> float | None:
        """Return a percentile of the runtime in seconds, within 5 %."""
        return histograms.percentile(self.runtime, percent)


def _unpacked(known: Histogram, packed: list[bytes]) -> Histogram:
    merged = histograms.merge_packed(packed)
    packed.clear()
    return histograms.merge((known, merged)) if known else merged


def summed(parts: list[Figures | None]) -> Figures | None:
    """Add the steps of a series up; None when none of them is known."""
    known = [each for each in parts if each is not None]
    if not known:
        return None
    whole = Figures()
    for each in known:
        whole.add(each)
    return whole
