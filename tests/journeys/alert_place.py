"""Real runops processes that judge rules, a real mail server, and jobs that die."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from celery import Celery
from django.utils import timezone

from jobs.agent.wire import Record
from jobs.core.words import AlertState
from jobs.models import Alert, AlertRule, WorkerBoot
from tests.factories import make_record
from tests.mail_server import MailServer
from tests.runops_place import ROOT, RunopsPlace
from tests.servers import running, wait_until

Watch = Callable[..., AlertRule]


class AlertPlace(RunopsPlace):
    """A place whose runops judge each half second and mail to ``mails``."""

    def __init__(self) -> None:
        super().__init__()
        self.mails = MailServer()
        self.every_seconds = "0.5"

    @property
    def env(self) -> dict[str, str]:
        return {
            **super().env,
            "EMAIL_URL": self.mails.url,
            "ALERT_EMAILS": "oncall@shop.example",
            "CONSOLE_URL": "http://testserver",
            "JOBS_ENVIRONMENT": "production",
            "JOBS_ALERT_EVERY_SECONDS": self.every_seconds,
        }


def deaths(count: int, *, seconds_ago: float = 0.0) -> list[Record]:
    """Return what an agent reports of so many jobs that died of one thing."""
    at = timezone.now().timestamp() - seconds_ago
    return [
        make_record(
            kwargs={"order_id": number},
            error_type="smtplib.SMTPServerDisconnected",
            error="Connection unexpectedly closed",
            at=at,
        )
        for number in range(count)
    ]


def wait_a_few_rounds(place: AlertPlace, rounds: int = 4) -> None:
    """Wait until the rules were judged, and what is due sent, so many times more."""
    for _ in range(rounds):
        before = timezone.now()
        wait_until(
            lambda before=before: AlertRule.objects.filter(evaluated_at__gt=before).exists(),
            seconds=20,
            what="another judgement",
        )


def grows(place: AlertPlace) -> None:
    """Let 30 jobs die, and wait until that is known."""
    place.report(deaths(30))
    wait_until(lambda: Alert.objects.filter(state=AlertState.FIRING).exists(), seconds=30, what="the alert")


@contextmanager
def worker_on_critical(place: AlertPlace) -> Iterator[subprocess.Popen[bytes]]:
    """Run a real worker that consumes the queue critical, is ready and has reported."""
    command = [
        *(sys.executable, "-m", "celery", "-A", "tests.journeys.shop", "worker"),
        *("-c", "1", "-Q", "critical", "-n", "only@one", "-l", "INFO"),
    ]
    log = place.directory / "worker.log"
    env = {**place.env, "SHOP_SWITCH": str(place.directory / "fixed"), "JOBS_PREFLIGHT": "off"}
    with running(command, env=env, log=log, cwd=ROOT) as worker:
        wait_until(
            lambda: WorkerBoot.objects.filter(hostname="only@one").exists(), seconds=60, what="the worker"
        )
        # It reports while it still starts.
        wait_until(lambda: b" ready." in log.read_bytes(), seconds=60, what="the worker to be ready")
        yield worker


def send_jobs(place: AlertPlace, count: int, *, queue: str) -> None:
    with Celery("publisher", broker=place.redis.url, set_as_current=False) as app:
        for number in range(count):
            app.send_task(
                "shop.tasks.send_receipt", kwargs={"order_id": number}, queue=queue, ignore_result=True
            )
