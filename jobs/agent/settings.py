"""What can be set about the agent, and where it comes from: an argument, the environment, a default."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path


class AgentSettingError(ValueError):
    """A setting of the agent cannot be used."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """How the agent of one application behaves."""

    spool_directory: Path
    # How often a job that killed its worker, or asked to be put back, may come back.
    max_comebacks: int = 3
    # Bound of one connection attempt and of one write to the broker.
    timeout_seconds: float = 2.0
    # While the broker is away it is tried this often; in between records go straight to the spool.
    pause_seconds: float = 3.0
    # How often a worker looks for records to send from the spool.
    tick_seconds: float = 2.0
    # Whether workers report what they run on ``jobs.runs``.
    is_recording: bool = True
    # How long a worker that has nothing to report says nothing.
    heartbeat_seconds: float = 5.0
    # The share of successful attempts whose record is kept; they are counted all the same.
    history_sample: float = 1.0
    # With so many batches on ``jobs.runs`` nothing is added to them.
    runs_cap: int = 10_000


def read_settings(
    *,
    spool_directory: str | os.PathLike[str] | None = None,
    max_comebacks: int | None = None,
    timeout_seconds: float | None = None,
    recording: bool | None = None,
    heartbeat_seconds: float | None = None,
    history_sample: float | None = None,
    runs_cap: int | None = None,
) -> AgentSettings:
    """Read the settings; what is not given comes from JOBS_SPOOL_DIRECTORY, JOBS_MAX_COMEBACKS,
    JOBS_AGENT_TIMEOUT_SECONDS, JOBS_RECORDING, JOBS_HEARTBEAT_SECONDS, JOBS_HISTORY_SAMPLE and JOBS_RUNS_CAP.

    Raises:
        AgentSettingError: when a value cannot be used.
    """
    return AgentSettings(
        spool_directory=_directory(spool_directory),
        max_comebacks=int(_given("JOBS_MAX_COMEBACKS", max_comebacks, 3, whole=True, least=0, most=100)),
        timeout_seconds=_given("JOBS_AGENT_TIMEOUT_SECONDS", timeout_seconds, 2, least=0.1, most=30),
        is_recording=_switch("JOBS_RECORDING", recording),
        heartbeat_seconds=_given("JOBS_HEARTBEAT_SECONDS", heartbeat_seconds, 5, least=1, most=15),
        history_sample=_given("JOBS_HISTORY_SAMPLE", history_sample, 1, least=0, most=1),
        runs_cap=int(_given("JOBS_RUNS_CAP", runs_cap, 10_000, whole=True, least=10, most=10_000_000)),
    )


def _directory(given: str | os.PathLike[str] | None) -> Path:
    if given is None:
        given = os.environ.get("JOBS_SPOOL_DIRECTORY") or None
    if given is not None:
        path = Path(given).expanduser()
        if not path.is_absolute():
            raise AgentSettingError(
                f"Cannot use the spool directory {str(path)!r}: it is relative, so it would depend on where "
                "the worker was started. Give an absolute path."
            )
        return path
    state = os.environ.get("XDG_STATE_HOME")
    if state and Path(state).is_absolute():
        return Path(state) / "jobs-spool"
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 (Path.home() raises where there is none)
    if home.is_absolute() and os.access(home, os.W_OK):
        return home / ".local" / "state" / "jobs-spool"
    return Path(tempfile.gettempdir()) / f"jobs-spool-{os.getuid()}"


def _switch(name: str, given: bool | None) -> bool:
    if isinstance(given, bool):
        return given
    if given is not None:
        raise AgentSettingError(
            f"Cannot use {name}={given!r}: it is neither True nor False. Give one of them."
        )
    value = os.environ.get(name, "on").strip().lower()
    if value not in ("on", "off"):
        raise AgentSettingError(
            f"Cannot use {name}={os.environ.get(name)!r}: it is neither on nor off. Set one, or leave it out."
        )
    return value == "on"


def _given(
    name: str, given: float | None, default: float, *, least: float, most: float, whole: bool = False
) -> float:
    value: object = os.environ.get(name, default) if given is None else given
    return _number(name, value, whole=whole, least=least, most=most)


def _number(name: str, given: object, *, whole: bool, least: float, most: float) -> float:
    kind = "a whole number" if whole else "a number"
    try:
        value = float(str(given))
    except ValueError:
        value = float("nan")
    if not least <= value <= most or (whole and value != int(value)):
        raise AgentSettingError(
            f"Cannot use {name}={given!r}: it is not {kind} from {least:g} to {most:g}. "
            f"Set one, or leave it out."
        )
    return value
