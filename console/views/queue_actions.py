"""What is done to a queue: each asks on a page of its own, and a POST acts. Looking into it changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods

from console import addresses, windows
from console.actors import actor_of
from console.forms.asking import QueuePurgeForm
from console.forms.replay import WhyForm
from console.permissions import requires
from console.presenters import queue_asking, queue_waiting
from console.presenters.queue_page import QueuePage
from console.views.numbers import name_of
from console.views.queues import find
from jobs import conf
from jobs.errors import BrokerUnavailable, QueueRefused
from jobs.queues import actions


@require_GET
@requires("jobs.view_queuesample")
@requires("jobs.peek_queue")
def waiting(request: HttpRequest) -> HttpResponse:
    """Show the oldest messages of the queue ``?name=`` where they wait; their arguments are masked."""
    page, now = _page(request)
    context: dict[str, Any] = {"page": page, "found": None, "error": "", "now": now}
    status = 200
    try:
        context["found"] = queue_waiting.read(page.name)
    except (QueueRefused, BrokerUnavailable) as refused:
        context["error"], status = str(refused), 409
    return render(request, "console/queues/waiting.html", context, status=status)


@require_http_methods(["GET", "POST"])
@requires("jobs.view_queuesample")
@requires("jobs.pause_queue")
def pause(request: HttpRequest) -> HttpResponse:
    """Ask, then tell workers not to consume from the queue ``?name=``."""
    page, now = _page(request)
    form = WhyForm(request.POST if request.method == "POST" else None)

    def act() -> str:
        done = actions.pause(page.name, actor=actor_of(request), why=form.cleaned_data["why"], now=now)
        return queue_asking.paused_words(done)

    asked = queue_asking.pause(page)
    return _ask(request, page, form, act, "console/queues/ask.html", {"asked": asked}, now=now)


@require_http_methods(["GET", "HEAD", "POST"])
@requires("jobs.view_queuesample")
@requires("jobs.pause_queue")
def resume(request: HttpRequest) -> HttpResponse:
    """Tell workers to consume from the queue ``?name=`` again; a GET leads to its page."""
    page, now = _page(request)
    there = _there(request, page)
    if request.method != "POST":
        messages.warning(request, "Nothing was done: only the button on this page acts.")
        return HttpResponseRedirect(there)
    try:
        done = actions.resume(page.name, actor=actor_of(request), now=now)
    except (QueueRefused, BrokerUnavailable) as refused:
        messages.error(request, str(refused))
    else:
        messages.success(request, queue_asking.resumed_words(done))
    return redirect(there)


@require_http_methods(["GET", "POST"])
@requires("jobs.view_queuesample")
@requires("jobs.purge_queue")
def purge(request: HttpRequest) -> HttpResponse:
    """Ask, then have runops take what waits on the queue ``?name=``; it can be restored until its deadline."""
    page, now = _page(request)
    form = QueuePurgeForm(
        request.POST if request.method == "POST" else None, typed_above=queue_asking.TYPED_ABOVE
    )

    def act() -> str:
        action = actions.purge(
            page.name,
            expected=form.cleaned_data["expected"],
            actor=actor_of(request),
            why=form.cleaned_data["why"],
            now=now,
        )
        return queue_asking.purged_words(action)

    context = {
        "asked": queue_asking.purge(page),
        "deleted_at": now + conf.current().purge_deadline,
        "typed_above": queue_asking.TYPED_ABOVE,
    }
    return _ask(request, page, form, act, "console/queues/purge.html", context, now=now)


def _page(request: HttpRequest) -> tuple[QueuePage, datetime]:
    now = timezone.now()
    return find(name_of(request), windows.of(request, now=now), now=now), now


def _there(request: HttpRequest, page: QueuePage) -> str:
    """Return the address of the queue's page, in the time window from which somebody came."""
    return addresses.queue_page(page.name, window_query=windows.of(request).query)


def _ask(
    request: HttpRequest,
    page: QueuePage,
    form: WhyForm,
    act: Callable[[], str],
    template: str,
    context: dict[str, Any],
    *,
    now: datetime,
) -> HttpResponse:
    """Show a question, or carry out its answer and say on the queue's page what came of it."""
    error, status = "", 200
    if request.method == "POST":
        if form.is_valid():
            try:
                messages.success(request, act())
            except (QueueRefused, BrokerUnavailable) as refused:
                error, status = str(refused), 409
            else:
                return redirect(_there(request, page))
        else:
            status = 422
    context = {"page": page, "form": form, "error": error, "now": now, **context}
    return render(request, template, context, status=status)
