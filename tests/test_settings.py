"""Settings come from the environment, and a wrong one is refused in a sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def manage(directory: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run manage.py with nothing but ``environment`` set."""
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "JOBS_DATA_DIR": str(directory),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def setting(directory: Path, expression: str, **environment: str) -> str:
    """Return what an expression over the settings prints."""
    code = f"from django.conf import settings; print({expression})"
    done = manage(directory, "shell", "-v", "0", "-c", code, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("DEBUG", "maybe", "DEBUG='maybe' is not a switch. Use true or false."),
        ("JOBS_LEASE_SECONDS", "soon", "JOBS_LEASE_SECONDS='soon' is not a number. Write for instance 10."),
        ("JOBS_LEASE_SECONDS", "0", "JOBS_LEASE_SECONDS='0' must be above zero. Write for instance 10."),
        ("JOBS_LEASE_SECONDS", "nan", "JOBS_LEASE_SECONDS='nan' must be above zero. Write for instance 10."),
        ("JOBS_PURGE_DEADLINE_DAYS", "-1", "JOBS_PURGE_DEADLINE_DAYS='-1' must be above zero."),
        ("JOBS_LOG_LEVEL", "LOUD", "JOBS_LOG_LEVEL='LOUD' is not known. Use one of DEBUG, INFO,"),
        ("CONSOLE_URL", "jobs.example", "CONSOLE_URL='jobs.example' is not the address of a page."),
        ("SECRET_KEY_FILE", "/nowhere/key", "SECRET_KEY_FILE='/nowhere/key' cannot be read (No such file"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused(tmp_path: Path, name: str, value: str, message: str) -> None:
    done = manage(tmp_path, "check", **{name: value})

    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_database_address_that_cannot_be_read_is_refused_without_its_password(tmp_path: Path) -> None:
    done = manage(tmp_path, "check", DATABASE_URL="oracul://jobs:hunter2@db/jobs")

    assert done.returncode == 1
    assert "DATABASE_URL cannot be read." in done.stderr
    assert "hunter2" not in done.stderr


def test_a_data_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    done = manage(tmp_path, "check", JOBS_DATA_DIR=str(tmp_path / "file"))

    assert done.returncode == 1
    assert "SECRET_KEY is not set and" in done.stderr


def test_secret_key_is_made_once_and_kept_from_others(tmp_path: Path) -> None:
    first = setting(tmp_path, "settings.SECRET_KEY")
    second = setting(tmp_path, "settings.SECRET_KEY")

    assert first == second
    assert len(first) > 50
    assert (tmp_path / "secret-key").stat().st_mode & 0o077 == 0


def test_a_secret_may_be_given_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "given").write_text("from a file\n")

    assert setting(tmp_path, "settings.SECRET_KEY", SECRET_KEY_FILE=str(tmp_path / "given")) == "from a file"


def test_defaults_are_closed_and_local(tmp_path: Path) -> None:
    shown = setting(
        tmp_path,
        "settings.DEBUG, settings.ALLOWED_HOSTS, settings.DATABASES['default']['NAME'], settings.BROKER_URL",
    )

    assert shown == (
        f"False ['localhost', '127.0.0.1', '[::1]', '127.0.0.1'] {tmp_path / 'console.sqlite3'} "
        "redis://127.0.0.1:6390/0"
    )


def test_a_command_of_a_checkout_sends_where_its_workers_listen(tmp_path: Path) -> None:
    (tmp_path / "broker-url").write_text("redis://127.0.0.1:6391/0\n")

    shown = setting(
        tmp_path,
        "(lambda app: (app.main, app.conf.broker_url, app.conf.task_default_queue))"
        "(__import__('celery').current_app)",
    )

    assert shown == "('console', 'redis://127.0.0.1:6391/0', 'default')"


def test_the_address_of_the_console_is_allowed_and_trusted(tmp_path: Path) -> None:
    shown = setting(
        tmp_path,
        "settings.CONSOLE_URL, settings.ALLOWED_HOSTS[-1], settings.CSRF_TRUSTED_ORIGINS, settings.SESSION_COOKIE_SECURE",
        CONSOLE_URL="https://jobs.example:8443/office/",
    )

    assert shown == "https://jobs.example:8443/office jobs.example ['https://jobs.example:8443'] True"


def test_commands_find_the_redis_that_up_started(tmp_path: Path) -> None:
    (tmp_path / "broker-url").write_text("redis://127.0.0.1:6391/0\n")

    assert (
        setting(tmp_path, "settings.BROKER_URL, settings.BROKER_IS_EMBEDDED")
        == "redis://127.0.0.1:6391/0 True"
    )


def test_a_broker_that_is_given_wins(tmp_path: Path) -> None:
    (tmp_path / "broker-url").write_text("redis://127.0.0.1:6391/0\n")

    shown = setting(
        tmp_path, "settings.BROKER_URL, settings.BROKER_IS_EMBEDDED", BROKER_URL="amqp://mq.example//"
    )

    assert shown == "amqp://mq.example// False"
