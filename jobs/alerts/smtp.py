"""The project's mail backend; where that is Django's for SMTP, or made of it, its conversations are cut off in time."""

from __future__ import annotations

import smtplib
import socket
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.mail.backends.base import BaseEmailBackend
from django.core.mail.backends.smtp import EmailBackend
from django.utils.module_loading import import_string

from jobs.alerts.cutoffs import Cutoff

# For each answer of a mail server where the project sets no EMAIL_TIMEOUT.
SERVER_SECONDS = 10.0


def backend(cutoff: Cutoff) -> BaseEmailBackend:
    """Make the backend of EMAIL_BACKEND, not opened yet. Of one that does not speak SMTP nothing is cut off."""
    kind: type[BaseEmailBackend] = import_string(settings.EMAIL_BACKEND)
    if not issubclass(kind, EmailBackend):
        return kind(fail_silently=False)
    made: EmailBackend = type(kind.__name__, (_Bounded, kind), {"cutoff": cutoff})(fail_silently=False)
    if made.timeout is None:
        # Django waits for ever unless EMAIL_TIMEOUT is set; nobody would be told of anything meanwhile.
        made.timeout = SERVER_SECONDS
    return made


class _Watched(smtplib.SMTP):
    """Connects and sends within the time of its cutoff."""

    cutoff: Cutoff

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        """Connect; smtplib calls this, with TLS from the beginning too."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        targets = [(family, kind, protocol, address) for family, kind, protocol, _, address in found]
        return self.cutoff.connect(targets, timeout=timeout)

    def send(self, s: Any) -> None:
        """Send a part, unless the time is over.

        A process that was stopped in the middle goes on here, maybe when another one has sent the mail meanwhile.
        """
        if self.cutoff.is_over:
            self.close()
            raise smtplib.SMTPServerDisconnected("It took too long.")
        super().send(s)


if TYPE_CHECKING:
    _Base = EmailBackend
else:
    _Base = object


class _Bounded(_Base):
    """Goes before a backend whose connections shall be watched."""

    cutoff: Cutoff

    @property
    def connection_class(self) -> type[smtplib.SMTP]:
        """What the backend connects with, made to be watched."""
        theirs = super().connection_class
        bases = (_Watched,) if theirs is smtplib.SMTP else (theirs, _Watched)
        return type(theirs.__name__, bases, {"cutoff": self.cutoff})
