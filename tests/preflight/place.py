"""A project with its own Celery application, as a user has it, and the processes it starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from tests.commands import Commands
from tests.migrated import migrated_database
from tests.servers import wait_until

ROOT = Path(__file__).resolve().parent.parent.parent

APPLICATION = """
import os, time
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
from celery import Celery
from django.conf import settings
from jobs.agent import attach

app = Celery("shop")
app.conf.update(
    broker_url=settings.BROKER_URL,
    broker_transport_options=settings.BROKER_TRANSPORT_OPTIONS,
    broker_connection_retry_on_startup=True,
    task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=1,
    task_time_limit=660, task_soft_time_limit=600, task_ignore_result=True, task_default_queue="shop",
    beat_scheduler="celery.beat:Scheduler",
)
attach(app)

@app.task(name="shop.touch")
def touch(path):
    open(path, "a").write("x")
"""


class Place:
    """A directory with the application ``shop`` and a database, on a broker of its own."""

    def __init__(self, directory: Path, broker_url: str, **environment: str) -> None:
        self.directory = directory
        self.broker_url = broker_url
        self.environment = environment
        self.commands = Commands(lambda: self.env)
        directory.mkdir(parents=True, exist_ok=True)
        self.write(APPLICATION)

    def write(self, text: str, *, name: str = "shop.py") -> None:
        (self.directory / name).write_text(textwrap.dedent(text))

    @property
    def env(self) -> dict[str, str]:
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("JOBS_", "CELERY_", "DJANGO_", "BROKER_", "DATABASE_", "REDIS_"))
        }
        return {
            **kept,
            "JOBS_DATA_DIR": str(self.directory),
            "JOBS_SPOOL_DIRECTORY": str(self.directory / "spool"),
            "SECRET_KEY": "only for tests",
            "BROKER_URL": self.broker_url,
            "DJANGO_SETTINGS_MODULE": "console.settings",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{self.directory}",
            "PYTHONUNBUFFERED": "1",
            "CELERY_SKIP_CHECKS": "true",
            **self.environment,
        }

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run Python to its end."""
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.directory,
            env={**self.env, **environment},
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )

    def manage(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "django", *arguments, **environment)

    def migrate(self) -> Place:
        migrated_database(self.directory / "console.sqlite3")
        return self

    def preflight(self, *arguments: str, **environment: str) -> dict[str, Any]:
        """Return what ``preflight --json`` prints."""
        done = self.manage("preflight", "--app", "shop", "--json", *arguments, **environment)
        assert done.stdout, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        report["status"] = done.returncode
        return report

    def preflight_of_workers(self, name: str, *arguments: str) -> dict[str, Any]:
        """Return the first report that warns under this name: it gives workers a second to answer, and asks again."""
        reports: list[dict[str, Any]] = []

        def warns() -> bool:
            reports.append(self.preflight(*arguments))
            return name in found(reports[-1], "warning")

        wait_until(warns, seconds=90, what=f"the workers to answer, so that {name!r} is warned of")
        return reports[-1]

    def worker(self, *arguments: str, app: str = "shop") -> list[str]:
        """Return the command of a worker, one that does not wait a second for others that it might know."""
        options = ("-l", "INFO", "-c", "1", "--without-mingle", "--without-gossip")
        return [sys.executable, "-m", "celery", "-A", app, "worker", *options, *arguments]


def found(report: dict[str, Any], *levels: str) -> dict[str, dict[str, str]]:
    """Return the findings of some levels by name."""
    return {finding["name"]: finding for finding in report["findings"] if finding["level"] in levels}
