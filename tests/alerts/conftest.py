"""A mail server, and rules with nothing but what a test gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from console.email_url import email_settings
from jobs.core.words import AlertKind
from jobs.models import AlertRule
from tests.mail_server import MailServer


@pytest.fixture
def mail_server(settings) -> Iterator[MailServer]:
    """A mail server that Django's settings point at."""
    server = MailServer().start()
    for name, value in email_settings(server.url).items():
        setattr(settings, name, value)
    yield server
    server.stop()


@pytest.fixture
def only_rule(settings) -> Callable[..., AlertRule]:
    """Makes the one rule that is enabled: it fires and recovers at once unless the test says otherwise."""
    settings.ALERT_EMAILS = ["oncall@shop.example"]
    settings.ENVIRONMENT_NAME = "production"
    settings.CONSOLE_URL = "https://jobs.shop.example"

    def make(kind: AlertKind, **fields: Any) -> AlertRule:
        AlertRule.objects.update(is_enabled=False)
        values = {
            "name": "Watched",
            "recovery_hold_seconds": 0,
            "cool_down_seconds": 0,
            "reminder_seconds": 0,
            **fields,
        }
        return AlertRule.objects.create(kind=kind.value, **values)

    return make
