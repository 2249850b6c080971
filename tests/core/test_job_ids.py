"""The ids of jobs that replays make."""

from __future__ import annotations

import uuid

from jobs.core import job_ids


def test_ids_are_the_same_each_time_and_differ_by_operation_and_item() -> None:
    ids = [job_ids.derive(seed, item) for seed in (b"a", b"b") for item in range(1, 500)]

    assert ids == [job_ids.derive(seed, item) for seed in (b"a", b"b") for item in range(1, 500)]
    assert len({task_id for task_id, _ in ids}) == len({publication for _, publication in ids}) == len(ids)
    # What a page shows of an id is its beginning.
    assert len({task_id[:8] for task_id, _ in ids}) > 990


def test_a_job_id_is_a_uuid_that_names_its_item() -> None:
    for item in (1, 48_213, 2**47):
        task_id, publication_id = job_ids.derive(b"seed", item)

        assert uuid.UUID(task_id).version == 4
        assert str(uuid.UUID(task_id)) == task_id
        assert job_ids.item_id(task_id) == item
        assert len(publication_id) == 32


def test_other_texts_name_no_item() -> None:
    for text in (
        "",
        "j",
        "7c1f9a2e-0d5b-1c5e-9a57-1f2e3d4c5b6a",
        "7C1F9A2E-0D5B-4C5E-AA57-1F2E3D4C5B6A",
        "é" * 36,
    ):
        assert job_ids.item_id(text) is None
