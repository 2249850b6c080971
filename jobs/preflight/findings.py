"""What preflight found. Pure values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is, worst first.

    Error: jobs will be lost or run twice. Warning: they may. Unknown: it cannot be read from here.
    """

    ERROR = "error"
    WARNING = "warning"
    UNKNOWN = "unknown"
    OK = "ok"


class Area(StrEnum):
    """What a finding is about. Only errors of the broker keep a worker from starting."""

    BROKER = "broker"
    APPLICATION = "application"
    FLEET = "fleet"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's answer: what was found, why that loses jobs, and the lines to set.

    For an unknown fact ``set`` says how to look it up.
    """

    level: Level
    name: str
    area: Area
    found: str
    why: str = ""
    set: str = ""


_ORDER = {level: place for place, level in enumerate(Level)}


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Sort by level, otherwise in the order of the checks."""
    return sorted(findings, key=lambda finding: _ORDER[finding.level])


def refusing(findings: Iterable[Finding]) -> list[Finding]:
    """Return what keeps a worker from starting. What is unknown never does."""
    return [finding for finding in findings if finding.level is Level.ERROR and finding.area is Area.BROKER]


def count(findings: Iterable[Finding], level: Level) -> int:
    """Count those of one level."""
    return sum(finding.level is level for finding in findings)
