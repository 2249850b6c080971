"""The page of a task."""

from __future__ import annotations

from datetime import datetime

from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from console import addresses
from console.permissions import requires
from console.presenters import task_page as presenter
from console.presenters.plain import visible
from console.views.numbers import render
from console.windows import PageWindow


@require_GET
@requires("jobs.view_rollup")
def task_page(request: HttpRequest) -> HttpResponse:
    """Show one task, ``?name=``: its figures, charts, queues and failures; polled."""
    return render(request, "tasks", find=_find, charts=presenter.charts, address=addresses.task_page)


def _find(name: str, page_window: PageWindow, *, now: datetime) -> presenter.TaskPage:
    page = presenter.read(name, page_window, now=now) if name else None
    if page is None:
        raise Http404(
            f"No task of the name {visible(name[:80], keep='')} is known: no worker knows it, none of its jobs ran "
            "in this time, and it has no dead letter."
        )
    return page
