"""All checks in their order. Pure: facts in, findings out."""

from __future__ import annotations

from jobs.preflight.application_checks import check_application
from jobs.preflight.facts import Facts
from jobs.preflight.findings import Finding
from jobs.preflight.fleet_checks import check_fleet
from jobs.preflight.redis_checks import check_redis
from jobs.preflight.timeout_checks import check_timeouts


def check(facts: Facts) -> list[Finding]:
    """Return what every check found, ``ok`` too."""
    return [
        finding
        for part in (check_redis, check_timeouts, check_application, check_fleet)
        for finding in part(facts)
    ]
