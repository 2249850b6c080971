"""EMAIL_URL: the mail server in one address, read into Django's settings.

Written here and not taken from a package: dj-email-url has known schemes only, and what counts for
alerts is that a password never leaves unencrypted by accident and that no server hangs a sender.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

# How long connecting, and each answer, may take.
TIMEOUT_SECONDS = 10
EXAMPLE = "smtp://user:password@mail.example:587"
# The port of a scheme, and whether it begins with TLS.
SCHEMES = {"smtp": (25, False), "submission": (587, False), "smtps": (465, True)}


def email_settings(url: str) -> dict[str, Any]:
    """Return Django's EMAIL_* settings for an address; without one mails are not sent.

    ``smtp://`` with a user asks for STARTTLS and sends nothing without it, and so does ``submission://``;
    ``?tls=off`` lets it, ``?tls=on`` makes a server without a user do so too.

    Raises:
        ValueError: when it cannot be read. The message never holds the address: it has a password.
    """
    url = url.strip()
    if not url:
        return {"EMAIL_BACKEND": "django.core.mail.backends.dummy.EmailBackend"}
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(f"EMAIL_URL cannot be read. Write for instance {EXAMPLE}.") from None
    if parts.scheme == "console":
        return {"EMAIL_BACKEND": "django.core.mail.backends.console.EmailBackend"}
    if parts.scheme == "file":
        path = unquote(parts.path)
        if parts.netloc or not path.startswith("/"):
            raise ValueError("EMAIL_URL with file: needs a directory from the root: file:///var/mails.")
        return {"EMAIL_BACKEND": "django.core.mail.backends.filebased.EmailBackend", "EMAIL_FILE_PATH": path}
    if parts.scheme not in SCHEMES:
        raise ValueError(
            f"EMAIL_URL begins with {parts.scheme[:20]!r}, which is not known."
            f" Use smtp://, submission://, smtps://, file:// or console://, for instance {EXAMPLE}."
        )
    if not parts.hostname:
        raise ValueError(f"EMAIL_URL names no server. Write for instance {EXAMPLE}.")
    usual_port, is_tls = SCHEMES[parts.scheme]
    starts_tls = not is_tls and (parts.scheme == "submission" or bool(parts.username))
    for name, values in parse_qs(parts.query, keep_blank_values=True).items():
        if name != "tls" or values[-1] not in {"on", "off"} or is_tls:
            raise ValueError("EMAIL_URL may end in ?tls=on or ?tls=off, of smtp:// and submission:// only.")
        starts_tls = values[-1] == "on"
    return {
        "EMAIL_BACKEND": "django.core.mail.backends.smtp.EmailBackend",
        "EMAIL_HOST": parts.hostname,
        "EMAIL_PORT": port or usual_port,
        "EMAIL_HOST_USER": unquote(parts.username or ""),
        "EMAIL_HOST_PASSWORD": unquote(parts.password or ""),
        "EMAIL_USE_TLS": starts_tls,
        "EMAIL_USE_SSL": is_tls,
        "EMAIL_TIMEOUT": TIMEOUT_SECONDS,
    }
