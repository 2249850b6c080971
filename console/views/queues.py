"""The queues: the list, and the page of one."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_GET

from console import addresses, windows
from console.htmx import render_polled
from console.permissions import requires
from console.presenters import queue_list as list_presenter
from console.presenters import queue_page as presenter
from console.presenters.plain import visible
from console.views.numbers import poll_seconds, render
from console.windows import PageWindow


@require_GET
@requires("jobs.view_queuesample")
def queue_list(request: HttpRequest) -> HttpResponse:
    """List the queues, worst first; polled."""
    now = timezone.now()
    page_window = windows.of(request, now=now)

    def read() -> dict[str, Any]:
        return {
            "list": list_presenter.read(page_window.window, now=now),
            "page_window": page_window,
            "live_url": request.get_full_path(),
            "every": poll_seconds(page_window),
            "now": now,
        }

    return render_polled(request, "console/queues/list.html", "console/queues/_list.html", read)


@require_GET
@requires("jobs.view_queuesample")
def queue_page(request: HttpRequest) -> HttpResponse:
    """Show one queue, ``?name=``: its figures, charts, tasks and purges; polled."""
    return render(request, "queues", find=find, charts=presenter.charts, address=addresses.queue_page)


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
