"""What the pages of a queue, a task and a worker share: the name in their address, and figures that poll beside charts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from django.http import HttpRequest, HttpResponse

from console.chart_parts import Marker
from console.htmx import render_polled, wants_partial
from console.windows import PageWindow
from jobs.metrics.deploys import deploys_in

Page = TypeVar("Page")

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
    read: Callable[[], Page],
    *,
    here: str,
    page_window: PageWindow,
    draw: Callable[[Page, Sequence[Marker]], Sequence[Any]],
    now: datetime,
) -> HttpResponse:
    """Answer with the page of the templates in ``folder``, with its figures alone, or with its charts alone.

    ``here`` is its address; ``draw`` makes the charts with the marks of their window, where they are asked for.
    """
    is_charts = request.GET.get("part") == CHARTS

    def context() -> dict[str, Any]:
        page = read()
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
            found["charts"] = draw(page, marks)
        return found

    partial = "console/queues/_charts.html" if is_charts else f"console/{folder}/_answer.html"
    return render_polled(request, f"console/{folder}/page.html", partial, context)
