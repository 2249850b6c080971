"""The totals equal what was run: real workers, a real broker, runops as a process, restarts and kills in between."""

from __future__ import annotations

import itertools
import json
import random
import re
import signal
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import time_machine
from django.contrib.auth import get_user_model
from django.test import Client
from django.utils import timezone

from jobs.agent.wire import DEAD_QUEUE, RUNS_QUEUE
from jobs.core import histograms
from jobs.models import DeadLetter, Rollup, Run, WorkerBoot
from tests.agent.fleet import Worker
from tests.runops_place import RunopsPlace, kill
from tests.servers import wait_until
from tests.web.people import tags

PROGRAM = ("celery", "-A", "tests.metrics.shop")
OUTCOMES = ("done", "dead", "retried", "ignored")
CHILD_LAG_SECONDS = 1.0
# Of each hundred jobs. One that is retried once is one attempt "retried" and one "done".
MIX = {"done": 70, "dead": 10, "retried": 15, "ignored": 5}


@pytest.fixture
def place(django_db_setup, django_db_blocker) -> Iterator[RunopsPlace]:
    with django_db_blocker.unblock(), RunopsPlace().entered() as entered:
        yield entered


@pytest.fixture
def workers(place: RunopsPlace, tmp_path: Path) -> Iterator[list[Worker]]:
    made = [
        Worker(
            pool="prefork",
            broker_url=place.redis.url,
            directory=tmp_path / queue,
            queue="fast,slow",
            program=PROGRAM,
            environment={"COUNT_LINES": str(tmp_path / "lines")},
        )
        for queue in ("a", "b")
    ]
    yield made
    for worker in made:
        worker.stop(signal.SIGKILL)


def publish(place: RunopsPlace, number: int) -> None:
    """Publish jobs as MIX has them, over two queues, through one pipeline: what is counted is what workers do."""
    names = [name for name, count in MIX.items() for _ in range(count)]
    random.Random(4).shuffle(names)
    jobs = itertools.cycle(names)
    with place.redis.client() as client:
        for start in range(0, number, 1_000):
            with client.pipeline(transaction=False) as pipeline:
                for index in range(start, min(start + 1_000, number)):
                    queue = "slow" if index % 4 == 0 else "fast"
                    pipeline.lpush(queue, message(f"count.{next(jobs)}", queue))
                pipeline.execute()


def message(task: str, queue: str) -> str:
    """Return a job as kombu puts it on a Redis list."""
    task_id = str(uuid.uuid4())
    return json.dumps(
        {
            "body": "W1tdLCB7fSwge31d",
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {
                "lang": "py", "task": task, "id": task_id, "eta": None, "expires": None, "group": None,
                "retries": 0, "timelimit": [None, None], "root_id": task_id, "parent_id": None,
                "argsrepr": "()", "kwargsrepr": "{}", "origin": "test", "ignore_result": True,
                "jobs-publication": uuid.uuid4().hex, "jobs-published-at": 1.0,
            },
            "properties": {
                "correlation_id": task_id,
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": queue},
                "priority": 0,
                "body_encoding": "base64",
                "delivery_tag": str(uuid.uuid4()),
            },
        }
    )  # fmt: skip


def is_quiet(place: RunopsPlace) -> bool:
    """Say whether nothing waits, nothing is unacknowledged, and all batches were counted."""
    with place.redis.client() as client:
        lists = [
            client.llen(name)
            for name in ("fast", "slow", RUNS_QUEUE, f"{RUNS_QUEUE}.taken", DEAD_QUEUE, f"{DEAD_QUEUE}.taken")
        ]
        return not any(lists) and not client.hlen("unacked")


def lines(tmp_path: Path) -> list[tuple[str, int, float]]:
    """Return what ran to its end: how, in which worker, and when."""
    found = [line.split() for line in (tmp_path / "lines").read_text().splitlines()]
    return [(name, int(worker), float(at)) for name, worker, at in found]


def counted(**filters: Any) -> Counter[str]:
    totals: Counter[str] = Counter()
    for row in Rollup.objects.filter(level="day", scope="all", **filters).values(*OUTCOMES, "revoked"):
        totals.update({name: number for name, number in row.items() if number})
    return totals


def ran(place: RunopsPlace, tmp_path: Path) -> int:
    path = tmp_path / "lines"
    return path.read_bytes().count(b"\n") if path.exists() else 0


# A minute on a machine of one's own; seen to take three where a dozen processes share each core.
@pytest.mark.timeout(480)
def test_the_totals_of_10000_jobs_over_two_workers_restarted_in_between_equal_what_was_run(
    place: RunopsPlace, workers: list[Worker], tmp_path: Path
) -> None:
    expected = Counter(done=8_500, dead=1_000, retried=1_500, ignored=500)
    runops = place.start_runops()
    publish(place, 10_000)
    for worker in workers:
        worker.start()

    wait_until(lambda: ran(place, tmp_path) >= 2_500, seconds=120, what="a quarter of the jobs")
    workers[0].stop()
    workers[0].start()
    wait_until(lambda: ran(place, tmp_path) >= 5_000, seconds=120, what="half of the jobs")
    # Batches wait, and those that it had taken are delivered again.
    kill(runops)
    workers[1].stop()
    workers[1].start()
    wait_until(lambda: ran(place, tmp_path) >= 7_500, seconds=120, what="three quarters of the jobs")
    place.start_runops()
    wait_until(lambda: ran(place, tmp_path) >= sum(expected.values()), seconds=120, what="all jobs")
    for worker in workers:
        worker.stop()
    wait_until(lambda: is_quiet(place), seconds=60, what="all batches to be counted")

    assert Counter(name for name, *_ in lines(tmp_path)) == expected
    assert counted() == expected
    for level in ("minute", "hour", "day"):
        for scope in ("all", "task", "queue", "both"):
            rows = list(Rollup.objects.filter(level=level, scope=scope))
            for name in OUTCOMES:
                assert sum(getattr(row, name) for row in rows) == expected[name]
            assert sum(histograms.total(histograms.unpack(row.runtime)) for row in rows) == 11_500
    assert Run.objects.count() == 11_500
    assert Counter(Run.objects.values_list("outcome", flat=True)) == expected
    assert DeadLetter.objects.count() == 1_000
    by_task = {row.task: row.done + row.dead + row.retried + row.ignored
               for row in Rollup.objects.filter(level="day", scope="task")}  # fmt: skip
    assert by_task == {"count.done": 7_000, "count.dead": 1_000, "count.retried": 3_000, "count.ignored": 500}
    boots = WorkerBoot.objects.all()
    assert len(boots) == 4
    assert all(boot.goodbye_at is not None and boot.missing == [] for boot in boots)
    assert sum(boot.attempts for boot in boots) == 11_500
    assert_pages_say_what_was_run(expected)


def assert_pages_say_what_was_run(expected: Counter[str]) -> None:
    """Look at what the pages say of the last hour."""
    overview = page("/")
    task = page_text("/tasks/one/?name=count.retried")
    attempts = page_text("/jobs/?q=task:count.retried")

    assert "1,000 of 9,500 jobs" in tags(overview).text
    columns = [0.0, 0.0, 0.0, 0.0]
    for row in rows_of_table(overview.content.decode(), "throughput"):
        columns = [total + float(cell.replace(",", "")) for total, cell in zip(columns, row, strict=True)]
    assert columns == [expected["ignored"], expected["dead"], expected["retried"], expected["done"]]
    assert "All 1,500 jobs of retried that finished in the last hour were done." in task
    assert "1,500 of 3,000 attempts" in task
    assert re.search(r"3,000 attempts finished .*: 1,500 done, 1,500 retried\.", attempts)


def page(address: str) -> Any:
    """Open a page two minutes from now, when no minute is half over."""
    people = get_user_model().objects
    mara = people.filter(username="mara").first() or people.create_superuser("mara", "", "x")
    with time_machine.travel(timezone.now() + timedelta(minutes=2), tick=False):
        client = Client()
        client.force_login(mara)
        answer = client.get(address)
    assert answer.status_code == 200
    return answer


def page_text(address: str) -> str:
    return tags(page(address)).text


def rows_of_table(page: str, chart: str) -> list[list[str]]:
    """Return the cells of the table behind a chart, without their moments."""
    table = page.split(f'id="{chart}-table"')[1].split("</table>")[0]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in table.split("<tr")[2:]]
    return [[re.sub(r"<[^>]*>", "", cell).strip() for cell in row[-4:]] for row in rows]


def test_what_a_worker_dropped_while_the_console_was_away_is_counted_and_shown_as_dropped(
    place: RunopsPlace, workers: list[Worker], tmp_path: Path
) -> None:
    worker = workers[0]
    worker.environment |= {"JOBS_RUNS_CAP": "10", "JOBS_HEARTBEAT_SECONDS": "1"}
    worker.start()
    with place.redis.client() as client:
        wait_until(lambda: client.llen(RUNS_QUEUE), seconds=60, what="the first batch")
        # As often as it takes to fill the queue; one that is delivered again is counted once.
        client.lpush(RUNS_QUEUE, *client.lrange(RUNS_QUEUE, -1, -1) * 9)
        wait_until(
            lambda: b"nobody reads them" in worker.log.read_bytes(),
            seconds=60,
            what="the queue of batches to be full",
        )
        publish(place, 500)
        wait_until(lambda: ran(place, tmp_path) >= 575, seconds=60, what="all jobs")
        assert client.llen(RUNS_QUEUE) < 20

    place.start_runops()
    wait_until(lambda: sum(counted().values()) == 575, seconds=60, what="the counts to catch up")
    worker.stop()
    wait_until(lambda: is_quiet(place), seconds=60, what="the goodbye to be counted")

    assert counted() == Counter(done=425, dead=50, retried=75, ignored=25)
    boot = WorkerBoot.objects.get()
    assert boot.dropped > 0
    assert Run.objects.count() == 575 - boot.dropped
    text = page_text("/jobs/")
    assert f"{boot.dropped} of these 575 attempts have no record: a worker left them out under load" in text


def test_a_worker_that_is_killed_takes_the_counts_of_its_last_second_and_nothing_else(
    place: RunopsPlace, workers: list[Worker], tmp_path: Path
) -> None:
    """Its jobs are acknowledged late: those it had not ended run again, and are counted when they end."""
    place.start_runops()
    publish(place, 1_200)
    for worker in workers:
        worker.start()
    killed = []
    for share in (250, 600):
        wait_until(lambda at=share: ran(place, tmp_path) >= at, seconds=120, what=f"{share} jobs")
        wait_until(
            lambda: WorkerBoot.objects.filter(goodbye_at=None).count() == len(killed) + 2,
            what="both workers to be known",
        )
        process = workers[0].process
        assert process is not None
        killed.append(process.pid)
        workers[0].stop(signal.SIGKILL)
        workers[0].restore_unacknowledged()
        workers[0].start()
    wait_until(lambda: ran(place, tmp_path) >= 1_380 and no_job_waits(place), seconds=120, what="all jobs")
    for worker in workers:
        worker.stop()
    wait_until(lambda: is_quiet(place), seconds=60, what="all batches to be counted")

    true = Counter(name for name, *_ in lines(tmp_path))
    found = counted()
    boots = WorkerBoot.objects.filter(goodbye_at=None).order_by("started_at")
    last_told = dict(zip(killed, [boot.reported_at.timestamp() for boot in boots], strict=True))
    # What ended after its last batch was made; a child says so a moment before its parent learns of it.
    unsent = [
        name
        for name, worker, at in lines(tmp_path)
        if worker in killed and at > last_told[worker] - CHILD_LAG_SECONDS
    ]
    assert all(found[name] <= true[name] for name in OUTCOMES)
    assert sum((true - found).values()) <= len(unsent)
    assert Run.objects.count() == sum(found.values())


def no_job_waits(place: RunopsPlace) -> bool:
    with place.redis.client() as client:
        return not client.llen("fast") and not client.llen("slow") and not client.hlen("unacked")
