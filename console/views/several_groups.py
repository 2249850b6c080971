"""Triage of several groups in one go: a page that asks, with one button for each thing to be done."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from console import times
from console.actors import actor_of
from console.forms.triage import MuteForm
from console.permissions import requires
from console.presenters.plain import count_of
from jobs import search, triage
from jobs.core import query as core_query
from jobs.core.query import QuerySyntaxError
from jobs.core.words import GroupState
from jobs.models import FailureGroup
from jobs.triage import TriageRefused

GROUPS_LIMIT = 200
# In which states each action changes something; the services refuse the others.
CHANGES: dict[str, frozenset[GroupState]] = {
    "know": frozenset({GroupState.NEW, GroupState.REGRESSED, GroupState.RESOLVED}),
    "resolve": frozenset(GroupState) - {GroupState.RESOLVED},
    "mute": frozenset(GroupState) - {GroupState.MUTED},
}


@require_http_methods(["GET", "POST"])
@requires("jobs.view_deadletter")
@requires("jobs.triage_failuregroup")
def triage_several(request: HttpRequest) -> HttpResponse:
    """Ask what to do with the chosen groups (``group`` repeated, or those that match ``q``), then do it."""
    now = timezone.now()
    groups = _chosen(request.POST if request.method == "POST" else request.GET, now)
    if request.method == "GET" or not groups:
        return _page(request, groups, now)
    action = request.POST.get("action", "")
    if action not in CHANGES:
        raise Http404(f"No such action: {action[:40]}. There are {', '.join(CHANGES)}.")
    form = MuteForm(request.POST)
    until = None
    if action == "mute":
        # Its fields take any text; until_at() says what is wrong with it.
        form.is_valid()
        try:
            until = form.until_at(now)
        except ValidationError as error:
            return _page(request, groups, now, error=error.messages[0], status=422)
    changed = 0
    for group in groups:
        if group.state not in CHANGES[action]:
            continue
        try:
            _service(action, request, form, until, now)(group)
        except TriageRefused as refused:
            messages.warning(request, str(refused))
        else:
            changed += 1
    if changed:
        messages.success(request, _said(action, changed, until, now))
    else:
        messages.warning(request, "Nothing was changed: none of these groups was in a state for it any more.")
    return HttpResponseRedirect(reverse("console:groups"))


def _service(
    action: str, request: HttpRequest, form: MuteForm, until: datetime | None, now: datetime
) -> Callable[[FailureGroup], FailureGroup]:
    actor = actor_of(request)
    if action == "know":
        return lambda group: triage.know_group(group=group, actor=actor, now=now)
    if action == "resolve":
        return lambda group: triage.resolve_group(group=group, actor=actor, now=now)
    why = form.cleaned_data["why"]
    return lambda group: triage.mute_group(group=group, until=until, why=why, actor=actor, now=now)


def _chosen(parameters: QueryDict, now: datetime) -> list[FailureGroup]:
    """Return the groups that were ticked, or else those of a search."""
    ids = [int(each) for each in parameters.getlist("group") if each.isascii() and each.isdecimal()]
    ids = [each for each in ids if each < 2**63][:GROUPS_LIMIT]
    if not ids and "q" in parameters:
        try:
            searched = core_query.parse(parameters.get("q", ""), now=now)
        except QuerySyntaxError as error:
            raise Http404(error.message) from None
        ids = [row.group.pk for row in search.groups(searched)[:GROUPS_LIMIT]]
    return list(FailureGroup.objects.filter(pk__in=ids).order_by("-last_seen_at"))


def _said(action: str, changed: int, until: datetime | None, now: datetime) -> str:
    groups = count_of(changed, "group")
    if action == "know":
        return f"{groups} marked as known."
    if action == "resolve":
        return f"{groups} resolved. The next death of one of their jobs opens it again."
    return f"{groups} muted until {times.day(until, now=now) if until else 'somebody unmutes them'}."


def _page(
    request: HttpRequest, groups: list[FailureGroup], now: datetime, *, error: str = "", status: int = 200
) -> HttpResponse:
    counts = {
        action: sum(1 for group in groups if group.state in states) for action, states in CHANGES.items()
    }
    context: dict[str, Any] = {
        "groups": groups,
        "counts": counts,
        "words": {action: count_of(number, "group") for action, number in counts.items()},
        "typed": request.POST,
        "error": error,
        "now": now,
    }
    return render(request, "console/groups/several.html", context, status=status)
