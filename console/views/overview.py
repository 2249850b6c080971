"""The first page: what needs attention, and the numbers of a time window."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from console import windows
from console.htmx import render_page, render_polled, wants_partial
from console.permissions import requires
from console.presenters import overview_page

# The part of the page that is polled less often than the rest.
_CHARTS = "charts"


@requires("jobs.view_deadletter")
def overview(request: HttpRequest) -> HttpResponse:
    """Show what needs attention, the tiles, the charts and the tables by queue and by task.

    ``?part=charts`` answers htmx with the charts alone.
    """
    now = timezone.now()
    page_window = windows.of(request, now=now)
    by: overview_page.By = "task" if request.GET.get("by") == "task" else "queue"
    context: dict[str, Any] = {"page_window": page_window, "by": by, "now": now, **_addresses(request)}
    if wants_partial(request) and request.GET.get("part") == _CHARTS:
        context["charts"] = overview_page.read_charts(page_window, now=now)
        template = "console/overview/_charts.html"
        return render_page(request, template, template, context)

    def read() -> dict[str, Any]:
        if wants_partial(request):
            return context | {"page": overview_page.read_again(page_window, by=by, now=now)}
        page = overview_page.read(page_window, by=by, now=now)
        return context | {"page": page, "charts": page.charts}

    return render_polled(request, "console/overview/page.html", "console/overview/_page.html", read)


def _addresses(request: HttpRequest) -> dict[str, Any]:
    """Return the addresses that the page polls and its tabs lead to; all keep the window."""
    asked = request.GET.copy()
    asked.pop("part", None)
    live = asked.urlencode()
    asked["part"] = _CHARTS
    charts = asked.urlencode()
    del asked["part"]
    hrefs = {}
    for by in ("queue", "task"):
        asked["by"] = by
        hrefs[by] = f"?{asked.urlencode()}"
    return {
        "live_url": f"{request.path}?{live}" if live else request.path,
        "charts_url": f"{request.path}?{charts}",
        "tab_hrefs": hrefs,
    }
