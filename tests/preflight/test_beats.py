"""Beats write down that they live; two at once are found."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import DatabaseError
from django.utils import timezone

from jobs.models import BeatProcess
from jobs.preflight import beats
from jobs.preflight.beats import Sightings
from jobs.preflight.gather_fleet import living_beats
from tests.preflight.place import Place, found
from tests.servers import running, wait_until

START_SECONDS = 90


@pytest.mark.django_db
class TestRows:
    def test_a_sighting_moves_its_own_row(self) -> None:
        now = timezone.now()
        sightings = Sightings(hostname="a", pid=7)

        sightings.write(now=now - timedelta(seconds=10))
        sightings.write(now=now)

        assert [(str(row), row.seen_at) for row in BeatProcess.objects.all()] == [("beat@a:7", now)]

    def test_rows_older_than_a_day_are_pruned(self) -> None:
        now = timezone.now()
        for pid, age in ((1, timedelta(hours=25)), (2, timedelta(hours=23))):
            BeatProcess.objects.create(hostname="a", pid=pid, started_at=now - age, seen_at=now - age)

        Sightings(hostname="a", pid=3).write(now=now)

        assert set(BeatProcess.objects.values_list("pid", flat=True)) == {2, 3}

    def test_only_those_of_the_last_half_minute_are_alive(self) -> None:
        now = timezone.now()
        for pid, seconds in ((1, 29), (2, 31)):
            seen = now - timedelta(seconds=seconds)
            BeatProcess.objects.create(hostname="a", pid=pid, started_at=seen, seen_at=seen)

        assert [beat.name for beat in living_beats(now=now)] == ["beat@a:1"]

    def test_an_end_removes_its_own_row_only(self) -> None:
        now = timezone.now()
        first, second = Sightings(hostname="a", pid=1), Sightings(hostname="a", pid=2)
        first.write(now=now)
        second.write(now=now)

        first.remove()

        assert [str(row) for row in BeatProcess.objects.all()] == ["beat@a:2"]

    def test_an_end_leaves_the_row_of_a_successor_with_its_pid(self) -> None:
        now = timezone.now()
        first = Sightings(hostname="a", pid=1)
        first.write(now=now)
        Sightings(hostname="a", pid=1).write(now=now)

        first.remove()

        assert BeatProcess.objects.count() == 1


def test_a_database_that_is_away_is_said_once_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written, tries = threading.Event(), []

    def write(self: Sightings, *, now: Any) -> None:
        tries.append(now)
        if len(tries) < 4:
            raise DatabaseError("gone")
        written.set()

    monkeypatch.setattr(Sightings, "write", write)
    monkeypatch.setattr(Sightings, "remove", lambda self: None)
    sightings = Sightings(hostname="a", pid=7, every_seconds=0.01)

    sightings.start()
    assert written.wait(20)
    sightings.end()

    assert not sightings.is_alive()
    assert len([record for record in caplog.records if "gone" in record.message]) == 1


def test_a_beat_that_sends_two_signals_starts_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Sightings] = []
    monkeypatch.setattr(Sightings, "start", lambda self: started.append(self))
    monkeypatch.setattr(beats, "_started", {})
    monkeypatch.setattr(beats.atexit, "register", lambda call: call)

    beats.start()
    beats.start()

    assert [sightings.pid for sightings in started] == [os.getpid()]


def test_a_fork_of_a_process_with_a_beat_starts_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Sightings] = []
    monkeypatch.setattr(Sightings, "start", lambda self: started.append(self))
    monkeypatch.setattr(beats, "_started", {os.getppid(): Sightings(hostname="a", pid=os.getppid())})
    monkeypatch.setattr(beats.atexit, "register", lambda call: call)

    beats.start()

    assert [sightings.pid for sightings in started] == [os.getpid()]


@contextmanager
def beat(place: Place, name: str) -> Iterator[Path]:
    """Run a real beat."""
    log = place.directory / f"{name}.log"
    command = [place.worker()[0], "-m", "celery", "-A", "shop", "beat", "-l", "INFO", "--pidfile="]
    with running(command, env=place.env, log=log, cwd=place.directory):
        yield log


def names(place: Place) -> list[str]:
    code = "from jobs.models import BeatProcess; print(*BeatProcess.objects.order_by('pk'))"
    return place.commands.run("shell", "-v", "0", "-c", code).split()


@pytest.mark.worker
def test_row_113_two_real_beats_are_seen_and_both_are_named(place: Place) -> None:
    with beat(place, "first"):
        wait_until(lambda: len(names(place)) == 1, seconds=START_SECONDS, what="the first beat to be seen")
        alone = place.preflight()
        with beat(place, "second"):
            wait_until(
                lambda: len(names(place)) == 2, seconds=START_SECONDS, what="the second beat to be seen"
            )
            both = names(place)
            report = place.preflight()
        wait_until(lambda: names(place) == both[:1], seconds=START_SECONDS, what="the second beat to leave")

    assert both[0] in found(alone, "ok")["beat"]["found"]
    error = found(report, "error")["beat"]
    assert all(name in error["found"] for name in both)
    assert report["status"] == 1
    assert names(place) == []


@pytest.mark.worker
def test_a_beat_inside_a_worker_is_seen(place: Place) -> None:
    log = place.directory / "worker.log"

    with running(
        place.worker("-B"), env={"JOBS_PREFLIGHT": "refuse", **place.env}, log=log, cwd=place.directory
    ):
        wait_until(lambda: len(names(place)) == 1, seconds=START_SECONDS, what="the embedded beat to be seen")
