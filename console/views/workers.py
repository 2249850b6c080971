"""The workers: the list, and the page of one."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_GET

from console.htmx import render_polled
from console.permissions import requires
from console.presenters import worker_list as list_presenter
from console.presenters import worker_page as presenter
from console.presenters.plain import visible
from console.views.numbers import name_of

# The page of a worker asks each 2 s.
_SHARED_SECONDS = 1.5


@require_GET
@requires("jobs.view_workerboot")
def worker_list(request: HttpRequest) -> HttpResponse:
    """List the workers, the lost ones first; polled."""
    now = timezone.now()

    def read() -> dict[str, Any]:
        return {"list": list_presenter.read(now=now), "live_url": request.get_full_path(), "now": now}

    return render_polled(request, "console/workers/list.html", "console/workers/_list.html", read)


@require_GET
@requires("jobs.view_workerboot")
def worker_page(request: HttpRequest) -> HttpResponse:
    """Show one worker, ``?name=``: what it runs, what it knows; polled."""
    now = timezone.now()

    def read() -> dict[str, Any]:
        return {"page": find(name_of(request), now=now), "live_url": request.get_full_path(), "now": now}

    return render_polled(
        request,
        "console/workers/page.html",
        "console/workers/_page.html",
        read,
        seconds=_SHARED_SECONDS,
    )


def find(hostname: str, *, now: datetime) -> presenter.WorkerPage:
    """Read the page of a worker.

    Raises:
        Http404: when no worker of that name is known.
    """
    page = presenter.read(hostname, now=now)
    if page is None:
        raise Http404(
            f"No worker of the name {visible(hostname[:80], keep='')} is known. One that was stopped is shown for an "
            "hour, one that was lost for a day."
        )
    return page
