"""Export: a page that says what the file holds, and the file, streamed as JSON lines."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode
from django.views.decorators.http import require_http_methods

from console.actors import actor_of
from console.permissions import requires
from console.presenters import confirm_page
from console.presenters.confirm_page import Frozen
from console.presenters.plain import count_of
from console.views.confirm import selection_of
from jobs import audit, exporting
from jobs.core.query import QuerySyntaxError
from jobs.errors import JobsError
from jobs.operations import Selection


@require_http_methods(["GET", "POST"])
@requires("jobs.view_deadletter")
@requires("jobs.export_deadletter")
def export(request: HttpRequest) -> HttpResponseBase:
    """Say what would be exported; on POST write it into the audit and stream it."""
    now = timezone.now()
    try:
        if request.method == "GET":
            selection = selection_of(request.GET, now=now)
        else:
            selection = confirm_page.read_token(request.POST.get("frozen", "")).selection
        selection.check_ids()
    except JobsError as refused:
        context = {
            "kind": "export",
            "title": "Export dead letters",
            "error": str(refused),
            "suggestion": refused.suggestion if isinstance(refused, QuerySyntaxError) else "",
            "page_url": reverse("console:export"),
            "letters_url": reverse("console:letters"),
        }
        return render(request, "console/confirm/cannot.html", context, status=422)
    letters = exporting.selected(selection)
    count = letters.count()
    is_masked = not request.user.has_perm("jobs.reveal_deadletter")
    if request.method == "GET":
        return _page(request, selection, count, is_masked)
    audit.record(
        actor=actor_of(request),
        action="export",
        text=f"exported {count_of(count, 'letter')}{' with masked arguments' if is_masked else ' whole'}: "
        f"{selection.words}",
        details={"count": count, "masked": is_masked},
        now=now,
    )
    response = StreamingHttpResponse(
        exporting.lines(letters, is_masked=is_masked), content_type="application/x-ndjson"
    )
    response["Content-Disposition"] = f'attachment; filename="dead-letters-{now:%Y%m%d-%H%M%S}.jsonl"'
    response["Cache-Control"] = "no-store, private"
    return response


def _page(request: HttpRequest, selection: Selection, count: int, is_masked: bool) -> HttpResponse:
    back = reverse("console:letters")
    if selection.is_by_hand and len(selection.ids) == 1:
        back = reverse("console:letter", args=[selection.ids[0]])
    elif not selection.is_by_hand:
        back = f"{back}?{urlencode({'q': selection.query})}"
    context = {
        "selection": selection,
        "count": count,
        "is_masked": is_masked,
        "frozen": confirm_page.write_token(Frozen(selection, count)),
        "button": f"Export {count_of(count, 'letter')}",
        "back_url": back,
    }
    return render(request, "console/confirm/export.html", context)
