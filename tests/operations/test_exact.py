"""A replay is exact: a real worker gets the second time what it got the first time."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chain
from django.utils import timezone

from jobs.models import DeadLetter, Worker
from jobs.operations import Actor, Selection, start_replay
from tests import replay_shop
from tests.runops_place import ROOT, RunopsPlace
from tests.servers import running, wait_until

pytestmark = pytest.mark.worker
BIG = {
    "items": [{"n": n, "text": "größe 漢字 " * 8, "ratio": n / 7} for n in range(1_800)],
    "deep": [[[{"a": None}]]],
}


@pytest.fixture
def place(django_db_setup, django_db_blocker) -> Iterator[RunopsPlace]:
    with django_db_blocker.unblock(), RunopsPlace().entered() as entered:
        env = {**os.environ, **entered.env, "SHOP_DIRECTORY": str(entered.directory), "C_FORCE_ROOT": "1"}
        env.pop("DJANGO_SETTINGS_MODULE")
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "tests.replay_shop",
            "worker",
            "-P",
            "solo",
            "-Q",
            "shop",
        ]
        log = entered.directory / "worker.log"
        with running([*command, "-l", "INFO"], env=env, log=log, cwd=ROOT):
            wait_until(lambda: b" ready." in log.read_bytes(), seconds=90, what="the worker")
            entered.start_runops()
            yield entered


def runs(place: RunopsPlace, name: str) -> list[dict[str, Any]]:
    path = place.directory / f"runs-{name}"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def client(place: RunopsPlace) -> Celery:
    app = Celery("client", broker=place.redis.url, set_as_current=False)
    app.conf.update(task_default_queue="shop", task_ignore_result=True)
    return app


def test_the_second_run_gets_what_the_first_one_got(place: RunopsPlace) -> None:
    app = client(place)
    flaky = app.signature("shop.flaky", queue="shop")
    send: dict[str, Any] = {
        "nested": lambda: app.send_task(
            "shop.flaky", [[1, [2, {"x": None}]]], {"name": "nested", "e": "é\u202e\x00"}
        ),
        "big": lambda: app.send_task("shop.flaky", [], {"name": "big", "value": BIG}),
        "bytes": lambda: app.send_task("shop.flaky", [b"\x00\xff"], {"name": "bytes"}, serializer="literal"),
        "priority": lambda: app.send_task(
            "shop.flaky",
            [],
            {"name": "priority"},
            priority=6,
            headers={"custom": {"trace": "00-1", "n": [1]}},
        ),
        "packed": lambda: app.send_task("shop.flaky", ["z" * 5_000], {"name": "packed"}, compression="zlib"),
        "chain": lambda: chain(
            flaky.clone(kwargs={"name": "chain"}), app.signature("shop.after", queue="shop")
        ).apply_async(),
        "pickled": lambda: app.send_task(
            "shop.flaky", [replay_shop.Ledger(5)], {"name": "pickled"}, serializer="pickle"
        ),
    }
    for publish in send.values():
        publish()
    wait_until(
        lambda: DeadLetter.objects.filter(state="dead").count() == len(send), seconds=60, what="the letters"
    )
    assert not (place.directory / "after-chain").exists()

    (place.directory / "fixed").touch()
    now = timezone.now()
    operation = start_replay(
        selection=Selection.of_query("", now=now), actor=Actor(name="mara"), why="fixed", now=now
    )

    def has_finished() -> bool:
        operation.refresh_from_db()
        return operation.state == "finished"

    wait_until(has_finished, seconds=60, what="the report")
    assert operation.outcome == f"Of {len(send)} replayed: {len(send)} done."
    for name in send:
        first, second = runs(place, name)
        assert second["id"] != first["id"], name
        assert second["replay"] == 1, name
        # A pickled object's repr names its place in memory.
        compared = {"kwargs", "root", "retries", "priority", "custom"} | (
            {"args"} if name != "pickled" else set()
        )
        assert {key: second[key] for key in compared} == {key: first[key] for key in compared}, name
    assert runs(place, "priority")[1]["priority"] == 6
    assert runs(place, "priority")[1]["custom"] == {"trace": "00-1", "n": [1]}
    assert len(runs(place, "big")[1]["kwargs"]) > 200_000
    wait_until((place.directory / "after-chain").exists, seconds=60, what="the chain to go on")
    # The worker unpickled it twice; no other process ever did.
    worker_pid = str(runs(place, "pickled")[0]["pid"])
    assert set((place.directory / "unpickled").read_text().split()) == {worker_pid}


def test_edited_arguments_reach_the_worker_and_wrong_ones_are_refused_by_its_signature(
    place: RunopsPlace,
) -> None:
    client(place).send_task("shop.after", [], {})
    wait_until(lambda: DeadLetter.objects.filter(state="dead").exists(), seconds=60, what="the letter")
    wait_until(
        lambda: Worker.objects.filter(
            has_agent=True, seen_at__gte=timezone.now() - timedelta(minutes=1)
        ).exists(),
        seconds=60,
        what="the directory of workers",
    )
    letter = DeadLetter.objects.get()
    selection = Selection.of_ids([letter.uuid], now=timezone.now())
    options: dict[str, Any] = {
        "actor": Actor(name="mara"),
        "why": "",
        "now": timezone.now(),
        "selection": selection,
    }

    with pytest.raises(Exception, match="no parameter before"):
        start_replay(edited_arguments={"args": [], "kwargs": {"before": "x"}}, **options)
    start_replay(edited_arguments={"args": [], "kwargs": {"previous": "edited"}}, **options)

    wait_until(Path(place.directory / "after-edited").exists, seconds=60, what="the edited job")
    wait_until(lambda: DeadLetter.objects.filter(state="resolved").exists(), seconds=60, what="the outcome")
    worker = Worker.objects.get()
    assert worker.queues == ["shop"]
    assert worker.tasks["shop.after"]["names"] == ["previous"]


def test_a_replay_whose_jobs_die_again_ends_and_a_staged_one_stops(place: RunopsPlace) -> None:
    app = client(place)
    for number in range(12):
        app.send_task("shop.flaky", [number], {})
    wait_until(lambda: DeadLetter.objects.count() == 12, seconds=60, what="the letters")

    staged = place.command("dead_letters", "replay", "--query", "", "--yes", "--json", "--stages", "2,all")
    plain = place.command("dead_letters", "replay", "--query", "", "--yes", "--json")

    assert (staged.returncode, plain.returncode) == (1, 1), staged.stderr + plain.stderr
    stopped, ended = json.loads(staged.stdout), json.loads(plain.stdout)
    assert stopped["state"] == "stopped"
    # Two at once would do; the first that is certain to be too many stops it.
    assert "Stopped itself in stage 1" in stopped["outcome"]
    assert stopped["not_sent"] == 10
    assert (ended["state"], ended["total"], ended["died"]) == ("finished", 12, 12)
    assert len(runs(place, "any")) == 12 + 2 + 12
