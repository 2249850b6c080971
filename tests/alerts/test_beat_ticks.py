"""A beat that lives and hangs is as silent as one that is dead (row 130)."""

from __future__ import annotations

import os
import threading
import time
from datetime import timedelta

import pytest
from celery import Celery
from celery.beat import Scheduler, Service

from jobs.broker.hooks import LEAST_TICK_AGE_SECONDS, is_ticking
from jobs.models import BeatProcess
from jobs.preflight import beats
from jobs.preflight.beats import Sightings
from tests.factories import NOW
from tests.servers import wait_until


class Hanging(Scheduler):
    """Makes one pass over its schedules and hangs in the second until it is let go."""

    passes = 0
    may_go_on = threading.Event()

    def tick(self, *_args: object, **_options: object) -> float:
        type(self).passes += 1
        if self.passes > 1:
            self.may_go_on.wait(timeout=60)
        return 0.01


@pytest.fixture
def beat(monkeypatch: pytest.MonkeyPatch) -> Service:
    # The product would write rows of this process from a thread of its own, as of a real beat.
    monkeypatch.setitem(beats._started, os.getpid(), Sightings(hostname="test", pid=os.getpid()))
    app = Celery("ticking", broker="memory://", set_as_current=False)
    Hanging.passes = 0
    Hanging.may_go_on.clear()
    return Service(app, max_interval=5, scheduler_cls=Hanging, remote_control=False)


def test_row_130_a_beat_that_hangs_in_a_pass_does_not_tick(beat: Service) -> None:
    thread = threading.Thread(target=beat.start, daemon=True)
    thread.start()
    wait_until(lambda: Hanging.passes == 2, seconds=10, what="the pass that hangs")
    now = time.monotonic()

    assert is_ticking(beat, at=now)
    assert is_ticking(beat, at=now + LEAST_TICK_AGE_SECONDS - 5)
    assert not is_ticking(beat, at=now + LEAST_TICK_AGE_SECONDS + 5)

    Hanging.may_go_on.set()
    beat.stop(wait=True)
    thread.join(timeout=10)
    assert not thread.is_alive()


def test_a_beat_that_waits_for_long_has_three_of_its_waits(beat: Service) -> None:
    beat._last_tick = time.monotonic()
    beat.effective_max_interval = 300

    assert is_ticking(beat, at=beat._last_tick + 899)
    assert not is_ticking(beat, at=beat._last_tick + 901)


def test_one_that_does_not_tell_is_taken_to_tick() -> None:
    assert is_ticking(object(), at=time.monotonic())


@pytest.mark.django_db
def test_row_130_a_beat_that_does_not_tick_is_not_seen(caplog: pytest.LogCaptureFixture) -> None:
    ticks = True
    sightings = Sightings(hostname="a", pid=7, is_ticking=lambda: ticks)
    sightings.look(now=NOW)

    ticks = False
    for seconds in (10, 20):
        sightings.look(now=NOW + timedelta(seconds=seconds))
    assert BeatProcess.objects.get().seen_at == NOW
    assert caplog.text.count("does not go through its schedules") == 1

    ticks = True
    sightings.look(now=NOW + timedelta(seconds=30))
    assert BeatProcess.objects.get().seen_at == NOW + timedelta(seconds=30)
