"""Parts of the product are killed, frozen and started again at random while it works: nothing is lost, nothing sent twice.

The seed is in the assertion's message; ``CHAOS_SEED`` repeats the order of what was done, not its timing.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from kombu.transport.redis import Channel

from jobs.agent.wire import DEAD_QUEUE
from jobs.broker.inbox import TAKEN_LIST
from tests.migrated import migrated_database
from tests.servers import wait_until
from tests.stack import Stack

pytestmark = [pytest.mark.worker, pytest.mark.timeout(300)]

LATE, EARLY = 240, 80
CONCURRENCY = 2
LEASE_SECONDS = 2.0
# Letters a second in the replay under attack, so that it takes a while.
RATE = 15


class Chaos(Stack):
    """The product with a shop of its own, and ways to disturb it."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.log_of_actions: list[str] = []
        self.worker_kills = 0
        self.frozen: list[psutil.Process] = []

    @property
    def env(self) -> dict[str, str]:
        return {
            **super().env,
            "SHOP_NOTES": str(self.notes),
            "JOBS_SPOOL_DIRECTORY": str(self.directory / "spool"),
            "JOBS_LEASE_SECONDS": str(LEASE_SECONDS),
        }

    @property
    def notes(self) -> Path:
        """What the jobs wrote down."""
        return self.directory / "notes"

    def start(self) -> Chaos:
        self.parts.callback(self.broker.remove)
        self.broker.start()
        migrated_database(self.directory / "console.sqlite3")
        self.start_runops()
        return self

    def start_worker(self) -> None:
        name = f"worker-{self.worker_kills}"
        command = ("-m", "celery", "-A", "tests.chaos_shop", "worker", "-c", str(CONCURRENCY), "-l", "INFO")
        self.run("worker", *command)
        self.log_of_actions.append(f"start {name}")

    def start_runops(self, name: str = "runops") -> None:
        self.run(name, "manage.py", "runops")

    # What is done to it

    def kill_pool_child(self) -> None:
        """The out-of-memory killer takes the process that runs a job."""
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.processes["worker"].pid).children()
            if children:
                self.random.choice(children).kill()

    def kill_worker(self) -> None:
        """The whole worker goes, parent and children."""
        self.kill("worker")
        self.worker_kills += 1
        self.start_worker()

    def kill_runops(self) -> None:
        self.kill("runops")
        self.start_runops()

    def kill_broker(self) -> None:
        """Redis goes; what it confirmed is in its file."""
        process = self.broker.process
        assert process is not None
        process.kill()
        process.wait(timeout=10)
        time.sleep(self.random.uniform(0, 0.5))
        self.broker.start()

    def freeze_runops(self) -> None:
        """It stands still for longer than its lease; another takes over, and then it wakes up and believes it still holds it."""
        frozen = psutil.Process(self.processes["runops"].pid)
        frozen.suspend()
        self.kill_if_running("standby")
        self.start_runops("standby")
        time.sleep(LEASE_SECONDS + self.random.uniform(0.5, 1.5))
        frozen.resume()

    def kill_if_running(self, name: str) -> None:
        process = self.processes.get(name)
        if process is not None and process.poll() is None:
            self.kill(name)

    def disturb(
        self, actions: list[Callable[[], None]], *, seconds: float, enough: Callable[[], bool]
    ) -> None:
        """Do one thing after another, until the time is over or there is nothing left to disturb."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not enough():
            time.sleep(self.random.uniform(0.2, 1.2))
            action = self.random.choice(actions)
            self.log_of_actions.append(action.__name__)
            action()
            if "worker" in self.processes and self.processes["worker"].poll() is not None:
                # Its children were killed before it had started them all.
                self.start_worker()

    # What is left

    def give_back(self) -> None:
        """Give back what dead workers had fetched, as kombu does after the visibility timeout."""
        with self.broker.client() as client:
            # One that was killed while it gave back what others left holds this for five minutes.
            client.delete("unacked_mutex")
        with self.app.connection_for_write() as connection:
            channel: Channel = connection.channel()
            channel.visibility_timeout = -1
            while channel.client.zcard(channel.unacked_index_key):
                channel.qos.restore_visible(num=1_000, interval=1)

    def received(self) -> set[str]:
        """The ids of the jobs that some worker knew of."""
        return set(re.findall(r"\[([0-9a-f-]{36})\] received", self.log("worker").decode(errors="replace")))

    @property
    def fetches_cut_off(self) -> int:
        """How often something was killed while it may have fetched a message."""
        return 1 + sum(action in {"kill_worker", "kill_broker"} for action in self.log_of_actions)

    def noted(self, word: str) -> Counter[int]:
        """Count by number the jobs that wrote ``word``."""
        lines = self.notes.read_text().split("\n") if self.notes.exists() else []
        return Counter(int(line.split()[1]) for line in lines if line.startswith(f"{word} "))

    def waiting(self, *names: str) -> int:
        with self.broker.client() as client:
            return sum(client.llen(name) for name in names)

    def queued(self) -> list[dict[str, Any]]:
        with self.broker.client() as client:
            return [json.loads(item) for item in client.lrange("celery", 0, -1)]

    def is_quiet(self) -> bool:
        """Whether every job ended and every record was collected: nothing was anywhere, for half a second.

        A message that a worker takes off its queue is nowhere for a moment, and so is a job that was acknowledged early.
        """
        for _ in range(6):
            if self.is_something_there():
                return False
            time.sleep(0.1)
        return True

    def is_something_there(self) -> bool:
        with self.broker.client() as client, client.pipeline() as pipeline:
            # At one moment, for messages go from one to the other.
            pipeline.hlen("unacked")
            for name in ("celery", DEAD_QUEUE, TAKEN_LIST):
                pipeline.llen(name)
            counts = pipeline.execute()
        return any(counts) or any(map(size_of, (self.directory / "spool").glob("*/*.jsonl")))


def size_of(path: Path) -> int:
    """Return how many bytes a file has; none when it was removed since it was found."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@pytest.fixture
def chaos() -> Iterator[Chaos]:
    seed = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(10**6))
    stack = Chaos(seed)
    stack.log_of_actions.append(f"seed {seed}")
    try:
        yield stack.start()
    finally:
        for process in stack.processes.values():
            # A frozen one would not hear that it shall end.
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
        stack.stop()


def test_nothing_is_lost_and_no_letter_is_sent_twice(chaos: Chaos) -> None:
    # Given jobs, late and early acknowledged, a third of which fails
    late, early = chaos.app.signature("shop.late"), chaos.app.signature("shop.early")
    ids = {}
    for number in range(LATE + EARLY):
        signature = late if number < LATE else early
        ids[number] = signature.apply_async(kwargs={"number": number}).id
    chaos.start_worker()

    # When parts are killed and frozen while they run
    chaos.disturb(
        [chaos.kill_pool_child, chaos.kill_worker, chaos.kill_runops, chaos.kill_broker, chaos.freeze_runops],
        seconds=18,
        enough=lambda: chaos.waiting("celery") == 0,
    )
    chaos.kill("worker")
    chaos.give_back()
    chaos.start_worker()
    wait_until(chaos.is_quiet, seconds=60, what=f"the end of all jobs; {chaos.log_of_actions}")

    # Then each job ended once: it was done, or is one letter
    told = str(chaos.log_of_actions)
    letters = chaos.letters()
    numbers = Counter(letter["kwargs"]["number"] for letter in letters)
    done = chaos.noted("done")
    ended = set(done) | set(numbers)
    received = chaos.received()
    assert [n for n in range(LATE) if n not in ended and ids[n] in received] == [], told
    # kombu takes a message off Redis before it writes down that it has it: a kill in between loses
    # the one message, before any worker knew of it. Nothing above kombu can help that.
    assert len([n for n in ids if ids[n] not in received]) <= chaos.fetches_cut_off, told
    assert [number for number, count in numbers.items() if count > 1] == [], told
    assert len({letter["task_id"] for letter in letters}) == len(letters), told
    # An early acknowledged job that ran when its whole worker was killed is known to nobody.
    gone = [n for n in range(LATE, LATE + EARLY) if n not in ended and ids[n] in received]
    assert len(gone) <= CONCURRENCY * (chaos.worker_kills + 1), told

    # When all letters are replayed, and runops and the broker are disturbed meanwhile
    chaos.kill("worker")
    del chaos.processes["worker"]
    chaos.switch.touch()
    chaos.command("dead_letters", "replay", "--query", "", "--rate", str(RATE), "--yes", "--no-wait")
    chaos.disturb(
        [chaos.kill_runops, chaos.freeze_runops, chaos.kill_broker],
        seconds=len(letters) / RATE,
        enough=lambda: chaos.waiting("celery") == len(letters),
    )
    wait_until(
        lambda: chaos.waiting("celery") >= len(letters),
        seconds=60,
        what=f"all letters to be sent; {chaos.log_of_actions}",
    )

    # Then each is sent once
    sent = Counter(message["headers"]["jobs-replay-of"] for message in chaos.queued())
    assert sent == Counter({letter["id"]: 1 for letter in letters}), str(chaos.log_of_actions)

    # And when a worker runs them, all letters are resolved
    chaos.start_worker()
    wait_until(
        lambda: len(chaos.letters("state:resolved")) == len(letters),
        seconds=60,
        what=f"all letters to be resolved; {chaos.log_of_actions}",
    )
    assert chaos.letters("state:dead,replaying") == []
