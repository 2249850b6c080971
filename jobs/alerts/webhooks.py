"""Calls a webhook: one POST of JSON, no redirect followed, nothing of the answer kept but its status."""

from __future__ import annotations

import contextlib
import functools
import http.client
import ipaddress
import json
import math
import socket
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from jobs.alerts.cutoffs import Cutoff, Target
from jobs.core.cleaning import clean_line

# For connecting, and for each wait for the other side.
TIMEOUT_SECONDS = 10
# For the whole call: who answers a byte each nine seconds must not keep everybody else from being told.
CALL_SECONDS = 30
# Where clouds hand out the same by IPv6, which are no addresses of the link: of Amazon and of Google.
_METADATA = frozenset(map(ipaddress.ip_address, ("fd00:ec2::254", "fd20:ce::254", "64:ff9b::a9fe:a9fe")))
# Of an answer that refuses, so much is read to say why.
ANSWER_BYTES = 300
_ERROR_LENGTH = 400


class WebhookFailed(Exception):
    """A call did not succeed; says why in one clean line, without the address, which is a secret."""

    def __init__(self, why: str) -> None:
        super().__init__(clean_line(why, limit=_ERROR_LENGTH))


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect could lead anywhere, and a POST that follows one is sent as a GET."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _Connection(http.client.HTTPConnection):
    """Connects and sends within the time of its cutoff, and never to an address of the link.

    The addresses that are looked at are those that are connected to: no second look-up may say another.
    """

    def __init__(self, *arguments: Any, cutoff: Cutoff, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._cutoff = cutoff
        # What http.client connects with, whatever the scheme, to the host itself or to a proxy.
        self._create_connection = self._connect

    def send(self, data: Any) -> None:
        """Send a part, unless the time is over: another process may have called meanwhile."""
        if self._cutoff.is_over:
            raise OSError("it took too long")
        super().send(data)

    def _connect(self, address: tuple[str, int], timeout: float, _source: Any = None) -> socket.socket:
        return self._cutoff.connect(_addresses(*address), timeout=timeout)


class _SecureConnection(_Connection, http.client.HTTPSConnection):
    """The same with TLS."""


class _Opener(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Opens the one connection of a call."""

    def __init__(self, cutoff: Cutoff) -> None:
        super().__init__()
        self._cutoff = cutoff

    def http_open(self, request: urllib.request.Request) -> Any:
        """Send a request over a connection that is cut off in time."""
        return self.do_open(self._connection_of(_Connection), request)

    def https_open(self, request: urllib.request.Request) -> Any:
        """Send a request over a connection that is cut off in time, with TLS."""
        return self.do_open(self._connection_of(_SecureConnection), request)

    def _connection_of(self, kind: type[_Connection]) -> Any:
        return functools.partial(kind, cutoff=self._cutoff)


def call(
    url: str,
    body: dict[str, Any],
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    call_seconds: float = CALL_SECONDS,
    until: float = math.inf,
) -> None:
    """Post a body, and nothing after ``until`` by ``time.monotonic``.

    Addresses of the link itself are refused: there clouds hand out the credentials of a machine. Other private
    ones are not, since a chat of one's own is usually there.

    Raises:
        WebhookFailed: when it was not taken within ``call_seconds``; says why.
    """
    _refuse_address(url)
    request = urllib.request.Request(  # noqa: S310 - the scheme was looked at
        url,
        data=json.dumps(body, ensure_ascii=False).encode("utf-8", "replace"),
        headers={"Content-Type": "application/json; charset=utf-8", "User-Agent": "dead-letter-office"},
        method="POST",
    )
    with contextlib.closing(Cutoff(seconds=call_seconds, until=until)) as cutoff:
        # No proxy handler is taken away: who sets HTTPS_PROXY wants it.
        opener = urllib.request.build_opener(_NoRedirects, _Opener(cutoff))
        try:
            opener.open(request, timeout=timeout_seconds).close()
        except urllib.error.HTTPError as error:
            raise WebhookFailed(_refusal(error)) from None
        except http.client.InvalidURL:
            # What this says quotes the address.
            raise WebhookFailed("The webhook's address cannot be used. Change the rule.") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            if cutoff.has_ended_connection:
                raise WebhookFailed(f"It had not answered after {call_seconds:g} s.") from None
            if isinstance(error, http.client.HTTPException):
                raise WebhookFailed(f"Its answer cannot be read: {error}") from None
            raise WebhookFailed(f"It cannot be reached: {getattr(error, 'reason', error)}") from None


def _refuse_address(url: str) -> None:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise WebhookFailed("The webhook's address cannot be read. Change the rule.") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise WebhookFailed("The webhook's address does not begin with https:// or http://. Change the rule.")
    if "@" in parts.netloc:
        raise WebhookFailed("The webhook's address holds a name or a password. Change the rule.")
    # A number is looked at here already: nobody here connects to it where there is a proxy.
    with contextlib.suppress(OSError, UnicodeError):
        _refuse_link_local(socket.getaddrinfo(parts.hostname, None, flags=socket.AI_NUMERICHOST))


def _refusal(error: urllib.error.HTTPError) -> str:
    """Say what was answered. The status alone will do when the rest does not come."""
    said = b""
    with error, contextlib.suppress(OSError, http.client.HTTPException):
        said = error.read(ANSWER_BYTES)
    words = said.decode("utf-8", "replace").strip()
    return f"It answered {error.code} {error.reason}{': ' if words else ''}{words}"


def _addresses(host: str, port: int) -> list[Target]:
    """Return where a host is: family, kind, protocol and address of each."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise WebhookFailed(f"Its host cannot be found: {error}") from None
    _refuse_link_local(found)
    return [(family, kind, protocol, target) for family, kind, protocol, _, target in found]


def _refuse_link_local(found: Sequence[tuple[Any, ...]]) -> None:
    """Refuse a host of which any address is one of the link itself; ``found`` as by getaddrinfo."""
    for entry in found:
        address = ipaddress.ip_address(str(entry[4][0]).partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None) or address
        if mapped in _METADATA or mapped.is_link_local or mapped.is_multicast or mapped.is_unspecified:
            raise WebhookFailed(
                f"Its host is {mapped}, an address of the link itself, which is never called."
            )
