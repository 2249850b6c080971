"""/healthz and /readyz: whether the process lives, and whether it can serve."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.cache import cache
from django.db import OperationalError, connection
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client
from django.utils import timezone

from jobs.duties import all_duties
from jobs.models import Lease

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _nothing_cached():
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def runops() -> None:
    now = timezone.now()
    for duty in all_duties():
        Lease.objects.update_or_create(
            duty=duty.name,
            defaults={"holder": "runops@web-1:4", "renewed_at": now, "expires_at": now + timedelta(days=1)},
        )


def ready():
    return Client().get("/readyz")


def test_with_a_migrated_database_and_runops_it_is_ready(runops):
    answer = ready()

    assert answer.status_code == 200
    assert answer.json()["status"] == "ready"
    assert {name: check["ok"] for name, check in answer.json()["checks"].items()} == {
        "database": True, "migrations": True, "runops": True,
    }  # fmt: skip


def test_without_runops_it_is_degraded_and_still_serves():
    answer = ready()

    assert answer.status_code == 200
    assert answer.json()["status"] == "degraded"
    assert answer.json()["checks"]["runops"]["text"].startswith("Not carried out: collector, ")


def test_a_duty_in_trouble_is_named_and_its_trouble_is_not_told(runops):
    Lease.objects.filter(duty="collector").update(trouble="redis://user:password@broker refused")

    answer = ready()

    assert answer.json()["checks"]["runops"] == {"ok": False, "text": "Not carried out: collector."}
    assert "password" not in answer.content.decode()


def test_a_migration_that_is_missing_is_not_ready(runops):
    MigrationRecorder(connection).migration_qs.filter(app="jobs", name__gte="0019").delete()

    answer = ready()

    assert answer.status_code == 503
    assert answer.json()["status"] == "not ready"
    assert "not applied: run manage.py migrate" in answer.json()["checks"]["migrations"]["text"]


def test_a_database_that_is_away_is_not_ready_and_not_alive():
    def refuse(execute, sql, params, many, context):
        raise OperationalError("could not connect to host db-1, password=secret")

    with connection.execute_wrapper(refuse):
        answers = [ready(), Client().get("/healthz")]

    assert [answer.status_code for answer in answers] == [503, 503]
    assert answers[0].json()["checks"] == {"database": {"ok": False, "text": "The database does not answer."}}
    assert "secret" not in "".join(answer.content.decode() for answer in answers)


def test_many_probes_cost_one_look(runops, django_assert_num_queries):
    ready()

    with django_assert_num_queries(0):
        answers = [ready() for _ in range(20)]

    assert {answer.status_code for answer in answers} == {200}


@pytest.mark.parametrize("address", ["/healthz", "/readyz"])
def test_probes_need_no_login_and_are_not_kept_by_caches(address):
    answer = Client().get(address)

    assert answer.status_code == 200
    assert address == "/healthz" or "no-store" in answer.headers["Cache-Control"]


def test_readyz_answers_reading_only():
    assert Client().post("/readyz").status_code == 405
