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


def read_settings(
    *,
    spool_directory: str | os.PathLike[str] | None = None,
    max_comebacks: int | None = None,
    timeout_seconds: float | None = None,
) -> AgentSettings:
    """Read the settings; what is not given comes from JOBS_SPOOL_DIRECTORY, JOBS_MAX_COMEBACKS and
    JOBS_AGENT_TIMEOUT_SECONDS.

    Raises:
        AgentSettingError: when a value cannot be used.
    """
    given_comebacks: object = max_comebacks
    if given_comebacks is None:
        given_comebacks = os.environ.get("JOBS_MAX_COMEBACKS", "3")
    given_timeout: object = timeout_seconds
    if given_timeout is None:
        given_timeout = os.environ.get("JOBS_AGENT_TIMEOUT_SECONDS", "2")
    return AgentSettings(
        spool_directory=_directory(spool_directory),
        max_comebacks=int(_number("JOBS_MAX_COMEBACKS", given_comebacks, whole=True, least=0, most=100)),
        timeout_seconds=_number("JOBS_AGENT_TIMEOUT_SECONDS", given_timeout, whole=False, least=0.1, most=30),
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
