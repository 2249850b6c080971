"""What ``JOBS_PREFLIGHT`` says."""

from __future__ import annotations

from enum import StrEnum

from django.core.exceptions import ImproperlyConfigured

from jobs import conf


class Mode(StrEnum):
    """What a worker does about a broker that can lose jobs."""

    REFUSE = "refuse"
    WARN = "warn"
    OFF = "off"


def mode() -> Mode:
    """Read ``JOBS_PREFLIGHT``.

    Raises:
        ImproperlyConfigured: when it is none of the three words.
    """
    value = conf.current().preflight
    try:
        return Mode(value.strip().lower())
    except ValueError:
        raise ImproperlyConfigured(
            f"JOBS_PREFLIGHT={value!r} is not known. Use one of {', '.join(Mode)}."
        ) from None
