"""For the tests of people who write jobs: jobs run in-process, under all their policies, without a broker.

In pytest: ``pytest_plugins = ["jobs.testing"]`` in the conftest.py at the top. In Django's test cases:
``JobsMixin``. docs/testing.md tells the rest.
"""

from __future__ import annotations

import sys

from jobs.testing.broker import InProcessBroker, NeverEnding, in_process
from jobs.testing.enqueued import Enqueued, EnqueuedJob
from jobs.testing.mixin import JobsMixin
from jobs.testing.running import DeadJob, RanJob
from jobs.testing.standins import NotRunYet

__all__ = [
    "DeadJob",
    "Enqueued",
    "EnqueuedJob",
    "InProcessBroker",
    "JobsMixin",
    "NeverEnding",
    "NotRunYet",
    "RanJob",
    "in_process",
]

# A plugin's hooks and fixtures are found on the module that is named; a run without pytest needs none of it.
if "pytest" in sys.modules:
    from jobs.testing.plugin import (  # noqa: F401
        _jobs_in_process,
        _jobs_of_this_test,
        enqueued,
        expect_dead_letter,
        jobs_broker,
        pytest_configure,
        pytest_runtest_call,
        run_jobs,
    )
