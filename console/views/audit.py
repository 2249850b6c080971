"""Who did what, when and why."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone

from console.forms import audit as audit_form
from console.permissions import requires
from jobs import audit_log


@requires("jobs.view_auditentry")
def audit(request: HttpRequest) -> HttpResponse:
    """Show the audit, newest first."""
    now = timezone.now()
    chosen = audit_form.read(request.GET.dict(), now=now)
    before = request.GET.get("before", "")
    older_than = int(before) if before.isascii() and before.isdecimal() and len(before) < 19 else None
    page = audit_log.page(
        actor=chosen.actor, action=chosen.action, text=chosen.text, since=chosen.since, older_than=older_than
    )
    path = reverse("console:audit")
    context = {
        "filter": chosen,
        "page": page,
        "actors": audit_log.actors(),
        "actions": audit_log.actions(),
        "is_first": older_than is None,
        "first_href": chosen.address(path),
        "older_href": chosen.address(path, before=str(page.older_than)) if page.older_than else "",
        "now": now,
    }
    return render(request, "console/audit/page.html", context, status=400 if chosen.error else 200)
