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


def test_workers_report_unless_that_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RECORDING", "HEARTBEAT_SECONDS", "HISTORY_SAMPLE", "RUNS_CAP"):
        monkeypatch.delenv(f"JOBS_{name}", raising=False)
    default = read_settings()
    assert (default.is_recording, default.heartbeat_seconds) == (True, 5)
    assert (default.history_sample, default.runs_cap) == (1, 10_000)

    monkeypatch.setenv("JOBS_RECORDING", "OFF")
    monkeypatch.setenv("JOBS_HEARTBEAT_SECONDS", "2.5")
    monkeypatch.setenv("JOBS_HISTORY_SAMPLE", "0")
    monkeypatch.setenv("JOBS_RUNS_CAP", "500")
    set_ = read_settings()
    assert (set_.is_recording, set_.heartbeat_seconds) == (False, 2.5)
    assert (set_.history_sample, set_.runs_cap) == (0, 500)
    given = read_settings(recording=True, heartbeat_seconds=1, history_sample=0.5, runs_cap=10)
    assert (given.is_recording, given.heartbeat_seconds) == (True, 1)
    assert (given.history_sample, given.runs_cap) == (0.5, 10)


def test_a_switch_that_is_given_as_text_is_refused() -> None:
    """Any text is true, "off" too."""
    with pytest.raises(AgentSettingError, match="JOBS_RECORDING='off': it is neither True nor False"):
        read_settings(recording="off")  # type: ignore[arg-type]


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
        ("JOBS_RECORDING", "maybe", "JOBS_RECORDING='maybe': it is neither on nor off"),
        ("JOBS_HEARTBEAT_SECONDS", "60", "JOBS_HEARTBEAT_SECONDS='60': it is not a number from 1 to 15"),
        ("JOBS_HISTORY_SAMPLE", "1.1", "from 0 to 1"),
        ("JOBS_RUNS_CAP", "1e3.5", "JOBS_RUNS_CAP='1e3.5'"),
    ],
)
def test_what_cannot_be_used_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str
) -> None:
    monkeypatch.setenv(name, value)

    with pytest.raises(AgentSettingError, match="Cannot use") as refused:
        read_settings()

    assert says in str(refused.value)
