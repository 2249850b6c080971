"""The same for Django's test cases, with or without pytest."""

from __future__ import annotations

import unittest
from contextlib import AbstractContextManager
from typing import Any

from jobs.testing.broker import InProcessBroker, in_process
from jobs.testing.enqueued import Enqueued, EnqueuedJob
from jobs.testing.running import DeadJob, RanJob


class JobsMixin(unittest.TestCase):
    """Stands before TestCase or TransactionTestCase: ``class OrderTests(JobsMixin, TestCase)``.

    Jobs stay in this process, and a test in which one dies unexpectedly fails. It does not rely on setUp:
    a test case that forgets to call the one above it works as well.
    """

    _jobs_broker: InProcessBroker

    @classmethod
    def setUpClass(cls) -> None:
        """Cover setUpTestData: what it enqueues goes nowhere, and to no test."""
        cls.enterClassContext(in_process())
        super().setUpClass()

    def run(self, result: unittest.TestResult | None = None) -> unittest.TestResult | None:
        """Run the test with its jobs in-process."""
        with in_process() as broker:
            self._jobs_broker = broker
            broker.begin_test()
            # Added first, so it runs last.
            self.addCleanup(broker.check)
            return super().run(result)

    @property
    def enqueued(self) -> Enqueued:
        """What the test enqueued so far, as a sequence with assertions."""
        return self._jobs_broker.enqueued

    def run_jobs(self, **options: Any) -> list[RanJob]:
        """Run everything that is enqueued, and what that enqueues: ``InProcessBroker.run_jobs``."""
        return self._jobs_broker.run_jobs(**options)

    def assert_enqueued(self, task: Any, **wanted: Any) -> EnqueuedJob:
        """Assert that exactly one such job was enqueued, and return it: ``Enqueued.assert_one``."""
        __tracebackhide__ = True
        return self._jobs_broker.enqueued.assert_one(task, **wanted)

    def expect_dead_letter(self, task: Any = None, **wanted: Any) -> AbstractContextManager[list[DeadJob]]:
        """Expect a job to die inside a block: ``InProcessBroker.expect_dead_letter``."""
        return self._jobs_broker.expect_dead_letter(task, **wanted)
