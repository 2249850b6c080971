"""The first page: what needs attention."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone

from console import overview_words
from console.forms.search import address
from console.htmx import render_page
from console.permissions import requires
from console.presenters import progress_view
from jobs import overview as figures
from jobs.core.query import quote


@requires("jobs.view_deadletter")
def overview(request: HttpRequest) -> HttpResponse:
    """Show what needs attention, the figures, and the tables by queue and by task."""
    now = timezone.now()
    found = figures.overview(now=now)
    letters = reverse("console:letters")
    by = "task" if request.GET.get("by") == "task" else "queue"
    tallies = found.by_task if by == "task" else found.by_queue
    context: dict[str, Any] = {
        "overview": found,
        "standstill": overview_words.standstill(found),
        "sentence": overview_words.sentence(found, now=now),
        "tiles": overview_words.tiles(
            found,
            letters_href=letters,
            groups_href=reverse("console:groups"),
            outbox_href=reverse("console:outbox"),
        ),
        "in_progress": [progress_view.present(each, now=now) for each in found.in_progress],
        "by": by,
        "tallies": [
            (tally, address(letters, f"{by}:{quote(tally.name)}") if tally.name else letters)
            for tally in tallies
        ],
        "hour_before": (now - 2 * figures.HOUR, now - figures.HOUR),
        "hour": (now - figures.HOUR, now),
        "live_url": request.get_full_path(),
        "now": now,
    }
    return render_page(request, "console/overview/page.html", "console/overview/_page.html", context)
