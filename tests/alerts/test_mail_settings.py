"""EMAIL_URL, ALERT_EMAILS and EMAIL_FROM: what they mean, and that a wrong one stops the start with a sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from console.email_url import email_settings

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("smtp://mail.example", {"EMAIL_PORT": 25, "EMAIL_USE_TLS": False, "EMAIL_USE_SSL": False}),
        ("smtp://a:b@mail.example:587", {"EMAIL_PORT": 587, "EMAIL_USE_TLS": True, "EMAIL_HOST_USER": "a"}),
        ("smtp://a:b@mail.example?tls=off", {"EMAIL_USE_TLS": False, "EMAIL_HOST_PASSWORD": "b"}),
        ("smtp://mail.example?tls=on", {"EMAIL_USE_TLS": True}),
        ("submission://a:p%40ss@mail.example", {"EMAIL_PORT": 587, "EMAIL_HOST_PASSWORD": "p@ss"}),
        ("smtps://a:b@mail.example", {"EMAIL_PORT": 465, "EMAIL_USE_SSL": True, "EMAIL_USE_TLS": False}),
        ("smtp://[::1]:2525", {"EMAIL_HOST": "::1", "EMAIL_PORT": 2525, "EMAIL_TIMEOUT": 10}),
        ("console://", {"EMAIL_BACKEND": "django.core.mail.backends.console.EmailBackend"}),
        ("file:///var/mails", {"EMAIL_FILE_PATH": "/var/mails"}),
        ("", {"EMAIL_BACKEND": "django.core.mail.backends.dummy.EmailBackend"}),
    ],
)
def test_an_address_of_a_mail_server_is_read(url: str, expected: dict[str, Any]) -> None:
    found = email_settings(url)

    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    "url",
    [
        "mail.example",
        "http://a:hunter2@mail.example",
        "smtp://a:hunter2@mail.example:port",
        "smtp://",
        "smtp://a:hunter2@mail.example?tls=maybe",
        "smtps://a:hunter2@mail.example?tls=on",
        "smtp://a:hunter2@mail.example?ssl=on",
        "file://relative/path",
        "smtp://[",
    ],
)
def test_one_that_cannot_be_read_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ValueError, match="EMAIL_URL") as caught:
        email_settings(url)
    assert "hunter2" not in str(caught.value)


def started(**env: str) -> subprocess.CompletedProcess[str]:
    """Load the settings in a process of their own and print who mails from where to whom."""
    code = "from console import settings as s; print(s.DEFAULT_FROM_EMAIL, s.ALERT_EMAILS, s.EMAIL_BACKEND)"
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("EMAIL", "ALERT", "CONSOLE"))
    }
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, "SECRET_KEY": "only for tests", "PYTHONPATH": str(ROOT), **env},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_settings_are_those_of_the_environment() -> None:
    done = started(
        EMAIL_URL="smtp://mail.example",
        ALERT_EMAILS="a@shop.example, b@shop.example",
        CONSOLE_URL="https://jobs.shop.example",
    )

    assert done.stdout.split("\n")[0] == (
        "Dead Letter Office <dead-letter-office@jobs.shop.example> ['a@shop.example', 'b@shop.example']"
        " django.core.mail.backends.smtp.EmailBackend"
    )


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("EMAIL_URL", "pop3://mail.example", "'pop3', which is not known"),
        ("ALERT_EMAILS", "a@shop.example, everybody", "names 'everybody', which is not an e-mail address"),
        ("EMAIL_FROM", "nobody", "is not an e-mail address"),
        ("JOBS_ALERT_EVERY_SECONDS", "0", "must be above zero"),
    ],
)
def test_a_wrong_setting_stops_the_start_with_a_sentence(name: str, value: str, words: str) -> None:
    done = started(**{name: value})

    assert done.returncode != 0
    assert words in done.stderr
