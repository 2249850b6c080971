"""The two servers that the shop talks to: a mail relay and a payment provider, on loopback."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from console.ports import LOOPBACK

# The provider's bad half of a minute; longer than all attempts of a job.
FLAP_SECONDS = 20
# How soon a server sees that it shall stop.
POLL_SECONDS = 0.05


class PaymentHandler(BaseHTTPRequestHandler):
    """Accepts every charge, or answers 503."""

    server: PaymentProvider

    def do_POST(self) -> None:
        """Answer ``POST /charges``."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.server.is_down():
            self.send_error(503, "Payment provider is overloaded")
            return
        body = json.dumps({"id": f"ch_{time.time_ns():x}"}).encode()
        self.send_response(201)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet: the shop's worker says what happened to its call."""


class PaymentProvider(ThreadingHTTPServer):
    """Flaps while it is not ``is_fixed``: good for a while, bad for a while, beginning with bad."""

    daemon_threads = True

    def __init__(self, port: int, *, is_fixed: bool, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__((LOOPBACK, port), PaymentHandler)
        self.is_fixed = is_fixed
        self._clock = clock
        self._began = clock()

    def is_down(self) -> bool:
        """Say whether a charge is refused now."""
        return not self.is_fixed and int((self._clock() - self._began) / FLAP_SECONDS) % 2 == 0

    def start(self) -> None:
        """Serve in a thread."""
        threading.Thread(
            target=self.serve_forever, args=(POLL_SECONDS,), name="payments", daemon=True
        ).start()


class MailHandler(socketserver.StreamRequestHandler):
    """Speaks enough SMTP for smtplib, and throws every mail away."""

    timeout = 10

    def handle(self) -> None:
        """Answer one client."""
        self._say("220 shop.example")
        while line := self.rfile.readline(1024):
            verb = line[:4].upper()
            if verb == b"DATA":
                self._say("354 go on")
                while (line := self.rfile.readline(65_536)) and line.rstrip(b"\r\n") != b".":
                    pass
                self._say("250 taken")
            elif verb == b"QUIT":
                self._say("221 goodbye")
                return
            else:
                self._say("250 shop.example")

    def _say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


class MailRelay:
    """Holds a port that is closed, as a port of a server that is down, until ``open``."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._server: socketserver.ThreadingTCPServer | None = None
        self._closed: socket.socket | None = None
        self.close()

    @property
    def is_open(self) -> bool:
        """Whether mail is taken."""
        return self._server is not None

    def open(self) -> None:
        """Take mail."""
        if self._server is not None:
            return
        server = _Server((LOOPBACK, self.port), MailHandler, bind_and_activate=False)
        # Bound and not listening, it refused connections and nobody else could take the port.
        assert self._closed is not None  # noqa: S101 (closed is the other state)
        server.socket.close()
        server.socket, self._closed = self._closed, None
        server.server_activate()
        threading.Thread(target=server.serve_forever, args=(POLL_SECONDS,), name="mail", daemon=True).start()
        self._server = server

    def close(self) -> None:
        """Refuse connections, and keep the port."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        if self._closed is None:
            self._closed = socket.socket()
            self._closed.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._closed.bind((LOOPBACK, self.port))

    def release(self) -> None:
        """Refuse connections, and give the port back."""
        self.close()
        if self._closed is not None:
            self._closed.close()
            self._closed = None


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
