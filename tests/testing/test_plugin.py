"""The pytest plugin and the mixin in a project of their user: what passes, what fails, and with which words."""

from __future__ import annotations

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


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    project.write("shop/tasks.py", TASKS)
    project.write("shop/models.py", MODELS)
    return project


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


def test_a_test_whose_job_dies_fails_in_its_call_with_a_report(project: Project) -> None:
    project.write(
        "test_shop.py",
        """
import pytest
from shop.models import Order
from shop.tasks import send_receipt


@pytest.mark.django_db
def test_unexpected(run_jobs):
    send_receipt.delay(Order.objects.create(note="broken").pk, email="ann@shop.example")
    run_jobs()


def test_the_next_one_is_fine():
    pass
""",
    )

    done = project.pytest()

    text = done.stdout
    assert "1 failed, 1 passed" in text, text
    assert "ERROR at" not in text
    assert "1 unexpected dead letter:" in text
    assert "During handling of the above exception" not in text
    assert "shop.tasks.send_receipt died: failed, on attempt 1" in text
    assert "error      jobs.errors.PermanentError: order 1 is broken" in text
    assert "in send_receipt\n" in text
    assert 'raise PermanentError(f"order {order_id} is broken")' in text
    assert "arguments  order_id=1, email=•••" in text
    assert "ann@shop.example" not in text
    assert "plugin.py" not in text


def test_a_test_that_fails_by_itself_says_only_that(project: Project) -> None:
    project.write(
        "test_shop.py",
        """
import pytest
from shop.models import Order
from shop.tasks import send_receipt


@pytest.mark.django_db
def test_both(run_jobs):
    send_receipt.delay(Order.objects.create(note="broken").pk)
    run_jobs()
    assert 1 == 2
""",
    )

    done = project.pytest()

    assert "assert 1 == 2" in done.stdout
    assert "1 failed" in done.stdout
    assert "unexpected dead letter" not in done.stdout


def test_a_test_that_expects_what_does_not_come_fails(project: Project) -> None:
    project.write(
        "test_shop.py",
        """
def test_nothing_dies(run_jobs, expect_dead_letter):
    with expect_dead_letter("shop.tasks.send_receipt"):
        run_jobs()
""",
    )

    done = project.pytest()

    assert "Expected a dead letter (task='shop.tasks.send_receipt'); none came." in done.stdout


def test_a_marked_test_keeps_its_own_broker(project: Project) -> None:
    project.write(
        "test_shop.py",
        """
import pytest
from celery import current_app
from kombu.exceptions import OperationalError
from shop.tasks import plain


@pytest.mark.real_broker
def test_the_real_broker_is_asked():
    current_app.conf.broker_url = "redis://127.0.0.1:1/0"
    current_app.conf.task_publish_retry = False
    with pytest.raises(OperationalError):
        plain.delay(5)


def test_the_next_is_in_process_again(enqueued):
    plain.delay(5)
    enqueued.assert_one(plain)


@pytest.mark.real_broker
def test_both_at_once_is_a_mistake(enqueued):
    pass
""",
    )

    done = project.pytest("--strict-markers")

    assert "2 passed, 1 error" in done.stdout, done.stdout
    assert "This test is marked real_broker" in done.stdout


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


@pytest.mark.parametrize("is_ci", [False, True])
@pytest.mark.parametrize("is_plugin_loaded", [True, False])
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
    project.write("test_shop.py", MIXIN_TESTS)
    passing = project.django_test()
    project.write("test_shop.py", MIXIN_TESTS + FAILING_MIXIN_TEST)
    failing = project.django_test()

    assert "Ran 4 tests" in passing.stderr, passing.stderr
    assert passing.returncode == 0
    assert "FAILED (failures=1)" in failing.stderr
    assert "shop.tasks.send_receipt died: failed, on attempt 1" in failing.stderr
    assert "1 unexpected dead letter" in failing.stderr


def test_importing_the_helpers_needs_no_pytest(project: Project) -> None:
    done = project.run(
        "-c",
        "import sys, django; django.setup(); import jobs.testing; print('pytest' in sys.modules, jobs.testing.JobsMixin)",
    )

    assert done.stdout.startswith("False <class 'jobs.testing.mixin.JobsMixin'>"), done.stderr
