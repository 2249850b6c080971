"""A mail server that can hold an answer back or drip it, at any step of a conversation."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from types import TracebackType

GREETING, CONTENT = "GREETING", "CONTENT"
_ANSWERS = {
    GREETING: b"220 here",
    "EHLO": b"250 here",
    "DATA": b"354 go on",
    "QUIT": b"221 bye",
}
_PAUSE_SECONDS = 0.05


def _is_whole(lines: Iterator[bytes]) -> bool:
    """Read a content; say whether it came to its end."""
    return any(line == b"." for line in lines)


class StubbornMailServer:
    """Answers each step of the sending side: GREETING, EHLO, MAIL, RCPT, DATA, CONTENT, QUIT.

    The answer to ``held`` waits for ``let_go``, once; ``reached`` is set when it is asked for. The answer to
    ``dripped`` comes a byte each 50 ms, for ``drip_seconds``, and is never whole, of mails to ``dripped_for`` only where
    that is given; that to ``slow`` comes after ``slow_seconds``. ``taken`` has who was to get each content that came
    whole: that mail is delivered, whatever becomes of the answer.
    """

    def __init__(
        self,
        *,
        held: str = "",
        dripped: str = "",
        dripped_for: str = "",
        drip_seconds: float = 10,
        slow: str = "",
        slow_seconds: float = 0,
    ) -> None:
        self.held = held
        self.dripped, self.dripped_for, self._drip_seconds = dripped, dripped_for, drip_seconds
        self.slow, self._slow_seconds = slow, slow_seconds
        self.reached, self.let_go = threading.Event(), threading.Event()
        self.taken: list[list[str]] = []
        # By which name each conversation began.
        self.hosts: list[str] = []
        self._is_closed = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    @property
    def url(self) -> str:
        return f"smtp://127.0.0.1:{self.port}"

    def __enter__(self) -> StubbornMailServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closed.set()
        self.let_go.set()
        with contextlib.suppress(OSError):
            # Wakes the thread that accepts; closing alone does not.
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join(timeout=10)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while not self._is_closed.is_set():
            try:
                connected, _ = self._listening.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._talk, args=(connected,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _talk(self, connected: socket.socket) -> None:
        connected.settimeout(1)
        with connected, contextlib.suppress(OSError):
            people: list[str] = []
            self._answer(connected, GREETING, people)
            lines = self._lines(connected)
            for line in lines:
                step = line[:4].upper().decode()
                if step == "EHLO":
                    self.hosts.append(line[5:].decode())
                elif step == "MAIL":
                    people = []
                elif step == "RCPT":
                    people.append(line.partition(b"<")[2].partition(b">")[0].decode())
                self._answer(connected, step, people)
                if step == "DATA":
                    if not _is_whole(lines):
                        return
                    self.taken.append(people)
                    self._answer(connected, CONTENT, people)
                elif step == "QUIT":
                    return

    def _lines(self, connected: socket.socket) -> Iterator[bytes]:
        """Yield what comes, line by line, until the other side ends it."""
        had = b""
        while not self._is_closed.is_set():
            line, end, rest = had.partition(b"\n")
            if end:
                had = rest
                yield line.rstrip(b"\r")
                continue
            try:
                more = connected.recv(65_536)
            except TimeoutError:
                continue
            if not more:
                return
            had += more

    def _answer(self, connected: socket.socket, step: str, people: list[str]) -> None:
        answer = _ANSWERS.get(step, b"250 OK")
        if step == self.dripped and (not self.dripped_for or self.dripped_for in people):
            self.reached.set()
            # With a hyphen: another line follows.
            connected.sendall(answer[:3] + b"-")
            until = time.monotonic() + self._drip_seconds
            while time.monotonic() < until and not self._is_closed.wait(_PAUSE_SECONDS):
                connected.sendall(b"x")
            raise ConnectionAbortedError
        if step == self.slow:
            self._is_closed.wait(self._slow_seconds)
        if step == self.held and not self.reached.is_set():
            self.reached.set()
            self.let_go.wait()
        connected.sendall(answer + b"\r\n")
