"""The page of a task."""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_GET

from console import addresses, windows
from console.htmx import render_page
from console.permissions import requires
from console.presenters import task_page as presenter
from console.presenters.plain import visible
from console.views.queues import CHARTS, draws_charts, markers, name_of, poll_seconds


@require_GET
@requires("jobs.view_rollup")
def task_page(request: HttpRequest) -> HttpResponse:
    """Show one task, ``?name=``: its figures, charts, queues and failures; polled."""
    now = timezone.now()
    name = name_of(request)
    page_window = windows.of(request, now=now)
    page = presenter.read(name, page_window, now=now) if name else None
    if page is None:
        raise Http404(
            f"No task of the name {visible(name[:80], keep='')} is known: no worker knows it, none of its jobs ran "
            "in this time, and it has no dead letter."
        )
    here = addresses.task_page(name, window_query=page_window.query)
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
    folder = "queues" if partial == "_charts" else "tasks"
    return render_page(request, "console/tasks/page.html", f"console/{folder}/{partial}.html", context)
