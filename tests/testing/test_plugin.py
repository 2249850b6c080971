"""The pytest plugin and the mixin in a project of their user: what passes, what fails, and with which words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.scratch_project import Project

TASKS = """
from celery import shared_task
from jobs import Job, PermanentError
from shop.models import Order


@shared_task(base=Job, idempotency_key="receipt:{order_id}", queue="critical")
def send_receipt(order_id: int, email: str = "") -> None:
    order = Order.objects.get(pk=order_id)
    if order.note == "broken":
        raise PermanentError(f"order {order_id} is broken")
    order.receipts += 1
    order.save()


@shared_task
def plain(order_id: int) -> int:
    return order_id
"""
MODELS = """
from django.db import models


class Order(models.Model):
    note = models.TextField(blank=True)
    receipts = models.IntegerField(default=0)
"""


def shop_in(directory: Path) -> Project:
    project = Project(directory)
    project.write("shop/tasks.py", TASKS)
    project.write("shop/models.py", MODELS)
    return project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return shop_in(tmp_path)


def test_the_fixtures_collect_run_and_expect(project: Project) -> None:
    project.write(
        "test_shop.py",
        """
import pytest
from django.db import transaction
from shop.models import Order
from shop.tasks import plain, send_receipt


@pytest.mark.django_db
def test_in_a_test_transaction(enqueued, run_jobs):
    with transaction.atomic():
        order = Order.objects.create()
        send_receipt.delay(order.pk)
        enqueued.assert_one(send_receipt, key=f"receipt:{order.pk}", queue="critical")
    send_receipt.delay(order.pk)
    assert len(run_jobs()) == 2
    order.refresh_from_db()
    assert order.receipts == 1


@pytest.mark.django_db(transaction=True)
def test_in_a_database_that_commits(enqueued, run_jobs, django_capture_on_commit_callbacks):
    with transaction.atomic():
        order = Order.objects.create()
        send_receipt.delay(order.pk)
    run_jobs()
    order.refresh_from_db()
    assert order.receipts == 1


@pytest.mark.django_db
def test_wanted(run_jobs, expect_dead_letter, jobs_broker):
    order = Order.objects.create(note="broken")
    send_receipt.delay(order.pk)
    with expect_dead_letter(task=send_receipt, reason="failed", error="is broken"):
        run_jobs()
    assert [dead.reason for dead in jobs_broker.dead_letters] == ["failed"]


def test_without_a_database(enqueued):
    plain.delay(5)
    enqueued.assert_one(plain, args=[5])


def test_nothing_is_left_of_the_tests_before(enqueued, jobs_broker):
    enqueued.assert_none()
    assert jobs_broker.dead_letters == ()
""",
    )

    done = project.pytest()

    assert "5 passed" in done.stdout, done.stdout


FAILING_TESTS = """
import pytest
from celery import current_app
from kombu.exceptions import OperationalError
from shop.models import Order
from shop.tasks import plain, send_receipt


@pytest.mark.django_db
def test_unexpected(run_jobs):
    send_receipt.delay(Order.objects.create(note="broken").pk, email="ann@shop.example")
    run_jobs()


def test_the_next_one_is_fine():
    pass


@pytest.mark.django_db
def test_both(run_jobs):
    send_receipt.delay(Order.objects.create(note="broken").pk)
    run_jobs()
    assert 1 == 2


def test_nothing_dies(run_jobs, expect_dead_letter):
    with expect_dead_letter("shop.tasks.send_receipt"):
        run_jobs()


@pytest.mark.real_broker
def test_the_real_broker_is_asked():
    current_app.conf.broker_url = "redis://127.0.0.1:1/0"
    current_app.conf.broker_connection_timeout = 0.2
    current_app.conf.task_publish_retry = False
    with pytest.raises(OperationalError):
        plain.delay(5)


def test_the_next_is_in_process_again(enqueued):
    plain.delay(5)
    enqueued.assert_one(plain)


@pytest.mark.real_broker
def test_both_at_once_is_a_mistake(enqueued):
    pass
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    project = shop_in(tmp_path_factory.mktemp("reports"))
    project.write("test_shop.py", FAILING_TESTS)
    return project.pytest("--strict-markers", "-rA").stdout


class TestReports:
    """What pytest says of tests that fail, from one run."""

    @staticmethod
    def report(output: str, title: str) -> str:
        """Return the part of the output below a title."""
        found = re.search(rf"^_+ {title} _+$(.*?)^(?:_{{3,}}|={{3,}}) ", output, re.MULTILINE | re.DOTALL)
        assert found is not None, output
        return found[1]

    def test_each_test_ends_as_it_should(self, output: str) -> None:
        ends = {
            name: end for end, name in re.findall(r"^([A-Z]+) test_shop\.py::(\w+)", output, re.MULTILINE)
        }

        assert ends == {
            "test_unexpected": "FAILED",
            "test_the_next_one_is_fine": "PASSED",
            "test_both": "FAILED",
            "test_nothing_dies": "FAILED",
            "test_the_real_broker_is_asked": "PASSED",
            "test_the_next_is_in_process_again": "PASSED",
            "test_both_at_once_is_a_mistake": "ERROR",
        }
        # A dead letter fails the test itself, not what comes after it.
        assert re.findall(r"^_+ (ERROR at .*?) _+$", output, re.MULTILINE) == [
            "ERROR at setup of test_both_at_once_is_a_mistake"
        ]

    def test_a_test_whose_job_dies_fails_in_its_call_with_a_report(self, output: str) -> None:
        text = self.report(output, "test_unexpected")

        assert "1 unexpected dead letter:" in text
        assert "During handling of the above exception" not in text
        assert "shop.tasks.send_receipt died: failed, on attempt 1" in text
        assert "error      jobs.errors.PermanentError: order 1 is broken" in text
        assert "in send_receipt\n" in text
        assert 'raise PermanentError(f"order {order_id} is broken")' in text
        assert "arguments  order_id=1, email=•••" in text
        assert "ann@shop.example" not in text
        assert "plugin.py" not in text

    def test_a_test_that_fails_by_itself_says_only_that(self, output: str) -> None:
        text = self.report(output, "test_both")

        assert "assert 1 == 2" in text
        assert "unexpected dead letter" not in text

    def test_a_test_that_expects_what_does_not_come_fails(self, output: str) -> None:
        text = self.report(output, "test_nothing_dies")

        assert "Expected a dead letter (task='shop.tasks.send_receipt'); none came." in text

    def test_a_test_that_is_marked_and_collects_jobs_is_a_mistake(self, output: str) -> None:
        text = self.report(output, "ERROR at setup of test_both_at_once_is_a_mistake")

        assert "This test is marked real_broker" in text


MIXIN_TESTS = """
from django.db import transaction
from django.test import TestCase, TransactionTestCase
from jobs.testing import JobsMixin
from shop.models import Order
from shop.tasks import plain, send_receipt


class Shop(JobsMixin, TestCase):
    @classmethod
    def setUpTestData(cls):
        cls.order = Order.objects.create()
        plain.delay(1)
        send_receipt.delay(cls.order.pk)
        transaction.on_commit(lambda: plain.delay(2))

    def setUp(self):
        plain.delay(3)  # and no super().setUp()

    def test_a_job_runs(self):
        self.assert_enqueued(plain, args=[3])
        send_receipt.delay(self.order.pk)
        self.run_jobs()
        self.order.refresh_from_db()
        self.assertEqual(self.order.receipts, 1)

    def test_jobs_of_the_class_belong_to_no_test(self):
        self.assertEqual([job.args for job in self.enqueued], [[3]])
        self.assertEqual(len(self.run_jobs()), 1)

    def test_wanted(self):
        with self.expect_dead_letter(send_receipt, reason="retries_exhausted", error=Order.DoesNotExist):
            send_receipt.delay(12345)
            self.run_jobs()


class Committing(JobsMixin, TransactionTestCase):
    def test_a_job_runs(self):
        with transaction.atomic():
            order = Order.objects.create()
            send_receipt.delay(order.pk)
        self.run_jobs()
        order.refresh_from_db()
        self.assertEqual(order.receipts, 1)
"""
FAILING_MIXIN_TEST = """

class Dying(JobsMixin, TestCase):
    def test_unexpected(self):
        send_receipt.delay(Order.objects.create(note="broken").pk)
        self.run_jobs()
"""


@pytest.mark.parametrize(("is_plugin_loaded", "is_ci"), [(True, True), (False, False)])
def test_the_mixin_does_the_same_under_pytest(project: Project, is_plugin_loaded: bool, is_ci: bool) -> None:
    if not is_plugin_loaded:
        project.write("conftest.py", "import site_celery\n")
    project.write("test_shop.py", MIXIN_TESTS + FAILING_MIXIN_TEST)

    done = project.pytest(**{"CI": "true"} if is_ci else {})

    assert "1 failed, 4 passed" in done.stdout, done.stdout
    # The summary repeats a report as far as the line is wide, and in CI all of it.
    report, _ = done.stdout.split("= short test summary info =")
    assert report.count("shop.tasks.send_receipt died: failed, on attempt 1") == 1


def test_the_mixin_does_the_same_under_django(project: Project) -> None:
    project.write("test_shop.py", MIXIN_TESTS + FAILING_MIXIN_TEST)

    done = project.django_test()

    assert "Ran 5 tests" in done.stderr, done.stderr
    assert "FAILED (failures=1)" in done.stderr
    assert "shop.tasks.send_receipt died: failed, on attempt 1" in done.stderr
    assert "1 unexpected dead letter" in done.stderr


def test_importing_the_helpers_needs_no_pytest(project: Project) -> None:
    done = project.run(
        "-c",
        "import sys, django; django.setup(); import jobs.testing; print('pytest' in sys.modules, jobs.testing.JobsMixin)",
    )

    assert done.stdout.startswith("False <class 'jobs.testing.mixin.JobsMixin'>"), done.stderr
