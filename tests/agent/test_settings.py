"""Settings of the agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.agent.settings import AgentSettingError, read_settings


def test_an_argument_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBS_SPOOL_DIRECTORY", "/from/environment")
    monkeypatch.setenv("JOBS_MAX_COMEBACKS", "5")
    monkeypatch.setenv("JOBS_AGENT_TIMEOUT_SECONDS", "0.5")

    assert read_settings().spool_directory == Path("/from/environment")
    assert read_settings().max_comebacks == 5
    assert read_settings().timeout_seconds == 0.5
    given = read_settings(spool_directory="/given", max_comebacks=0, timeout_seconds=3)
    assert (given.spool_directory, given.max_comebacks, given.timeout_seconds) == (Path("/given"), 0, 3)


def test_the_spool_is_where_state_of_the_user_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JOBS_SPOOL_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert read_settings().spool_directory == tmp_path / "state" / "jobs-spool"

    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_settings().spool_directory == tmp_path / ".local" / "state" / "jobs-spool"

    monkeypatch.setenv("HOME", str(tmp_path / "missing"))
    assert read_settings().spool_directory.name.startswith("jobs-spool-")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("JOBS_MAX_COMEBACKS", "many", "JOBS_MAX_COMEBACKS='many': it is not a whole number from 0 to 100"),
        ("JOBS_MAX_COMEBACKS", "2.5", "JOBS_MAX_COMEBACKS='2.5'"),
        ("JOBS_MAX_COMEBACKS", "-1", "from 0 to 100"),
        (
            "JOBS_AGENT_TIMEOUT_SECONDS",
            "0",
            "JOBS_AGENT_TIMEOUT_SECONDS='0': it is not a number from 0.1 to 30",
        ),
        ("JOBS_AGENT_TIMEOUT_SECONDS", "nan", "JOBS_AGENT_TIMEOUT_SECONDS='nan'"),
        ("JOBS_SPOOL_DIRECTORY", "spool", "'spool': it is relative"),
    ],
)
def test_what_cannot_be_used_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str
) -> None:
    monkeypatch.setenv(name, value)

    with pytest.raises(AgentSettingError, match="Cannot use") as refused:
        read_settings()

    assert says in str(refused.value)
