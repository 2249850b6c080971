"""JOBS_POLICIES from the environment of a checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_settings import manage, setting


def test_policies_come_from_the_environment_as_json(tmp_path: Path) -> None:
    shown = setting(tmp_path, "settings.JOBS_POLICIES", JOBS_POLICIES='{"max_attempts": 3}')

    assert shown == "{'max_attempts': 3}"
    assert setting(tmp_path, "settings.JOBS_POLICIES") == "{}"


@pytest.mark.parametrize("value", ["[1]", "max_attempts=3", '{"a": '])
def test_what_is_no_object_is_refused_with_an_example(tmp_path: Path, value: str) -> None:
    done = manage(tmp_path, "check", JOBS_POLICIES=value)

    assert done.returncode != 0
    assert 'is not an object in JSON. Write for instance {"max_attempts": 3}.' in done.stderr


def test_a_misspelt_policy_is_refused(tmp_path: Path) -> None:
    done = manage(tmp_path, "check", JOBS_POLICIES='{"max_attempt": 3}')

    assert done.returncode != 0
    assert (
        "Cannot use 'max_attempt' in JOBS_POLICIES: it is no policy and looks like one. Write max_attempts"
        in done.stderr
    )
