"""Findings as text for a terminal and as JSON. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from jobs.core.cleaning import clean_text, for_terminal
from jobs.preflight.facts import Facts
from jobs.preflight.findings import Finding, Level, count, worst_first

WIDTH = 100
_TEXT_LIMIT = 4_000
# As the lines to set write them: broker_transport_options = {…}
_CELERY_SETTING = re.compile(r"\b((?:accept|broker|result|task|worker)_[a-z_]+) = ")


def text(facts: Facts, findings: Sequence[Finding]) -> str:
    """Return the whole report, the worst first."""
    application = facts.application
    server = (
        f" (Redis {facts.redis.version or 'of unknown version'})"
        if facts.redis is not None
        else f" (RabbitMQ {facts.rabbit.version or 'of unknown version'})"
        if facts.rabbit is not None
        else ""
    )
    blocks = [
        f"Broker       {application.broker}{server}\n"
        f"Application  {application.name}, {_number(len(application.tasks), 'task')},"
        f" {_number(len(application.queues), 'queue')}"
    ]
    blocks += lines_of(finding for finding in worst_first(findings) if finding.level is not Level.OK)
    passed = [finding for finding in findings if finding.level is Level.OK]
    if passed:
        blocks.append("\n".join(block for finding in passed for block in lines_of([finding])))
    if note := note_of_names(application.namespace, findings):
        blocks.append(note)
    blocks.append(tally(findings))
    return clean("\n\n".join(blocks))


def lines_of(findings: Iterable[Finding]) -> list[str]:
    """Return one block a finding: its level and name, what was found, why, and what to set."""
    return [_block(finding) for finding in findings]


def note_of_names(namespace: str, findings: Iterable[Finding]) -> str:
    """Return how the names of Celery's settings are written here; empty where nothing has to be set by them.

    A line that is copied into Django's settings without the prefix does nothing, and nothing says so.
    """
    names = (name for finding in findings for name in _CELERY_SETTING.findall(finding.set))
    if not namespace or (name := next(names, "")) == "":
        return ""
    return (
        f"In this project {name} is written {namespace}_{name.upper()}, and so are Celery's other settings."
    )


def tally(findings: Sequence[Finding]) -> str:
    """Return the last line."""
    parts = [
        _number(count(findings, Level.ERROR), "error"),
        _number(count(findings, Level.WARNING), "warning"),
        f"{count(findings, Level.UNKNOWN)} unknown",
        f"{count(findings, Level.OK)} ok",
    ]
    return f"{', '.join(parts)}."


def as_json(facts: Facts, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the report for scripts."""
    return {
        "broker": facts.application.broker,
        "application": facts.application.name,
        "errors": count(findings, Level.ERROR),
        "warnings": count(findings, Level.WARNING),
        "unknown": count(findings, Level.UNKNOWN),
        "findings": [asdict(finding) for finding in worst_first(findings)],
    }


def clean(report: str) -> str:
    """Return text that turns no terminal: names of tasks and queues come from the broker."""
    return for_terminal(clean_text(report, limit=1_000_000))


def _block(finding: Finding) -> str:
    lines = [f"{finding.level.value:<8} {finding.name}: {finding.found}"]
    if finding.why:
        lines.append(finding.why)
    wrapped = [
        part
        for line in lines
        for part in textwrap.wrap(
            clean_text(line, limit=_TEXT_LIMIT),
            WIDTH,
            initial_indent="" if line is lines[0] else " " * 9,
            subsequent_indent=" " * 9,
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]
    # Never wrapped: they are to be copied.
    label = "To set: " if finding.level in (Level.ERROR, Level.WARNING) else ""
    for place, line in enumerate(finding.set.splitlines()):
        wrapped.append(f"{' ' * 9}{label if place == 0 else ' ' * len(label)}{line}")
    return "\n".join(wrapped)


def _number(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
