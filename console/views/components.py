"""Every mark and control once, for our own eyes; only there while DEBUG is on."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from console.states import (
    ALERT_MARKS,
    GROUP_MARKS,
    LETTER_MARKS,
    OPERATION_MARKS,
    OUTBOX_MARKS,
    REASON_MARKS,
    SEVERITY_MARKS,
    WORKER_MARKS,
)

_COLOURS = (
    *(
        "bg",
        "surface",
        "sunken",
        "hover",
        "line",
        "line-strong",
        "control",
        "ink-3",
        "ink-2",
        "ink",
        "accent",
    ),
    *("select-strong", "red", "red-tint", "red-line", "amber", "amber-tint", "amber-line"),
    *("green", "green-tint", "green-line", "blue", "blue-tint", "blue-line"),
    *("c-done", "c-retried", "c-dead", "c-p50", "c-p95", "c-p99"),
    *("c-1", "c-2", "c-3", "c-4", "c-5", "c-rest"),
)


def components(request: HttpRequest) -> HttpResponse:
    """Show the design system."""
    context = {
        "colours": _COLOURS,
        "letter_states": list(LETTER_MARKS),
        "group_states": list(GROUP_MARKS),
        "operation_states": list(OPERATION_MARKS),
        "alert_states": list(ALERT_MARKS),
        "severities": list(SEVERITY_MARKS),
        "worker_states": list(WORKER_MARKS),
        "outbox_states": list(OUTBOX_MARKS),
        "reasons": list(REASON_MARKS),
        "running": [("done", 1661), ("died", 11), ("skipped", 16), ("waiting", 66), ("rest", 2553)],
        "stopped": [("done", 76), ("died", 24)],
        "refused": "Purging takes the permission “purge dead letters”. Ask an admin.",
    }
    return render(request, "console/components.html", context)
