"""Processes are killed with signal 9 at twenty random moments: every job ends done or dead, each effect once.

``CHAOS_SEED`` repeats what was killed, not when exactly.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from django.contrib.sessions.models import Session

from jobs.core.words import LedgerState
from jobs.models import IdempotencyRecord
from tests.idempotency.keyed_place import KeyedPlace
from tests.migrated import migrated_database

pytestmark = [pytest.mark.worker, pytest.mark.postgres, pytest.mark.timeout(600)]

KILLS = 20
# Of the twenty, those in which the parent goes too.
WORKER_KILLS = 5
JOBS = 150


@pytest.mark.parametrize("vendor", ["sqlite", "postgresql"])
def test_each_effect_happens_once_whatever_is_killed_when(vendor, request, tmp_path, django_db_blocker):
    seed = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(2**32))
    dice = random.Random(seed)
    place = KeyedPlace(tmp_path, _database_url(vendor, request, tmp_path))
    try:
        place.start()
        for number in range(JOBS):
            place.send("keys.outside", number)
            place.send("keys.within", number)
        kills = ["worker"] * WORKER_KILLS + ["child"] * (KILLS - WORKER_KILLS)
        dice.shuffle(kills)
        for kill in kills:
            time.sleep(dice.uniform(0.1, 0.7))
            if place.is_idle():
                for number in range(JOBS):
                    # The same keys once more: nothing may happen but a look into the ledger.
                    place.send(dice.choice(["keys.outside", "keys.within"]), number)
            place.start_again_if_dead()
            if kill == "worker":
                place.kill_worker()
            else:
                place.kill_child(dice)
        place.start_again_if_dead()
        place.wait_until_idle(seconds=240)

        with django_db_blocker.unblock(), place.database():
            _check(place, told=f"CHAOS_SEED={seed}, kills: {kills}")
    finally:
        place.close()


def _check(place: KeyedPlace, *, told: str) -> None:
    done = {
        (task, key)
        for task, key in IdempotencyRecord.objects.filter(state=LedgerState.DONE).values_list("task", "key")
    }
    dead = {
        (record.task, record.message.headers["jobs-idempotency-key"])
        for record in place.records()
        if record.kind == "death" and record.message is not None
    }
    sent = {(task, f"effect:{number}") for task in ("keys.outside", "keys.within") for number in range(JOBS)}
    # Row 69: kombu takes a message off Redis before it notes that it has it, one at a time.
    lost = sorted(sent - done - dead)
    assert len(lost) <= place.lost_workers, f"neither done nor dead: {lost}; {told}"
    assert len(place.killed) >= KILLS / 2, told

    # In one transaction there is no window.
    written = [int(text) for text in Session.objects.values_list("session_data", flat=True)]
    within = {int(key.split(":")[1]) for task, key in done if task == "keys.within"}
    assert sorted(written) == sorted(within), told

    # Under a lease there is one: a process that was killed after the effect of the job it ran then, before
    # the ledger had its record. Nothing else makes an effect happen twice.
    effects = place.effects()
    assert {int(key.split(":")[1]) for task, key in done if task == "keys.outside"} <= set(effects), told
    last_begun = {line.pid: line for line in place.lines("begin")}
    runs: dict[int, list[int]] = {}
    for line in place.lines("effect"):
        runs.setdefault(line.number, []).append(line.pid)
    for number, pids in runs.items():
        for pid in pids[:-1]:
            assert pid in place.killed, f"{number} happened twice, and {pid} was not killed; {told}"
            assert last_begun[pid].number == number, f"{number} happened twice outside the window; {told}"


def _database_url(vendor: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if vendor == "sqlite":
        return f"sqlite:///{migrated_database(tmp_path / 'keys.sqlite3')}"
    return str(request.getfixturevalue("postgres_server").create_migrated_database("keys_chaos"))
