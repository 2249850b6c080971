"""What a worker does before it takes the first job: it looks at its broker, and refuses one that loses jobs."""

from __future__ import annotations

import logging
import sys
from typing import Any, NoReturn

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from jobs.errors import BrokerUnavailable
from jobs.preflight import gather_application, inspection, report
from jobs.preflight.checks import check
from jobs.preflight.facts import ApplicationFacts
from jobs.preflight.findings import Finding, refusing
from jobs.preflight.mode import Mode, mode

logger = logging.getLogger(__name__)

# sysexits.h's EX_CONFIG: what starts the worker can tell it from a crash and need not try again.
REFUSED = 78
# Every worker waits so long at most for each answer.
TIMEOUT_SECONDS = 3.0


def examine(
    app: Any,
    *,
    has_agent: bool,
    pool: Any,
    time_limit: float | None,
    soft_time_limit: float | None,
    may_refuse: bool = True,
) -> bool:
    """Look at the broker of a worker that starts; return False when it is away and must be looked at later.

    Errors of the broker end the process with status 78 when ``may_refuse`` and JOBS_PREFLIGHT say so, and
    are logged otherwise. Whatever cannot be read keeps no worker from starting.
    """
    try:
        chosen = mode()
    except ImproperlyConfigured as error:
        _end(str(error))
    if chosen is Mode.OFF:
        return True
    try:
        application = gather_application.application_facts(
            app, has_agent=has_agent, pool=pool, time_limit=time_limit, soft_time_limit=soft_time_limit
        )
        facts = inspection.of_the_broker(app, application=application, timeout_seconds=TIMEOUT_SECONDS)
        found = refusing(check(facts))
    except BrokerUnavailable as error:
        logger.info("Preflight waits for the broker: %s", error)
        return False
    except Exception:
        # A check that fails is our fault and must not keep a fleet from working.
        logger.exception("Preflight failed; the worker starts unchecked.")
        return True
    finally:
        # The pool's processes must not inherit it.
        connections.close_all()
    if found and chosen is Mode.REFUSE and may_refuse:
        _end(refusal(application, found))
    for finding in found:
        logger.error("Preflight: %s: %s %s To set: %s", finding.name, finding.found, finding.why, finding.set)
    return True


def refusal(application: ApplicationFacts, found: list[Finding]) -> str:
    """Return what a worker says when it refuses: the same lines as ``manage.py preflight``."""
    return report.clean(
        "\n".join(
            (
                f"This worker does not start: its broker {application.broker} can lose jobs or run them twice.",
                *report.lines_of(found),
                *filter(None, [report.note_of_names(application.namespace, found)]),
                "manage.py preflight shows everything. JOBS_PREFLIGHT=warn starts the worker all the same.",
            )
        )
    )


def _end(message: str) -> NoReturn:
    """End the process; SystemExit passes through Celery's signals, which swallow every other exception."""
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()
    raise SystemExit(REFUSED)
