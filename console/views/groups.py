"""Triage of failure groups: a page for each, and one address for each action. GET shows, POST acts."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import messages
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_GET

from console.actors import actor_of
from console.forms.triage import AssignForm, MuteForm, NoteForm
from console.methods import acts_on
from console.permissions import requires
from console.presenters import group_page as presenter
from jobs import triage
from jobs.audit import Actor
from jobs.models import FailureGroup
from jobs.triage import TriageRefused

ACTIONS = ("assign", "mute", "unmute", "resolve", "know", "note", "link")


@require_GET
@requires("jobs.view_deadletter")
def group_page(request: HttpRequest, group_id: int) -> HttpResponse:
    """Show one group: what is known of it, and everything that can be done with it."""
    return _page(request, _find(group_id))


@acts_on("console:group", "group_id")
@requires("jobs.view_deadletter")
@requires("jobs.triage_failuregroup")
def triage_group(request: HttpRequest, group_id: int, action: str) -> HttpResponse:
    """Do one triage action, then lead back to where it was asked for."""
    if action not in ACTIONS:
        raise Http404(f"No such action: {action[:40]}. There are {', '.join(ACTIONS)}.")
    group = _find(group_id)
    try:
        said = _act(request, group, action, actor_of(request), timezone.now())
    except (TriageRefused, ValidationError) as refused:
        error = refused.messages[0] if isinstance(refused, ValidationError) else str(refused)
        return _page(request, _find(group_id), error=error, wrong=action, status=409)
    messages.success(request, said)
    return HttpResponseRedirect(_next(request, group))


def _act(request: HttpRequest, group: FailureGroup, action: str, actor: Actor, now: datetime) -> str:
    """Carry out one action; return the sentence that says so."""
    match action:
        case "assign":
            assign = AssignForm(request.POST, users=_users(), me=request.user)
            _check(assign)
            owner = assign.cleaned_data["owner"]
            triage.assign_group(group=group, owner=owner, actor=actor, now=now)
            return f"The group belongs to {triage.person(owner)}." if owner else "Nobody owns the group now."
        case "mute":
            mute = MuteForm(request.POST)
            _check(mute)
            until = mute.until_at(now)
            triage.mute_group(group=group, until=until, why=mute.cleaned_data["why"], actor=actor, now=now)
            return f"Muted until {until:%Y-%m-%d %H:%M} UTC." if until else "Muted until somebody unmutes it."
        case "unmute":
            triage.unmute_group(group=group, actor=actor, now=now)
            return "Unmuted: the group is known."
        case "resolve":
            triage.resolve_group(group=group, actor=actor, now=now)
            return "Resolved. The next death of one of its jobs opens it again."
        case "know":
            triage.know_group(group=group, actor=actor, now=now)
            return "Marked as known."
        case "note":
            note = NoteForm(request.POST)
            _check(note)
            triage.note_group(group=group, text=note.cleaned_data["text"], actor=actor, now=now)
            return "The note is kept." if note.cleaned_data["text"] else "The note is gone."
        case _:
            link = request.POST.get("link", "")
            triage.link_group(group=group, link=link, actor=actor, now=now)
            return "The link is kept." if link.strip() else "The link is gone."


def _check(form: Any) -> None:
    """Raise the first error of a form.

    Raises:
        ValidationError: when there is one.
    """
    if not form.is_valid():
        raise ValidationError(next(iter(form.errors.values())))


def _find(group_id: int) -> FailureGroup:
    # A database's big integer ends here; a longer number is no group's.
    if group_id >= 2**63:
        raise Http404("No group has this number.")
    return get_object_or_404(FailureGroup.objects.select_related("owner", "resolved_by"), pk=group_id)


def _users() -> dict[str, Any]:
    """Return the active users by their id as text."""
    users = get_user_model().objects.filter(is_active=True).order_by("first_name", "username")[:200]
    return {str(user.pk): user for user in users}


def _next(request: HttpRequest, group: FailureGroup) -> str:
    """Return the page the action was asked from, if it is one of ours."""
    wanted = request.POST.get("next", "")
    if url_has_allowed_host_and_scheme(
        wanted, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    ):
        return wanted
    return reverse("console:group", args=[group.pk])


def _page(
    request: HttpRequest, group: FailureGroup, *, error: str = "", wrong: str = "", status: int = 200
) -> HttpResponse:
    now = timezone.now()
    context = {
        "group": group,
        "page": presenter.read(group, now=now),
        "users": _users().values(),
        "error": error,
        "wrong": wrong,
        "replay_url": f"{reverse('console:replay')}?q=group:{group.pk}",
        "purge_url": f"{reverse('console:purge')}?q=group:{group.pk}",
        "letters_url": f"{reverse('console:letters')}?q=group:{group.pk}+state:any",
        "typed": request.POST,
        "now": now,
    }
    return render(request, "console/groups/page.html", context, status=status)
