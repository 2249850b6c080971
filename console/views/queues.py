"""The queues: the list, and the page of one."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_GET

from console import addresses, windows
from console.chart_parts import Marker
from console.htmx import render_page, wants_partial
from console.permissions import requires
from console.presenters import queue_list as list_presenter
from console.presenters import queue_page as presenter
from console.presenters.plain import visible
from console.windows import PageWindow
from jobs.metrics.deploys import deploys_in

NAME_LIMIT = 255
# Who looks at days does not watch each second, and their numbers take longer to add up.
_POLL_SECONDS, _SLOW_POLL_SECONDS = 5, 15
# What a page asks for once a minute, where the rest comes each five seconds.
CHARTS = "charts"


@require_GET
@requires("jobs.view_queuesample")
def queue_list(request: HttpRequest) -> HttpResponse:
    """List the queues, worst first; polled."""
    now = timezone.now()
    page_window = windows.of(request, now=now)
    context: dict[str, Any] = {
        "list": list_presenter.read(page_window.window, now=now),
        "page_window": page_window,
        "live_url": request.get_full_path(),
        "every": poll_seconds(page_window),
        "now": now,
    }
    return render_page(request, "console/queues/list.html", "console/queues/_list.html", context)


@require_GET
@requires("jobs.view_queuesample")
def queue_page(request: HttpRequest) -> HttpResponse:
    """Show one queue, ``?name=``: its figures, charts, tasks and purges; polled."""
    now = timezone.now()
    name = name_of(request)
    page_window = windows.of(request, now=now)
    page = find(name, page_window, now=now)
    here = addresses.queue_page(name, window_query=page_window.query)
    context: dict[str, Any] = {
        "page": page,
        "page_window": page_window,
        "live_url": here,
        "charts_url": f"{here}&part={CHARTS}",
        "every": poll_seconds(page_window),
        "now": now,
    }
    if draws_charts(request):
        context["charts"] = presenter.charts(page, page_window, markers=markers(page_window), now=now)
    partial = "_charts" if request.GET.get("part") == CHARTS else "_answer"
    return render_page(request, "console/queues/page.html", f"console/queues/{partial}.html", context)


def name_of(request: HttpRequest) -> str:
    """Return the name that the address asks for, as far as a name can be."""
    return request.GET.get("name", "").replace("\x00", "")[:NAME_LIMIT]


def poll_seconds(page_window: PageWindow) -> int:
    """Return how often a page of this window asks anew."""
    return _POLL_SECONDS if page_window.window.step_seconds == 60 else _SLOW_POLL_SECONDS


def draws_charts(request: HttpRequest) -> bool:
    """Tell whether an answer has charts: the whole page, and what a page asks for by itself."""
    return not wants_partial(request) or request.GET.get("part") == CHARTS


def markers(page_window: PageWindow) -> list[Marker]:
    """Return what the charts of a window mark."""
    return [Marker(each.at, f"deploy {each.name}") for each in deploys_in(page_window.window)]


def find(name: str, page_window: PageWindow, *, now: datetime) -> presenter.QueuePage:
    """Read the page of a queue.

    Raises:
        Http404: when nothing is known of such a queue.
    """
    page = presenter.read(name, page_window, now=now) if name else None
    if page is None:
        raise Http404(
            f"No queue of the name {visible(name[:80], keep='')} is known: no worker consumes from it, nothing "
            "waits on it, and no job ran from it lately."
        )
    return page
