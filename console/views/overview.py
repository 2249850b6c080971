"""The first page: what needs attention, and the numbers of a time window."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from console import windows
from console.htmx import render_page, wants_partial
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
    context: dict[str, Any] = {"page_window": page_window, "now": now}
    is_poll = wants_partial(request)
    if is_poll and request.GET.get("part") == _CHARTS:
        context["charts"] = overview_page.read_charts(page_window, now=now)
        template = "console/overview/_charts.html"
        return render_page(request, template, template, _addressed(request, context))
    by = "task" if request.GET.get("by") == "task" else "queue"
    context |= {"page": overview_page.read(page_window, by=by, now=now), "by": by}
    if not is_poll:
        context["charts"] = overview_page.read_charts(page_window, now=now)
    return render_page(
        request, "console/overview/page.html", "console/overview/_page.html", _addressed(request, context)
    )


def _addressed(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Add the addresses that the page polls and its tabs lead to; all keep the window."""
    asked = request.GET.copy()
    asked.pop("part", None)
    live = asked.urlencode()
    asked["part"] = _CHARTS
    tabs = request.GET.copy()
    tabs.pop("part", None)
    hrefs = {}
    for by in ("queue", "task"):
        tabs["by"] = by
        hrefs[by] = f"?{tabs.urlencode()}"
    return context | {
        "live_url": f"{request.path}?{live}" if live else request.path,
        "charts_url": f"{request.path}?{asked.urlencode()}",
        "tab_hrefs": hrefs,
    }
