"""What is done to a worker and to a job in it: each asks on a page of its own, and a POST acts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from console import addresses, windows
from console.actors import actor_of
from console.forms.asking import RevokeForm
from console.forms.replay import WhyForm
from console.permissions import requires
from console.presenters import worker_asking
from console.presenters.plain import visible
from console.views.numbers import NAME_LIMIT, name_of
from console.views.workers import find
from jobs import worker_control
from jobs.errors import BrokerUnavailable, WorkerRefused


@require_http_methods(["GET", "POST"])
@requires("jobs.view_workerboot")
@requires("jobs.control_workerboot")
def grow(request: HttpRequest) -> HttpResponse:
    """Ask, then let a worker run one more job at a time."""
    return _act(request, "grow", worker_control.grow)


@require_http_methods(["GET", "POST"])
@requires("jobs.view_workerboot")
@requires("jobs.control_workerboot")
def shrink(request: HttpRequest) -> HttpResponse:
    """Ask, then let a worker run one job less at a time."""
    return _act(request, "shrink", worker_control.shrink)


@require_http_methods(["GET", "POST"])
@requires("jobs.view_workerboot")
@requires("jobs.control_workerboot")
def shut_down(request: HttpRequest) -> HttpResponse:
    """Ask, then let a worker finish what runs and end."""
    return _act(request, "shut_down", worker_control.shut_down)


@require_http_methods(["GET", "POST"])
@requires("jobs.view_workerboot")
@requires("jobs.revoke_job")
def revoke(request: HttpRequest) -> HttpResponse:
    """Ask, then revoke the job ``?id=``; with a tick its worker stops it where it runs."""
    now = timezone.now()
    task_id = request.GET.get("id", "").replace("\x00", "")[:NAME_LIMIT]
    if not task_id:
        raise Http404("No job was named. Open a worker and choose one of the jobs that it runs.")
    asked = worker_asking.revoke(task_id, now=now)
    form = RevokeForm(request.POST if request.method == "POST" else None)
    error, status = "", 200
    if request.method == "POST":
        if form.is_valid():
            try:
                done = worker_control.revoke(
                    task_id=task_id,
                    terminate=form.cleaned_data["terminate"],
                    actor=actor_of(request),
                    why=form.cleaned_data["why"],
                    now=now,
                )
            except (WorkerRefused, BrokerUnavailable) as refused:
                error, status = str(refused), 409
            else:
                messages.success(request, worker_asking.revoked_words(task_id, done))
                return redirect(_back(request, asked.hostname))
        else:
            status = 422
    context = {"asked": asked, "form": form, "error": error, "now": now}
    return render(request, "console/workers/revoke.html", context, status=status)


def _back(request: HttpRequest, hostname: str) -> str:
    """Return the worker's page, or the list where none is known, in the time window that one came from."""
    query = windows.of(request).query
    if hostname:
        return addresses.worker_page(hostname, window_query=query)
    return f"{reverse('console:workers')}{'?' if query else ''}{query}"


def _act(request: HttpRequest, action: str, service: Callable[..., None]) -> HttpResponse:
    now = timezone.now()
    page = find(name_of(request), now=now)
    asked = worker_asking.ask(action, page)
    form = WhyForm(request.POST if request.method == "POST" else None)
    error, status = "", 200
    if request.method == "POST":
        if asked.why_not:
            error, status = asked.why_not, 409
        elif form.is_valid():
            try:
                service(
                    hostname=page.hostname, actor=actor_of(request), why=form.cleaned_data["why"], now=now
                )
            except (WorkerRefused, BrokerUnavailable) as refused:
                error, status = str(refused), 409
            else:
                messages.success(request, f"{visible(page.hostname[:80], keep='')} {asked.said}")
                return redirect(_back(request, page.hostname))
        else:
            status = 422
    context: dict[str, Any] = {"asked": asked, "page": page, "form": form, "error": error, "now": now}
    return render(request, "console/workers/ask.html", context, status=status)
