"""A real SMTP server on a free loopback port, which keeps what it takes and can be told to refuse."""

from __future__ import annotations

import email
import email.policy
from dataclasses import dataclass
from email.message import EmailMessage
from typing import Any

from aiosmtpd.controller import Controller

from tests.servers import free_port


@dataclass
class Received:
    """One mail as it came: its envelope, and what is in it."""

    recipients: list[str]
    message: EmailMessage

    @property
    def subject(self) -> str:
        # A folded one may begin with the blank of its fold.
        return str(self.message["Subject"]).strip()

    @property
    def text(self) -> str:
        body = self.message.get_body(("plain",))
        assert body is not None
        return str(body.get_content())

    @property
    def html(self) -> str:
        body = self.message.get_body(("html",))
        assert body is not None
        return str(body.get_content())


class MailServer:
    """Can be stopped and started again on its port; ``refusals`` are answers to RCPT by address."""

    def __init__(self) -> None:
        self.port = free_port()
        self.received: list[Received] = []
        self.refusals: dict[str, str] = {}
        # The answer to the content of every mail, where it is not taken.
        self.answer = ""
        # Takes the mail and then breaks off, without an answer.
        self.breaks_off = False
        self._controller: Controller | None = None

    @property
    def url(self) -> str:
        return f"smtp://127.0.0.1:{self.port}"

    def start(self) -> MailServer:
        self._controller = Controller(self, hostname="127.0.0.1", port=self.port, ready_timeout=10)
        self._controller.start()
        return self

    def stop(self) -> None:
        if self._controller is not None:
            self._controller.stop()
            self._controller = None

    async def handle_RCPT(  # noqa: N802 - aiosmtpd calls it so
        self, _server: Any, _session: Any, envelope: Any, address: str, _options: Any
    ) -> str:
        if refusal := self.refusals.get(address):
            return refusal
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802
        if self.answer:
            return self.answer
        parsed = email.message_from_bytes(envelope.content, policy=email.policy.default)
        assert isinstance(parsed, EmailMessage)
        self.received.append(Received(list(envelope.rcpt_tos), parsed))
        if self.breaks_off:
            server.transport.abort()
        return "250 taken"
