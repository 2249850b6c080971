"""The form in which a worker tells what it did."""

from __future__ import annotations

import dataclasses
import json
import math
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.agent import batches, messages
from jobs.agent.batches import Batch, BatchError, Cell, FinishedRun, RunningJob, decode, encode
from jobs.core import cleaning, histograms
from jobs.core.words import RunOutcome

text = st.text(max_size=40)
moments = st.floats(min_value=0, max_value=4e9)
counts = st.integers(min_value=0, max_value=10**9)
buckets = st.dictionaries(
    st.integers(min_value=batches.ZERO_BUCKET, max_value=batches.LAST_BUCKET), counts, max_size=5
)
cells = st.builds(
    Cell,
    minute=st.integers(min_value=0, max_value=10**9).map(lambda minute: minute * 60),
    task=text,
    queue=text,
    **dict.fromkeys(("received", "dropped", *batches.OUTCOMES), counts),
    latency_sum=moments,
    runtime_sum=moments,
    latency=buckets,
    runtime=buckets,
)
finished = st.builds(
    FinishedRun,
    **dict.fromkeys(("task_id", "task", "queue", "publication_id", "root_id", "error_type"), text),
    outcome=st.sampled_from(batches.OUTCOMES),
    attempt=counts,
    published_at=st.none() | moments,
    started_at=st.none() | moments,
    finished_at=moments,
    latency=st.none() | moments,
    runtime=st.none() | moments,
)
running = st.builds(
    RunningJob,
    **dict.fromkeys(("task_id", "task", "queue", "publication_id", "root_id", "replay_of"), text),
    attempt=counts,
    published_at=st.none() | moments,
    started_at=moments,
    is_acknowledged=st.booleans(),
    replay_item=st.none() | counts,
)
some_batches = st.builds(
    Batch,
    boot_id=st.text(min_size=1, max_size=40),
    sequence=st.integers(min_value=1, max_value=10**9),
    hostname=text,
    at=moments,
    started_at=moments,
    pool=text,
    concurrency=st.none() | counts,
    queues=st.lists(text, max_size=3),
    is_goodbye=st.booleans(),
    load=st.none() | moments,
    memory_bytes=st.none() | counts,
    held=st.dictionaries(text, counts, max_size=3),
    reserved=st.dictionaries(text, counts, max_size=3),
    running=st.lists(running, max_size=3),
    cells=st.lists(cells, max_size=3),
    runs=st.lists(finished, max_size=3),
    dropped=counts,
)


@given(some_batches)
def test_a_batch_is_read_as_it_was_written(batch: Batch) -> None:
    assert decode(encode(batch)) == batch


@given(some_batches)
def test_records_that_are_rows_already_are_written_alike(batch: Batch) -> None:
    rows = [dataclasses.astuple(run) for run in batch.runs]

    assert encode(batch, rows=rows) == encode(batch)


@given(
    st.floats(min_value=0, max_value=1e12) | st.sampled_from([1e-4, math.nextafter(1e-4, 0), 31_536_000.0])
)
def test_a_duration_has_the_bucket_that_the_console_gives_it(seconds: float) -> None:
    assert batches.bucket_of(seconds) == histograms.bucket_of(seconds)


def test_the_constants_of_the_histograms_are_those_of_the_console() -> None:
    for name in ("ALPHA", "LEAST_SECONDS", "MOST_SECONDS", "ZERO_BUCKET", "LAST_BUCKET"):
        assert getattr(batches, name) == getattr(histograms, name), name
    assert tuple(each.value for each in RunOutcome) == batches.OUTCOMES


@given(st.text(max_size=600))
def test_a_name_that_the_agent_cuts_is_the_name_that_the_console_makes_of_it(name: str) -> None:
    cut = messages.name(name)

    assert len(cut) <= 255
    assert cleaning.clean_name(cut) == cleaning.clean_name(name)


def written(**changes: Any) -> bytes:
    batch = Batch(boot_id="b", sequence=1, hostname="h", at=1.0, started_at=1.0)
    batch.cells = [Cell(60, "t", "q", done=1)]
    batch.runs = [FinishedRun("i", "t", "q", "done", 0, "p", "r", 1.0, 1.0, 2.0, 0.0, 1.0)]
    values = json.loads(zlib.decompress(encode(batch)))
    values.update(changes)
    return zlib.compress(json.dumps(values).encode())


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "cannot be unpacked|Expecting value"),
        (b"{}", "cannot be unpacked"),
        (zlib.compress(b"[1]"), "it is list, not an object"),
        (zlib.compress(b"[" * 100_000), "cannot be unpacked"),
        (zlib.compress(b" " * (batches.MOST_BYTES + 1)), "larger than"),
        (written(v=2), "only batches of version 1 are known"),
        (written(boot_id=""), "no boot id or no sequence"),
        (written(sequence=0), "no boot id or no sequence"),
        (written(sequence="1"), "sequence is str"),
        (written(sequence=True), "sequence is bool"),
        (written(at=None), "at is NoneType"),
        (written(at=float("nan")), "at is not finite"),
        (written(load=float("inf")), "load is not finite"),
        (written(queues="celery"), "queues is str"),
        (written(held={"q": -1}), "a count is not a whole number"),
        (written(reserved={"q": 1.5}), "a count is not a whole number"),
        (written(cells=[[60]]), "a part is missing"),
        (written(cells=[{}]), "a part is missing"),
        (written(cells=[[60, "t", "q", -1]]), "a count is below zero"),
        (written(cells=[[60, "t", "q", *[0] * 7, 0.0, 0.0, {"9999": 1}, {}]]), "a bucket is out of range"),
        (written(cells=[[60, "t", "q", *[0] * 7, 0.0, 0.0, [1], {}]]), "a part is missing"),
        (written(runs=[["i", "t", "q", "lost", 0, "p", "r", 1, 1, 2, 0, 1, ""]]), "the outcome 'lost'"),
        (written(runs=[["i", 7, "q", "done", 0, "p", "r", 1, 1, 2, 0, 1, ""]]), "task is int"),
        (written(runs=7), "a part is missing"),
    ],
)
def test_bytes_that_are_no_batch_are_refused_in_words(data: bytes, says: str) -> None:
    with pytest.raises(BatchError, match=says):
        decode(data)
