"""Ten dead letters with one key, replayed together: agent, collector, runner, worker and command, for real."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.migrated import migrated_database
from tests.servers import wait_until
from tests.stack import Stack

pytestmark = [pytest.mark.worker, pytest.mark.timeout(400)]

COPIES = 10


class OneOrder(Stack):
    """The product with a worker of ``tests.idempotency.shop``; its database is the console's."""

    @property
    def notes(self) -> Path:
        return self.directory / "notes"

    @property
    def env(self) -> dict[str, str]:
        return {
            **super().env,
            "SHOP_NOTES": str(self.notes),
            "SHOP_SWITCH": str(self.switch),
            "JOBS_SPOOL_DIRECTORY": str(self.directory / "spool"),
            "JOBS_PREFLIGHT": "off",
        }

    def start(self) -> OneOrder:
        self.parts.callback(self.broker.remove)
        self.broker.start()
        migrated_database(self.directory / "console.sqlite3")
        self.run("worker", "-m", "celery", "-A", "tests.idempotency.shop", "worker", "-c", "3", "-l", "INFO")
        self.run("runops", "manage.py", "runops")
        wait_until(lambda: b"ready." in self.log("worker"), seconds=90, what="the worker to be ready")
        return self

    def said(self, word: str) -> int:
        text = self.notes.read_text() if self.notes.exists() else ""
        return sum(line.startswith(f"{word} ") for line in text.splitlines())


@pytest.fixture
def stack() -> Iterator[OneOrder]:
    stack = OneOrder()
    try:
        yield stack.start()
    finally:
        stack.stop()


def test_of_ten_letters_with_one_key_one_runs_and_nine_are_already_done(stack: OneOrder) -> None:
    """Row 144: a replay that bypassed the key would send the receipt ten times."""
    for number in range(COPIES):
        stack.app.send_task(
            "keys.broken", (number, 1), queue="celery", headers={"jobs-idempotency-key": "order:1"}
        )
    wait_until(lambda: len(stack.letters("state:dead")) == COPIES, seconds=120, what="ten letters")
    stack.switch.touch()

    ended = stack.command(
        *("dead_letters", "replay", "--query", "task:keys.broken", "--yes", "--json", "--why", "fixed"),
        check=False,
    )

    assert ended.returncode == 0, (ended.stdout, ended.stderr)
    counts = json.loads(ended.stdout.strip().splitlines()[-1])
    assert counts["outcome"] == "Of 10 replayed: 1 done, 9 already done."
    assert (counts["done"], counts["already_done"], counts["died"]) == (1, COPIES - 1, 0)
    assert stack.said("effect") == 1
    assert {letter["state"] for letter in stack.letters()} == {"resolved"}
