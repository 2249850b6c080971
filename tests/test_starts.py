"""What a process loads when it starts: people and scripts wait for it, and it stays in memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.servers import free_port

ROOT = Path(__file__).resolve().parent.parent
# Runs the checks of each command as the command itself does, and says which commands they refuse.
CHECKED = """
import sys, django; django.setup()
from django.core.management import load_command_class
from django.core.management.base import SystemCheckError
for name in ("dead_letters", "mark_deploy", "preflight", "queue_health", "runops"):
    command = load_command_class("jobs", name)
    try:
        command.check(tags=command.requires_system_checks)
    except SystemCheckError as error:
        print(name, "jobs.E051" in str(error))
print("pages", "console.urls" in sys.modules)
"""


def python(code: str, tmp_path: Path, **environment: str) -> str:
    """Return what a program printed that runs in the project."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "console.settings",
            "JOBS_DATA_DIR": str(tmp_path),
            "BROKER_URL": f"redis://127.0.0.1:{free_port()}/0",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_commands_check_the_settings_they_use_and_load_no_page(tmp_path: Path) -> None:
    assert python(CHECKED, tmp_path).splitlines() == ["pages False"]
    assert python(CHECKED, tmp_path, JOBS_OUTBOX_DATABASES="typo").splitlines() == [
        *("dead_letters True", "mark_deploy True", "preflight True", "queue_health True", "runops True"),
        "pages False",
    ]


def test_what_only_reads_the_database_loads_no_client_of_the_broker(tmp_path: Path) -> None:
    code = """
import sys, django; django.setup()
from django.core.management import load_command_class
for name in ("dead_letters", "mark_deploy"):
    load_command_class("jobs", name)
    print(name, "redis" in sys.modules)
"""

    assert python(code, tmp_path).splitlines() == ["dead_letters False", "mark_deploy False"]


def test_queue_health_does_not_load_what_only_prometheus_reads(tmp_path: Path) -> None:
    code = """
import sys, django; django.setup()
from django.core.management import load_command_class
load_command_class("jobs", "queue_health")
print("jobs.queue_report" in sys.modules, "prometheus_client" in sys.modules)
"""

    assert python(code, tmp_path).split() == ["True", "False"]


def test_the_web_server_has_loaded_every_page_before_it_is_asked_for_one(tmp_path: Path) -> None:
    code = """
import sys, console.wsgi
before = set(sys.modules)
from django.urls import get_resolver
print(len(get_resolver().url_patterns) > 2, sorted(set(sys.modules) - before))
"""

    assert python(code, tmp_path).split() == ["True", "[]"]
