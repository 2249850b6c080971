"""``manage.py preflight`` as people and scripts run it."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from jobs.models import IdempotencyRecord
from jobs.preflight.gather_fleet import MEASURED_RUNS, measured_runtime
from tests.preflight.place import APPLICATION, ROOT, Place, found
from tests.servers import RedisServer, running, wait_until

START_SECONDS = 90


def test_report_says_what_why_and_the_line_to_set(place: Place, own_redis: RedisServer) -> None:
    with own_redis.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")

    done = place.manage("preflight", "--app", "shop")

    assert done.returncode == 1
    assert done.stdout.startswith(f"Broker       {own_redis.url} (Redis ")
    assert "Application  shop, 1 task, 1 queue\n" in done.stdout
    assert "error    maxmemory-policy: allkeys-lru, where noeviction is needed.\n" in done.stdout
    assert "         A Redis that is full then deletes keys without an error." in done.stdout
    assert "         To set: redis-cli CONFIG SET maxmemory-policy noeviction\n" in done.stdout
    assert done.stdout.rstrip().splitlines()[-1].startswith("1 error, 0 warnings, 1 unknown, ")


def test_json_holds_the_same(place: Place, own_redis: RedisServer) -> None:
    with own_redis.client() as client:
        client.config_set("appendonly", "no")

    report = place.preflight()

    assert report["status"] == 1
    assert (report["errors"], report["warnings"], report["application"]) == (1, 0, "shop")
    assert found(report, "error")["append-only file"]["area"] == "broker"


def test_warnings_end_with_one_only_when_strict(place: Place) -> None:
    place.write(APPLICATION.replace("task_time_limit=660,", ""))

    assert place.preflight()["status"] == 0
    strict = place.preflight("--strict")

    assert strict["status"] == 1
    assert "time limits" in found(strict, "warning")


def test_a_broker_that_is_away_is_a_sentence(place: Place, own_redis: RedisServer) -> None:
    own_redis.stop()

    for arguments in ((), ("--json",)):
        done = place.manage("preflight", "--app", "shop", *arguments)

        assert done.returncode == 1
        assert done.stderr.startswith(f"CommandError: The broker {own_redis.url} does not answer: ")
        assert "Traceback" not in done.stderr
        assert done.stdout == ""


def test_an_application_that_is_not_there_is_a_sentence(place: Place) -> None:
    done = place.manage("preflight", "--app", "nowhere")

    assert done.returncode == 1
    assert done.stderr.startswith(
        "CommandError: No Celery application was found in 'nowhere' (No module named 'nowhere')"
    )
    assert "Traceback" not in done.stderr
    refused = place.commands.refused
    assert "No Celery application was found in 'json'" in refused("preflight", "--app", "json")
    assert "for instance --app shop.celery:app" in refused("preflight", "--app", "shop:touch.name")
    place.write(APPLICATION + "\napp.conf.imports = ['shop_missing']\n", name="broken.py")
    assert "shop_missing" in refused("preflight", "--app", "broken")


def test_without_tables_the_rest_is_checked(tmp_path: Path, own_redis: RedisServer) -> None:
    report = Place(tmp_path / "bare", own_redis.url).preflight()

    assert report["errors"] == 0
    assert {"fleet", "measured runtimes"} <= set(found(report, "unknown"))


@pytest.mark.worker
def test_row_32_and_101_workers_that_run_are_asked_and_names_from_the_broker_turn_no_terminal(
    place: Place, own_redis: RedisServer
) -> None:
    log = place.directory / "worker.log"
    code = "from shop import app; app.send_task('shop.touch', args=['x'], queue='shpo')"
    assert place.run("-c", code).returncode == 0

    with running(
        place.worker("--pool", "threads"),
        env={"JOBS_PREFLIGHT": "refuse", **place.env},
        log=log,
        cwd=place.directory,
    ):
        wait_until(
            lambda: b"ready." in log.read_bytes(), seconds=START_SECONDS, what="the worker to be ready"
        )
        report = place.preflight_of_workers("pool")
        with own_redis.client() as client:
            client.sadd("_kombu.binding.evil", "evil\x06\x16\x06\x16evil\x1b[31m\u202e")
            client.lpush("evil\x1b[31m\u202e", "x")
        texts: list[str] = []

        def names_the_evil_queue() -> bool:
            texts.append(place.manage("preflight", "--app", "shop").stdout)
            return "Nobody consumes the queue evil" in texts[-1]

        wait_until(names_the_evil_queue, seconds=START_SECONDS, what="the worker to answer")
        text = texts[-1]

    assert "Nobody consumes the queue evil" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert report["status"] == 0
    warnings = found(report, "warning")
    assert set(warnings) == {"pool", "consumers"}
    assert "thread, ignores time_limit and soft_time_limit, which shop.touch set" in warnings["pool"]["found"]
    assert "Nobody consumes the queue shpo, in which 1 messages wait" in warnings["consumers"]["found"]


@pytest.mark.worker
def test_row_76_two_applications_on_one_queue_are_found(place: Place) -> None:
    other = APPLICATION.replace('"shop.touch"', '"crm.mail"').replace('Celery("shop")', 'Celery("crm")')
    place.write(other, name="crm.py")
    env = {"JOBS_PREFLIGHT": "refuse", **place.env}
    first, second = place.directory / "first.log", place.directory / "second.log"

    with (
        running(place.worker("-n", "one@%h"), env=env, log=first, cwd=place.directory),
        running(place.worker("-n", "two@%h", app="crm"), env=env, log=second, cwd=place.directory),
    ):
        for log in (first, second):
            wait_until(lambda log=log: b"ready." in log.read_bytes(), seconds=START_SECONDS, what="ready")
        report = place.preflight_of_workers("mixed queue")

    assert "share the queue shop" in found(report, "warning")["mixed queue"]["found"]


def test_the_project_s_own_application_is_found_without_a_name(
    tmp_path: Path, own_redis: RedisServer
) -> None:
    done = Place(tmp_path / "bare", own_redis.url).manage("preflight", "--json")

    assert json.loads(done.stdout)["application"] == "console"


def test_a_project_that_has_not_loaded_celery_does_not_load_it_for_preflight(tmp_path: Path) -> None:
    place = Place(tmp_path, "redis://127.0.0.1:1/0")
    place.write(
        "INSTALLED_APPS = ['jobs', 'django.contrib.auth', 'django.contrib.contenttypes']\nSECRET_KEY = 'x'\n",
        name="small.py",
    )
    code = "import django, sys; django.setup(); print('celery' in sys.modules)"

    done = place.run("-c", code, DJANGO_SETTINGS_MODULE="small")

    assert done.stdout.split() == ["False"], done.stderr


@pytest.mark.django_db
class TestMeasuredRuntimes:
    @staticmethod
    def run(
        task: str, seconds: float, *, ago: timedelta, number: int, state: str = "done"
    ) -> IdempotencyRecord:
        ended = timezone.now() - ago
        return IdempotencyRecord(
            task=task,
            key=f"{task}:{number}",
            state=state,
            task_id=str(number),
            created_at=ended,
            started_at=ended - timedelta(seconds=seconds),
            completed_at=ended if state == "done" else None,
            updated_at=ended,
        )

    def test_p99_is_measured_on_the_runs_of_the_last_day(self) -> None:
        hour = timedelta(hours=1)
        rows = [self.run("report", number, ago=hour, number=number) for number in range(1, 101)]
        rows += [self.run("report", 9_999, ago=timedelta(hours=25), number=1_000)]
        rows += [self.run("report", 9_999, ago=hour, number=2_000, state="running")]
        rows += [self.run("rare", 9_999, ago=hour, number=number) for number in range(19)]
        IdempotencyRecord.objects.bulk_create(rows)

        runtime = measured_runtime(now=timezone.now())

        assert runtime is not None
        assert (runtime.task, runtime.runs, runtime.p99_seconds) == ("report", 100, 99.0)

    def test_one_query_of_bounded_size(self, django_assert_num_queries) -> None:
        with django_assert_num_queries(1) as queries:
            assert measured_runtime(now=timezone.now()) is None

        assert f"LIMIT {MEASURED_RUNS}" in queries[0]["sql"]


def test_settings_that_cannot_be_used_are_found_by_manage_check(tmp_path: Path) -> None:
    place = Place(tmp_path, "redis://127.0.0.1:1/0")
    place.write(
        "from console.settings import *\nJOBS_PREFLIGHT = 'maybe'\nJOBS_RABBITMQ_CONSUMER_TIMEOUT_SECONDS = 0\n",
        name="badsettings.py",
    )

    done = subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), "check"],
        cwd=place.directory,
        env={**place.env, "DJANGO_SETTINGS_MODULE": "badsettings"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 1
    assert "(jobs.E030) JOBS_PREFLIGHT='maybe' is not known. Use one of refuse, warn, off." in done.stderr
    assert "(jobs.E031) JOBS_RABBITMQ_CONSUMER_TIMEOUT_SECONDS=0 is not above zero." in done.stderr
