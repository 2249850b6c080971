"""What fires now, what recovered, and what is silenced."""

from __future__ import annotations

import contextlib

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET

from console import windows
from console.htmx import STOP_POLLING, render_page, wants_partial
from console.permissions import requires
from console.presenters import alert_list, alert_notes, alert_page
from jobs.core import cursors


@require_GET
@requires("jobs.view_alert")
def alerts(request: HttpRequest) -> HttpResponse:
    """Show what fires, what is about to, and what recovered last; polled."""
    now = timezone.now()
    context = {
        "page": alert_list.read_now(now=now),
        "tabs": alert_list.tabs("alerts", now=now),
        "live_url": reverse("console:alerts"),
        "notes": alert_notes.read(now=now),
        "all_href": reverse("console:alert-history"),
        "recent_title": "Recovered last",
        "now": now,
    }
    return render_page(request, "console/alerts/page.html", "console/alerts/_answer.html", context)


@require_GET
@requires("jobs.view_alert")
def history(request: HttpRequest) -> HttpResponse:
    """Show the alerts that are over; ``?at=`` is where the page before ended, and a broken one the beginning."""
    now = timezone.now()
    after = None
    with contextlib.suppress(ValueError):
        _, after = cursors.read(request.GET.get("at", ""))
    context = {
        "page": alert_list.read_history(after=after, now=now),
        "tabs": alert_list.tabs("alert-history", now=now),
        "now": now,
    }
    return render(request, "console/alerts/history.html", context)


@require_GET
@requires("jobs.view_alert")
def alert(request: HttpRequest, alert_id: int) -> HttpResponse:
    """Show one alert: its figures, its letters, its life, and who was told; polled until it is over.

    ``?from=…&to=…``, as a brush over the chart sets it, is the range of the chart.
    """
    now = timezone.now()
    found = alert_page.find(alert_id)
    if found is None:
        raise Http404(f"There is no alert {alert_id}: it ended before it fired, or its rule was deleted.")
    chosen = windows.of(request, now=now)
    is_own = chosen.is_custom
    page = alert_page.read(found, window=chosen.window if is_own else None, now=now)
    context = {
        "page": page,
        "alert": found,
        "live_url": request.get_full_path(),
        "whole_href": reverse("console:alert", args=[found.pk]) if is_own else "",
        "range_problem": chosen.problem,
        "now": now,
    }
    # The last answer still carries how it ended.
    status = STOP_POLLING if wants_partial(request) and not page.is_open else 200
    return render_page(
        request, "console/alerts/alert.html", "console/alerts/_alert.html", context, status=status
    )
