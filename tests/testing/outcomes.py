"""How jobs that ran in the process ended."""

from __future__ import annotations

from jobs.testing import InProcessBroker


def outcomes(office: InProcessBroker) -> list[tuple[str, str]]:
    return [(ran.task, ran.outcome) for ran in office.run_jobs()]
