"""The list of operations, the page of one, and its controls. Every change is a POST."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods

from console import operation_charts
from console.actors import actor_of
from console.forms.replay import RateForm, WhyForm
from console.forms.triage import NoteForm
from console.htmx import STOP_POLLING, render_page
from console.methods import acts_on
from console.permissions import requires
from console.presenters import operation_page as presenter
from jobs import operations as services
from jobs import triage
from jobs.audit import Actor
from jobs.errors import OperationRefused
from jobs.models import Operation
from jobs.triage import TriageRefused


@require_GET
@requires("jobs.view_operation")
def operation_list(request: HttpRequest) -> HttpResponse:
    """List the operations, those that run first, then the newest."""
    now = timezone.now()
    before = request.GET.get("before", "")
    rows = presenter.read_list(
        now=now, before=int(before) if before.isascii() and before.isdecimal() and len(before) < 19 else None
    )
    return render_page(
        request, "console/operations/list.html", "console/operations/_list.html", {"list": rows, "now": now}
    )


@require_GET
@requires("jobs.view_operation")
def operation_page(request: HttpRequest, operation_id: int) -> HttpResponse:
    """Show one operation; polled every 2 s until it has ended."""
    return _page(request, _find(operation_id))


@acts_on("console:operation", "operation_id")
@requires("jobs.view_operation")
@requires("jobs.control_operation")
def pause(request: HttpRequest, operation_id: int) -> HttpResponse:
    """Stop sending; the place is kept."""
    return _control(request, operation_id, services.pause, "Paused. What was sent stays sent.")


@acts_on("console:operation", "operation_id")
@requires("jobs.view_operation")
@requires("jobs.control_operation")
def resume(request: HttpRequest, operation_id: int) -> HttpResponse:
    """Go on with a paused operation, or in spite of what stopped it."""
    return _control(request, operation_id, services.resume, "Resumed.")


@acts_on("console:operation", "operation_id")
@requires("jobs.view_operation")
@requires("jobs.control_operation")
def continue_stage(request: HttpRequest, operation_id: int) -> HttpResponse:
    """Stop waiting for outcomes."""
    return _control(request, operation_id, services.continue_stage, "It no longer waits for those outcomes.")


@require_http_methods(["GET", "POST"])
@requires("jobs.view_operation")
@requires("jobs.control_operation")
def cancel(request: HttpRequest, operation_id: int) -> HttpResponse:
    """Ask whether to cancel, then do it."""
    if request.method == "POST":
        return _control(request, operation_id, services.cancel, "Cancelled. What was sent stays sent.")
    now = timezone.now()
    operation = _find(operation_id)
    context = {"page": _read(operation, now), "operation": operation, "verb": "Cancel", "now": now}
    return render(request, "console/operations/cancel.html", context)


@acts_on("console:operation", "operation_id")
@requires("jobs.view_operation")
@requires("jobs.control_operation")
def set_rate(request: HttpRequest, operation_id: int) -> HttpResponse:
    """Change how many letters a second are sent."""
    operation = _find(operation_id)
    form = RateForm(request.POST)
    if not form.is_valid():
        return _page(request, operation, error=str(form.errors["rate"][0]), status=422)
    rate: float | None = form.cleaned_data["rate"]
    words = "no limit" if rate is None else f"{rate:g} letters a second"

    def change(*, operation: Operation, actor: Actor, now: datetime) -> Operation:
        return services.set_rate(operation=operation, rate_per_second=rate, actor=actor, now=now)

    return _control(request, operation_id, change, f"The rate is {words}.")


@acts_on("console:operation", "operation_id")
@requires("jobs.view_operation")
@requires("jobs.control_operation")
def note(request: HttpRequest, operation_id: int) -> HttpResponse:
    """Write a note into the log."""
    operation = _find(operation_id)
    form = NoteForm(request.POST)
    form.is_valid()
    text: str = form.cleaned_data.get("text", "")
    try:
        triage.note_operation(
            operation=operation,
            text=text,
            actor=actor_of(request),
            now=timezone.now(),
        )
    except TriageRefused as refused:
        return _page(request, operation, note_text=text, note_error=str(refused), status=422)
    messages.success(request, "The note is in the log.")
    return redirect("console:operation", operation_id=operation_id)


@require_http_methods(["GET", "POST"])
@requires("jobs.view_operation")
@requires("jobs.restore_deadletter")
def restore(request: HttpRequest, operation_id: int) -> HttpResponse:
    """Ask whether to bring back all that a purge hid, then start it."""
    operation = _find(operation_id)
    now = timezone.now()
    form = WhyForm(request.POST if request.method == "POST" else None)
    error, status = "", 200
    if request.method == "POST":
        if form.is_valid():
            try:
                started = services.start_restore(
                    operation=operation,
                    actor=actor_of(request),
                    why=form.cleaned_data["why"],
                    now=now,
                )
            except OperationRefused as refused:
                error, status = str(refused), 409
            else:
                return redirect("console:operation", operation_id=started.pk)
        else:
            status = 422
    context = {
        "page": _read(operation, now),
        "operation": operation,
        "form": form,
        "error": error,
        "restorable": services.purged_letters(operation).count(),
        "verb": "Restore",
        "now": now,
    }
    return render(request, "console/operations/restore.html", context, status=status)


def _find(operation_id: int) -> Operation:
    # A database's big integer ends here; a longer number is no operation's.
    found = None
    if operation_id < 2**63:
        found = Operation.objects.select_related("created_by", "restores").filter(pk=operation_id).first()
    if found is None:
        raise Http404(f"There is no operation {str(operation_id)[:20]}.")
    return found


def _control(
    request: HttpRequest, operation_id: int, service: Callable[..., Operation], said: str
) -> HttpResponse:
    """Call one service; say what it did, or show the page with why it refused."""
    operation = _find(operation_id)
    try:
        service(operation=operation, actor=actor_of(request), now=timezone.now())
    except OperationRefused as refused:
        return _page(request, _find(operation_id), error=str(refused), status=409)
    messages.success(request, said)
    return redirect("console:operation", operation_id=operation_id)


def _read(operation: Operation, now: datetime) -> presenter.OperationPage:
    return presenter.read(operation, now=now)


def _page(
    request: HttpRequest,
    operation: Operation,
    *,
    error: str = "",
    note_text: str = "",
    note_error: str = "",
    status: int = 200,
) -> HttpResponse:
    now = timezone.now()
    page = _read(operation, now)
    context: dict[str, Any] = {
        "page": page,
        "operation": operation,
        "progress": page.progress,
        # There from the beginning, so that nothing under it moves when the first letter is sent.
        "chart": json.dumps(operation_charts.sent(page.progress, now=now)) if page.is_replay else "",
        "chart_rows": operation_charts.table(page.progress, now=now),
        "rate": operation.rate_per_second,
        "cancel_url": reverse("console:operation-cancel", args=[operation.pk]),
        "restore_url": reverse("console:operation-restore", args=[operation.pk]),
        "restored_by": presenter.restores_of(operation),
        "live_url": reverse("console:operation", args=[operation.pk]) if page.keeps_changing else "",
        "standstill": presenter.standstill(operation),
        "error": error,
        "note_text": note_text,
        "note_error": note_error,
        "now": now,
    }
    # The last answer still carries what changed; after it nothing will.
    if status == 200 and not page.keeps_changing:
        status = STOP_POLLING
    return render_page(
        request, "console/operations/page.html", "console/operations/_answer.html", context, status=status
    )
