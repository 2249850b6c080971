"""What the pages of a queue, a task and a worker share: the name in their address, and figures that poll beside charts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from console import windows
from console.chart_parts import Marker
from console.htmx import render_polled, wants_partial
from console.windows import PageWindow
from jobs.metrics.deploys import deploys_in

NAME_LIMIT = 255
# Who looks at days does not watch each second, and their numbers take longer to add up.
_POLL_SECONDS, _SLOW_POLL_SECONDS = 5, 15
# What a page asks for once a minute, where the rest comes each five seconds.
CHARTS = "charts"


def name_of(request: HttpRequest) -> str:
    """Return the name that the address asks for, as far as a name can be."""
    return request.GET.get("name", "").replace("\x00", "")[:NAME_LIMIT]


def poll_seconds(page_window: PageWindow) -> int:
    """Return how often a page of this window asks anew."""
    return _POLL_SECONDS if page_window.window.step_seconds == 60 else _SLOW_POLL_SECONDS


def render(
    request: HttpRequest,
    folder: str,
    *,
    find: Callable[..., Any],
    charts: Callable[..., Sequence[Any]],
    address: Callable[..., str],
) -> HttpResponse:
    """Answer with the page ``?name=`` of the templates in ``folder``, with its figures alone, or its charts alone.

    ``find`` reads it by name and window, ``charts`` draws with the marks of the window, where charts are asked for.
    """
    now = timezone.now()
    name, page_window = name_of(request), windows.of(request, now=now)
    here = address(name, window_query=page_window.query)
    is_charts = request.GET.get("part") == CHARTS

    def context() -> dict[str, Any]:
        page = find(name, page_window, now=now)
        found: dict[str, Any] = {
            "page": page,
            "page_window": page_window,
            "live_url": here,
            "charts_url": f"{here}&part={CHARTS}",
            "every": poll_seconds(page_window),
            "now": now,
        }
        if is_charts or not wants_partial(request):
            marks = [Marker(each.at, f"deploy {each.name}") for each in deploys_in(page_window.window)]
            found["charts"] = charts(page, page_window, markers=marks, now=now)
        return found

    partial = "console/queues/_charts.html" if is_charts else f"console/{folder}/_answer.html"
    return render_polled(request, f"console/{folder}/page.html", partial, context)
