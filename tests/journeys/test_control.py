"""What an operator does to queues and workers, in Chromium, against the whole product running."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Page, expect

from tests.servers import wait_until
from tests.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.worker]


@dataclass
class Batch:
    """A worker of its own, with a queue of its own."""

    stack: Stack
    name: str
    queue: str
    directory: Path

    @property
    def process(self) -> psutil.Process:
        return psutil.Process(self.stack.processes[self.name].pid)

    @property
    def hostname(self) -> str:
        return f"{self.name}@test"

    @property
    def page(self) -> str:
        return f"{self.stack.url}/workers/one/?name={self.name}%40test"

    @property
    def queue_page(self) -> str:
        return f"{self.stack.url}/queues/one/?name={self.queue}"

    def send(self, task: str = "export_report") -> tuple[str, Path, Path]:
        """Publish a job; return its id, the file that says that it runs, and the one that lets it end."""
        started, go = (self.directory / uuid.uuid4().hex for _ in range(2))
        sent = self.stack.app.send_task(f"shop.tasks.{task}", [str(started), str(go)], queue=self.queue)
        return str(sent.id), started, go

    def depth(self) -> int:
        with self.stack.broker.client() as client:  # type: ignore[union-attr]
            return int(client.llen(self.queue))


@pytest.fixture
def batch(stack: Stack, tmp_path: Path) -> Iterator[Batch]:
    """Start a worker that only this test uses, and wait until the console knows it."""
    name = f"batch-{uuid.uuid4().hex[:6]}"
    batch = Batch(stack, name, f"queue-{name}", tmp_path)
    stack.run(
        *(name, "-m", "celery", "-A", "tests.journeys.shop", "worker"),
        *("-c", "2", "-n", batch.hostname, "-Q", batch.queue, "-l", "INFO"),
    )
    wait_until(lambda: b"ready." in stack.log(name), seconds=60, what="the worker to be ready")
    yield batch
    process = stack.processes[name]
    if process.poll() is None:
        stack.kill(name)


def opened(page: Page, address: str, words: str) -> None:
    """Open a page once it has these words; what it shows of has to be reported first."""

    def has_them() -> bool:
        # What is not known yet is not found, and the browser would complain of that.
        if page.request.get(address).status == HTTPStatus.NOT_FOUND:
            return False
        page.goto(address)
        return words in page.inner_text("main")

    wait_until(has_them, seconds=30, what=f"{address} to say {words!r}")


def confirm(page: Page, button: str | re.Pattern[str], why: str) -> None:
    page.get_by_label("Reason").fill(why)
    page.get_by_role("button", name=button).click()


def test_a_worker_grows_shrinks_and_shuts_down_from_its_page(batch: Batch, admin: Page) -> None:
    page = admin
    before = len(batch.process.children())
    opened(page, batch.page, "It runs nothing now")

    page.get_by_role("link", name="Grow…").click()
    expect(page.locator("main")).to_contain_text("It runs up to 2 now, 3 then.")
    confirm(page, "Grow to 3", "the feed is late")
    expect(page.locator("#flash")).to_contain_text("runs one more job at a time")
    wait_until(lambda: len(batch.process.children()) == before + 1, what="one more process")
    expect(page.locator("main")).to_contain_text("prefork, 3", timeout=20_000)

    page.get_by_role("link", name="Shrink…").click()
    confirm(page, re.compile("Shrink to"), "the feed is there")
    expect(page.locator("#flash")).to_contain_text("runs one job less at a time")
    wait_until(lambda: len(batch.process.children()) == before, what="one process less")

    _, started, go = batch.send()
    wait_until(started.exists, what="the job to run")
    opened(page, batch.page, "It runs 1 job")
    page.get_by_role("link", name="Shut down…").click()
    expect(page.locator("main")).to_contain_text("It finishes the 1 job that runs now, and then ends.")
    confirm(page, "Shut down after 1 job", "the machine is replaced")
    expect(page.locator("#flash")).to_contain_text("was told to shut down")
    assert batch.process.is_running()
    go.touch()
    wait_until(lambda: batch.stack.processes[batch.name].poll() is not None, what="the worker to end")
    expect(page.locator("#worker .badges")).to_have_text("Gone", timeout=20_000)

    page.goto(f"{batch.stack.url}/audit/")
    for words in ("to run 1 more job at a time", "to run 1 job less at a time", "to shut down"):
        expect(page.locator("main")).to_contain_text(f"told {batch.hostname} {words}")


def test_a_running_job_is_revoked_and_stopped_from_the_worker_page(batch: Batch, admin: Page) -> None:
    page = admin
    job, started, _ = batch.send()
    wait_until(started.exists, what="the job to run")
    opened(page, batch.page, job[:8])

    page.get_by_role("link", name="Revoke…").click()
    expect(page.locator("main")).to_contain_text(f"It runs on {batch.hostname}")
    page.get_by_label("Stop it where it runs, with SIGTERM").check()
    confirm(page, "Revoke 1 job", "it exports the wrong year")

    expect(page.locator("#flash")).to_contain_text(f"is revoked, and {batch.hostname} stops it")
    expect(page.locator("main")).to_contain_text("Nothing runs at this moment.", timeout=20_000)
    # Once its end is known, a letter of it would be.
    opened(page, f"{batch.stack.url}/jobs/?q={job}", "Revoked")
    assert batch.stack.letters(f"id:{job}") == []


def test_a_queue_is_paused_looked_into_purged_and_resumed(batch: Batch, admin: Page) -> None:
    page = admin
    opened(page, batch.queue_page, "1 consumer takes from it.")

    page.get_by_role("link", name="Pause…").click()
    confirm(page, "Pause 1 queue", "the disk is full")
    expect(page.locator("#flash")).to_contain_text("1 worker stopped taking from it.")
    expect(page.locator("#queue .badges")).to_have_text("Paused")
    sent = [batch.send() for _ in range(3)]
    opened(page, batch.queue_page, "3 messages wait")
    assert not any(started.exists() for _, started, _ in sent)

    page.get_by_role("link", name="Look at the oldest 20").click()
    expect(page.locator("main")).to_contain_text("The oldest 3 of 3 messages")
    expect(page.locator("main")).to_contain_text(sent[0][0][:8])
    assert batch.depth() == 3

    page.goto(batch.queue_page)
    page.get_by_role("link", name="Purge…").click()
    expect(page.locator("main")).to_contain_text("wait on the queue: purged")
    confirm(page, "Purge 3 messages", "they were enqueued twice")
    expect(page.locator("main")).to_contain_text("3 messages purged.", timeout=30_000)
    assert batch.depth() == 0
    letters = batch.stack.letters(f"queue:{batch.queue} state:purged")
    assert sorted(letter["task_id"] for letter in letters) == sorted(job for job, _, _ in sent)

    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#flash")).to_contain_text("1 worker takes from it again.")
    _, started, go = batch.send()
    wait_until(started.exists, what="the job to run after the resume")
    go.touch()


def test_a_queue_is_paused_and_resumed_without_script(batch: Batch, without_script: Page) -> None:
    page = without_script
    opened(page, batch.queue_page, "1 consumer takes from it.")

    page.get_by_role("link", name="Pause…").click()
    confirm(page, "Pause 1 queue", "the disk is full")
    expect(page.locator("#queue .badges")).to_have_text("Paused")
    page.get_by_role("button", name="Resume").click()

    expect(page.locator("#flash")).to_contain_text("1 worker takes from it again.")
