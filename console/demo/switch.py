"""The demo's switch on the Overview: what it shows, and what it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import AbstractUser
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import path, reverse
from django.utils import timezone
from django.utils.functional import SimpleLazyObject
from django.views.decorators.http import require_POST

from console.demo.releases import mark_release
from console.demo.state import Demo
from console.permissions import requires
from jobs import audit

app_name = "demo"


def current() -> Demo:
    """Return the demo of this installation."""
    return Demo.of(Path(settings.DATA_DIR))


def context(request: HttpRequest) -> dict[str, Any]:
    """Add ``demo``; its files are looked at only where a template asks."""
    return {"demo": SimpleLazyObject(current)}


@require_POST
@requires("jobs.replay_deadletter")
def switch(request: HttpRequest) -> HttpResponse:
    """Fix the bugs or bring them back, as ``bugs`` says, and go back to the Overview."""
    demo = current()
    if not demo.is_running:
        raise Http404("The demo is not running. Start it with `manage.py up --demo`.")
    wanted = request.POST.get("bugs", "")
    if wanted not in {"fixed", "back"}:
        return HttpResponse(
            f"bugs={wanted!r} is not known. Send fixed or back.", status=400, content_type="text/plain"
        )
    is_fixed = wanted == "fixed"
    with transaction.atomic():
        if demo.switch(fixed=is_fixed):
            assert isinstance(request.user, AbstractUser)  # noqa: S101 (the permission says so)
            actor, now = audit.Actor(user=request.user), timezone.now()
            audit.record(
                actor=actor,
                action="demo.switch",
                text="fixed the bugs of the demo shop"
                if is_fixed
                else "brought the bugs of the demo shop back",
                now=now,
            )
            mark_release(fixed=is_fixed, actor=actor, now=now)
    messages.success(
        request,
        "The bugs are fixed. The shop’s worker starts again in a moment; then replay."
        if is_fixed
        else "The bugs are back. The shop’s worker starts again in a moment.",
    )
    return HttpResponseRedirect(reverse("console:overview"))


urlpatterns = [path("switch/", switch, name="switch")]
