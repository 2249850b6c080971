"""Webhooks whose other side is slow, broken or not what it seems: a call ends, and says why in one clean line."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterable

import pytest

from jobs.alerts.cutoffs import Cutoff, Target
from jobs.alerts.webhooks import WebhookFailed, call
from tests.alerts.answering import LOOPBACK, SLOW_TLS, answering
from tests.alerts.conftest import Hook

SLOW_STATUS = [bytes([byte]) for byte in b"HTTP/1.1 200 OK\r\n" * 40]
SLOW_HEADERS = [b"HTTP/1.1 500 No\r\n", *[b"X: y\r\n"] * 800]
SLOW_BODY = [b"HTTP/1.1 500 No\r\nContent-Length: 9999\r\n\r\n", *[b"x"] * 800]


@pytest.mark.parametrize(
    ("scheme", "parts"),
    [("http", SLOW_STATUS), ("http", SLOW_HEADERS), ("http", SLOW_BODY), ("https", SLOW_TLS)],
    ids=["status", "headers", "body", "TLS"],
)
def test_a_call_ends_in_its_time_though_a_byte_comes_before_each_wait_is_over(
    scheme: str, parts: list[bytes]
) -> None:
    with answering(*parts, every_seconds=0.05, keeps_open=True) as port:
        began = time.monotonic()
        with pytest.raises(WebhookFailed) as failed:
            call(f"{scheme}://{LOOPBACK}:{port}/", {"text": "x"}, call_seconds=0.4)
        seconds = time.monotonic() - began

    # What came until then may hold the status.
    assert str(failed.value).startswith(("It had not answered after 0.4 s.", "It answered 500 No"))
    # The parts would take half a minute or more.
    assert seconds < 15


def test_a_host_with_addresses_that_do_not_answer_ends_in_its_time_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A backlog that is full drops whoever comes: connecting waits.
    with socket.create_server((LOOPBACK, 0), backlog=0) as listener, contextlib.ExitStack() as stack:
        port = listener.getsockname()[1]
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex((LOOPBACK, port))
        target = (socket.AF_INET, socket.SOCK_STREAM, 6, "", (LOOPBACK, port))
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [target] * 200)
        began = time.monotonic()

        with pytest.raises(WebhookFailed, match="It cannot be reached"):
            call("http://many.example/", {"text": "x"}, timeout_seconds=0.1, call_seconds=0.4)

        # All of them would take 20 s.
        assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"SSH-2.0-OpenSSH_9.6\x00\x1b[2J\r\n", "Its answer cannot be read: SSH-2.0-OpenSSH_9.6"),
        (b"", "Its answer cannot be read: Remote end closed connection"),
        (b"HTTP/1.1 400 Bad\x1bRequest\r\n\r\nno\x00body\r\nat\x1ball", "It answered 400 Bad"),
        (b"HTTP/1.1 503 Away\r\nContent-Length: 0\r\n\r\n", "It answered 503 Away"),
        (b"HTTP/1.1 503 Away\r\nContent-Length: 50\r\n\r\nsoon", "It answered 503 Away: soon"),
    ],
)
def test_whatever_is_answered_is_told_in_one_clean_line(answer: bytes, words: str) -> None:
    with answering(answer) as port, pytest.raises(WebhookFailed) as failed:
        call(f"http://{LOOPBACK}:{port}/services/secret", {"text": "x"})

    said = str(failed.value)
    assert said.startswith(words)
    assert said.isprintable()
    assert not said.endswith(":")
    assert "secret" not in said


def test_a_name_that_says_another_address_the_second_time_is_not_called_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever owns a name may let it point at the machine itself once it was looked at."""
    asked = []
    look_up = socket.getaddrinfo

    def getaddrinfo(host: str, port: object, *rest: object, **options: object) -> object:
        if host != "turns.example" or options.get("flags"):
            return look_up(host, port, *rest, **options)
        asked.append(host)
        address = LOOPBACK if len(asked) == 1 else "169.254.169.254"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with answering(b"HTTP/1.1 204 OK\r\n\r\n") as port:
        call(f"http://turns.example:{port}/", {"text": "x"})

        assert asked == ["turns.example"]
        with pytest.raises(WebhookFailed, match="never called"):
            call(f"http://turns.example:{port}/", {"text": "x"})


def test_a_proxy_looks_the_name_up_and_is_not_asked_for_an_address_of_the_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with answering(b"HTTP/1.1 204 OK\r\n\r\n") as port:
        monkeypatch.setenv("http_proxy", f"http://{LOOPBACK}:{port}")
        monkeypatch.setenv("no_proxy", "")

        with pytest.raises(WebhookFailed, match="never called"):
            call("http://2852039166/latest", {"text": "x"})
        call("http://only-the-proxy-knows.invalid/", {"text": "x"})


@pytest.mark.parametrize(
    "url",
    [
        "https://bot:secret@chat.example/",
        "http://secret@127.0.0.1/",
        "https://[secret",
        "http://127.0.0.1:secret/",
    ],
)
def test_what_an_address_says_stands_in_no_error(url: str) -> None:
    with pytest.raises(WebhookFailed, match="Change the rule") as failed:
        call(url, {"text": "x"})

    assert "secret" not in str(failed.value)


def test_nothing_is_called_once_the_claim_is_over(hook: Hook) -> None:
    with pytest.raises(WebhookFailed, match="It cannot be reached: it took too long"):
        call(hook.url, {"text": "late"}, until=time.monotonic())

    assert hook.got == []


def test_nothing_is_posted_by_who_stood_still_after_it_connected(
    hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = Cutoff.connect

    def stand_still(cutoff: Cutoff, targets: Iterable[Target], *, timeout: float) -> socket.socket:
        connected = connect(cutoff, targets, timeout=timeout)
        # As long as the claim lasts: to the thread that cuts it off no time has passed.
        monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 120)
        return connected

    monkeypatch.setattr(Cutoff, "connect", stand_still)

    with pytest.raises(WebhookFailed, match=r"It had not answered after 30 s\."):
        call(hook.url, {"text": "late"})

    assert hook.got == []
