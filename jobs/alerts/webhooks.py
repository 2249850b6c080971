"""Calls a webhook: one POST of JSON, no redirect followed, nothing of the answer kept but its status."""

from __future__ import annotations

import ipaddress
import json
import socket
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 10
# Where clouds hand out the same by IPv6, which are no addresses of the link: of Amazon and of Google.
_METADATA = frozenset(map(ipaddress.ip_address, ("fd00:ec2::254", "fd20:ce::254", "64:ff9b::a9fe:a9fe")))
# Of an answer that refuses, so much is read to say why.
ANSWER_BYTES = 300


class WebhookFailed(Exception):
    """A call did not succeed; says why, without the address, which is a secret."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect could lead anywhere, and a POST that follows one is sent as a GET."""

    def redirect_request(self, *_: Any) -> None:
        return None


def call(url: str, body: dict[str, Any], *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
    """Post a body.

    Addresses of the link itself are refused: there clouds hand out the credentials of a machine. Other private
    ones are not, since a chat of one's own is usually there.

    Raises:
        WebhookFailed: when it was not taken; says why.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise WebhookFailed("The webhook's address does not begin with https:// or http://. Change the rule.")
    _refuse_link_local(parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
    request = urllib.request.Request(  # noqa: S310 - the scheme was looked at
        url,
        data=json.dumps(body, ensure_ascii=False).encode("utf-8", "replace"),
        headers={"Content-Type": "application/json; charset=utf-8", "User-Agent": "dead-letter-office"},
        method="POST",
    )
    # No proxy handler is taken away: who sets HTTPS_PROXY wants it.
    opener = urllib.request.build_opener(_NoRedirects)
    try:
        with opener.open(request, timeout=timeout_seconds) as answer:
            status = answer.status
    except urllib.error.HTTPError as error:
        with error:
            said = error.read(ANSWER_BYTES).decode("utf-8", "replace").strip()
        raise WebhookFailed(
            f"It answered {error.code} {error.reason}: {' '.join(said.split())}"[:400]
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise WebhookFailed(f"It cannot be reached: {reason}"[:400]) from None
    if not 200 <= status < 300:
        raise WebhookFailed(f"It answered {status}.")


def _refuse_link_local(host: str, port: int) -> None:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise WebhookFailed(f"Its host cannot be found: {error}"[:400]) from None
    for entry in found:
        address = ipaddress.ip_address(str(entry[4][0]).partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None) or address
        if mapped in _METADATA or mapped.is_link_local or mapped.is_multicast or mapped.is_unspecified:
            raise WebhookFailed(
                f"Its host is {mapped}, an address of the link itself, which is never called."
            )
