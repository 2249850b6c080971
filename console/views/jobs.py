"""Jobs: finished attempts, and the whole life of one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.views.decorators.http import require_GET

from console import addresses, windows
from console.forms import run_search
from console.forms.run_search import RunSearchBox
from console.forms.search import address
from console.htmx import STOP_POLLING, render_page, wants_partial
from console.permissions import refusal, requires
from console.presenters import job_list, job_page
from console.presenters.plain import short_task
from jobs.core.cleaning import clean_name
from jobs.core.query import QuerySyntaxError
from jobs.errors import QueryError
from jobs.metrics import runs

PAGE_SIZE = 50


@require_GET
@requires("jobs.view_run")
def jobs(request: HttpRequest) -> HttpResponse:
    """Show one page of the finished attempts that match ``?q=``, newest first."""
    now = timezone.now()
    path, parameters = reverse("console:jobs"), request.GET.dict()
    try:
        text = run_search.changed(parameters, windows.of(request, now=now), now=now)
    except QuerySyntaxError:
        # Read again below, which says what is wrong.
        text = None
    if text is not None:
        return HttpResponseRedirect(address(path, text))
    box = run_search.read(path, parameters, now=now)
    context: dict[str, Any] = {
        "box": box,
        "now": now,
        "linked_qualifiers": [
            (f"{name}:", box.address(box.text, type=f"{name}:")) for name in run_search.LINKED_QUALIFIERS
        ],
        "kept_words": job_list.hours(job_list.kept()),
    }
    if box.query is None:
        return render(request, "console/jobs/list.html", context, status=400)
    if wants_partial(request) and "after" in request.GET:
        return _news(request, box, now)
    return _list(request, box, context, now)


def _list(request: HttpRequest, box: RunSearchBox, context: dict[str, Any], now: datetime) -> HttpResponse:
    assert box.query is not None  # noqa: S101 - the caller has looked
    cursor = request.GET.get("at") or None
    try:
        page = runs.page(box.query, cursor=cursor, limit=PAGE_SIZE)
    except QueryError as error:
        # An address that was cut or made by hand: say so, on the first page.
        messages.error(request, f"That place in the list cannot be shown: {error}")
        return HttpResponseRedirect(box.address(box.text))
    newest = page.runs[0] if page.runs and cursor is None else None
    # Of an empty list everything that comes is new.
    after = f"{newest.finished_at.isoformat()}|{newest.pk}" if newest else f"{now.isoformat()}|0"
    context |= {
        "page": page,
        "list": job_list.present(box.query, page, now=now),
        "newer_href": box.address(box.text, at=page.previous_cursor or "") if page.previous_cursor else "",
        "older_href": box.address(box.text, at=page.next_cursor or "") if page.next_cursor else "",
        "live_url": box.address(box.text, after=after) if cursor is None else "",
        "shorter_searches": job_list.shorter_searches(box),
        "ids": [term.values[0] for term in box.query.terms if term.qualifier in {"", "id"}],
        "window_query": run_search.window_query(box.query),
    }
    return render_page(request, "console/jobs/list.html", "console/jobs/list.html", context)


def _news(request: HttpRequest, box: RunSearchBox, now: datetime) -> HttpResponse:
    """Answer the poll: how many more match since the page was drawn."""
    assert box.query is not None  # noqa: S101 - the caller has looked
    moment, _, number = request.GET["after"].partition("|")
    try:
        after = parse_datetime(moment)
        # At an end of the calendar a time of another zone lies outside of it.
        after = None if after is None or after.tzinfo is None else after.astimezone(UTC)
    except (ValueError, OverflowError):
        after = None
    after_id = int(number[:18]) if number.isdecimal() else 0
    newer = 0
    if after is not None:
        newer = runs.newer_count(box.query, after=after, after_id=after_id)
    context = {"newer": newer, "most": runs.MOST_COUNTED, "href": box.address(box.text), "now": now}
    return render(request, "console/jobs/_news.html", context)


@require_GET
@requires("jobs.view_run")
def job(request: HttpRequest) -> HttpResponse:
    """Show all that is kept of the job ``?id=``: on one line, and as a list."""
    now = timezone.now()
    task_id = clean_name(request.GET.get("id", "").strip())
    if not task_id:
        messages.error(request, "That address names no job. Search for its id, or choose it here.")
        return HttpResponseRedirect(reverse("console:jobs"))
    may_see_letters = not refusal(request.user, "jobs.view_deadletter")
    page = job_page.read(task_id, may_see_letters=may_see_letters, now=now)
    context: dict[str, Any] = {
        "page": page,
        "life": page.life,
        "task_id": task_id,
        "short_id": task_id[:8],
        "short_task": short_task(page.life.task) if page.life.task else "",
        "live_url": "" if page.is_over else addresses.job_page(task_id),
        "now": now,
    }
    if not page.life.is_known:
        return render(request, "console/jobs/nothing.html", context, status=404)
    status = STOP_POLLING if page.is_over and wants_partial(request) else 200
    return render_page(request, "console/jobs/job.html", "console/jobs/_life.html", context, status=status)
