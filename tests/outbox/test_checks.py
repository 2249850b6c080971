"""A setting that would keep jobs in the outbox is told by ``manage.py check``."""

from __future__ import annotations

import pytest
from django.core.checks import Warning as CheckWarning

from jobs.outbox.checks import check_outbox


def test_the_defaults_are_right() -> None:
    assert check_outbox(None) == []


@pytest.mark.parametrize(
    ("name", "value", "said", "check"),
    [
        ("JOBS_OUTBOX_DATABASES", [], "is empty", "jobs.E050"),
        ("JOBS_OUTBOX_DATABASES", ["default", "typo"], "names 'typo', which is no database", "jobs.E051"),
        ("JOBS_OUTBOX_MAX_ATTEMPTS", 0, "leaves a message without a single try", "jobs.E052"),
        ("JOBS_OUTBOX_TIMEOUT_SECONDS", 0, "is not above zero", "jobs.E053"),
        ("JOBS_OUTBOX_RETENTION_HOURS", -1, "=-1 is not above zero", "jobs.E053"),
        ("JOBS_OUTBOX_GRACE_SECONDS", 6, "every job waits for the relay", "jobs.W054"),
    ],
)
def test_a_wrong_setting_is_told_with_the_line_to_set(settings, name, value, said, check) -> None:
    setattr(settings, name, value)

    (found,) = check_outbox(None)

    assert said in found.msg
    assert found.id == check
    assert found.hint
    assert isinstance(found, CheckWarning) == (check == "jobs.W054")
