"""``manage.py queue_health``: the numbers, the verdict and its exit status."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import time_machine
from django.core.management import call_command

from jobs.core.words import AlertKind, AlertState
from jobs.models import Alert, AlertRule, Lease, QueuePause
from tests.factories import NOW, make_letter
from tests.metrics_rows import make_boot, make_heartbeat, make_rollup, make_sample
from tests.migrated import migrated_database

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _at_night():
    with time_machine.travel(NOW, tick=False):
        yield


@pytest.fixture
def watched(db) -> None:
    """A console that knows: runops carries its duties out, a worker reports, a queue was just measured."""
    for duty in ("collector", "runs", "queues", "alerts"):
        Lease.objects.create(
            duty=duty, holder="runops@web-1:4", renewed_at=NOW, expires_at=NOW + timedelta(days=36_500)
        )
    make_heartbeat()
    make_boot()
    make_sample(ready=3, oldest_age_seconds=1.5)


def ask(*options: str) -> tuple[int, str]:
    out, status = io.StringIO(), 0
    try:
        call_command("queue_health", *options, stdout=out)
    except SystemExit as ended:
        status = int(ended.code or 0)
    return status, out.getvalue()


def ask_json(*options: str) -> tuple[int, dict[str, Any]]:
    status, text = ask("--json", *options)
    return status, json.loads(text)


def fire(
    kind: AlertKind = AlertKind.QUEUE_DEPTH, *, state: AlertState = AlertState.FIRING, **fields: Any
) -> Alert:
    subject = fields.pop("subject", "")
    rule = AlertRule.objects.create(name="A rule", kind=kind, threshold=100, **fields)
    return Alert.objects.create(
        rule=rule, subject=subject, state=state, began_at=NOW - timedelta(minutes=26), value=1610, peak=1610
    )


def test_a_console_that_knows_and_sees_nothing_wrong_is_healthy(watched):
    status, text = ask()

    assert status == 0
    assert text.splitlines()[0] == "HEALTHY: 1 queue, 0 dead letters, no alert."


def test_the_numbers_of_each_queue_are_told(watched):
    make_rollup(done=9, dead=1, latency=[0.2] * 19 + [5.0], received=10)
    make_letter(died_at=NOW - timedelta(minutes=2))

    status, found = ask_json()

    (queue,) = found["queues"]
    assert status == 0
    assert queue["latency_p95_seconds"] == pytest.approx(0.2, rel=0.05)
    del queue["latency_p95_seconds"]
    assert queue == {
        "queue": "critical", "depth": 3, "oldest_age_seconds": 1.5, "consumers": 1, "is_paused": False,
        "attempts": 10, "failure_rate": 0.1,
    }  # fmt: skip
    assert (found["status"], found["dead_letters"], found["died_in_last_hour"]) == ("healthy", 1, 1)
    assert (found["workers_online"], found["outbox_lag_seconds"], found["collector_lag_seconds"]) == (1, 0, 0)


def test_the_text_says_times_as_the_pages_do(watched):
    make_rollup(done=9, dead=1, latency=[0.2] * 20, received=10)

    rows = ask()[1].splitlines()

    assert re.sub(" +", " ", next(row for row in rows if row.startswith("critical"))) == (
        "critical 3 1.5 s 1 190 ms 10 10.0 %"
    )
    assert "outbox lag     0 s" in rows
    assert "collector lag  0 s" in rows


def test_a_rule_that_fires_or_is_about_to_degrades_it_with_a_sentence(watched):
    fire(subject="critical")
    fire(AlertKind.OUTBOX_LAG, state=AlertState.PENDING)

    status, found = ask_json()

    assert status == 1
    assert found["status"] == "degraded"
    assert len(found["reasons"]) == 2
    assert all(reason.endswith("since 2026-11-12 02:46 UTC.") for reason in found["reasons"])
    assert "(about to fire)" in found["reasons"][1]
    assert ask()[1].startswith("DEGRADED: ")


def test_a_rule_that_is_switched_off_or_an_alert_that_is_over_degrades_nothing(watched):
    fire(is_enabled=False)
    fire(state=AlertState.RESOLVED)

    assert ask()[0] == 0


def test_a_queue_that_nobody_consumes_degrades_it_unless_somebody_paused_it(watched):
    make_sample(queue="orphan", ready=12, consumers=0)

    status, found = ask_json()
    QueuePause.objects.create(queue="orphan", paused_at=NOW, actor="mara")

    assert status == 1
    assert found["reasons"] == ["Nobody consumes the queue orphan: 12 messages wait."]
    assert ask()[0] == 0


def test_of_one_queue_only_what_concerns_it_counts(watched):
    make_sample(queue="low", ready=1)
    fire(subject="critical")
    make_sample(queue="orphan", ready=12, consumers=0)

    low, critical = ask_json("--queue", "low"), ask_json("--queue", "critical")

    assert (low[0], [each["queue"] for each in low[1]["queues"]]) == (0, ["low"])
    assert critical[0] == 1
    assert len(critical[1]["reasons"]) == 1


def test_a_queue_that_nobody_has_heard_of_is_unknown(watched):
    status, found = ask_json("--queue", "nope")

    assert status == 2
    assert found["unknown"] == ["No queue of the name nope was measured, and no worker took a job from one."]


@pytest.mark.parametrize("name", ["\udcff", "a\x00b", "x" * 1_000])
def test_a_name_that_no_queue_has_is_unknown_whatever_its_bytes(watched, name):
    assert ask("--queue", name)[0] == 2


def test_without_runops_nothing_can_be_known_and_each_reason_is_said(db):
    status, found = ask_json()

    assert status == 2
    assert found["status"] == "unknown"
    assert "Queues are not measured: no runops carries it out." in found["unknown"]
    assert "No worker with the agent has reported yet: rates and latencies are not known." in found["unknown"]


def test_what_keeps_runops_from_it_is_said(watched):
    trouble = "BrokerUnavailable: The broker took no message for jobs.runs: it is full."
    Lease.objects.filter(duty="runs").update(trouble=trouble, trouble_since=NOW - timedelta(minutes=2))

    status, found = ask_json()

    assert (status, found["collector_lag_seconds"]) == (2, 120)
    assert found["unknown"] == [
        "What workers report is not collected: The broker took no message for jobs.runs: it is full."
    ]


def test_old_numbers_are_not_told_as_if_they_were_new(watched):
    with time_machine.travel(NOW + timedelta(minutes=5), tick=False):
        status, found = ask_json()

    assert status == 2
    assert found["queues"][0]["depth"] is None
    assert "Queues were last measured at 2026-11-12 03:12:00 UTC." in found["unknown"]
    assert "No worker has reported since 2026-11-12 03:12 UTC." in found["unknown"]


def test_what_workers_told_and_could_not_be_counted_is_said_and_not_that_nothing_is_collected(watched):
    Lease.objects.filter(duty="runs").update(remark="3 batches on jobs.runs could not be read")

    status, found = ask_json()

    assert status == 2
    assert found["unknown"] == ["3 batches on jobs.runs could not be read."]
    assert (found["collector_lag_seconds"], found["reasons"]) == (0, [])


def test_what_is_wrong_goes_before_what_is_not_known(watched):
    fire(subject="critical")
    Lease.objects.filter(duty="runs").delete()

    status, text = ask()

    assert status == 1
    assert text.startswith("DEGRADED: ")
    assert "? What workers report is not collected: no runops carries it out." in text


def test_hostile_names_stay_on_their_line(watched):
    make_sample(queue="evil\n\x1b[31mHEALTHY", ready=1, consumers=0)

    text = ask()[1]

    assert "\x1b" not in text
    assert text.splitlines()[0].startswith("DEGRADED: Nobody consumes the queue evil")


def run(database_url: str, data: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", "queue_health", *options],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": database_url, "JOBS_DATA_DIR": str(data), "SECRET_KEY": "x"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_process_ends_with_2_when_nobody_watches_or_the_database_cannot_be_read(tmp_path):
    database = migrated_database(tmp_path / "console.sqlite3")

    nobody = run(f"sqlite:///{database}", tmp_path)
    empty = run(f"sqlite:///{tmp_path / 'nothing' / 'there.sqlite3'}", tmp_path)
    as_json = run(f"sqlite:///{tmp_path / 'nothing' / 'there.sqlite3'}", tmp_path, "--json")

    assert (nobody.returncode, nobody.stdout.split(":")[0]) == (2, "UNKNOWN")
    assert (empty.returncode, empty.stdout) == (2, "")
    assert "UNKNOWN: The database cannot be read (OperationalError): check DATABASE_URL" in empty.stderr
    assert "Traceback" not in empty.stderr
    assert json.loads(as_json.stdout)["status"] == "unknown"
