"""A mail server, a webhook, and rules with nothing but what a test gives them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from console.email_url import email_settings
from jobs.core.words import AlertKind
from jobs.models import AlertRule
from tests.mail_server import MailServer


class Hook(HTTPServer):
    """A webhook that answers with ``status`` and keeps what it got."""

    def __init__(self) -> None:
        self.status, self.location, self.answer = 200, "", b"invalid_payload"
        self.got: list[dict[str, Any]] = []
        super().__init__(("127.0.0.1", 0), HookHandler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/services/T0/secret"


class HookHandler(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append(json.loads(body))
        self.send_response(self.server.status)
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.end_headers()
        self.wfile.write(self.server.answer)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def mail_server(settings) -> Iterator[MailServer]:
    """A mail server that Django's settings point at."""
    server = MailServer().start()
    for name, value in email_settings(server.url).items():
        setattr(settings, name, value)
    yield server
    server.stop()


@pytest.fixture
def hook() -> Iterator[Hook]:
    """A webhook that is up."""
    server = Hook()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


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
