"""One URL, two renderings: the whole page, or the part of it that htmx asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.cache import patch_vary_headers
from django_htmx.middleware import HtmxDetails

from console.recent import recent

# htmx stops polling an element whose answer has this status.
STOP_POLLING = 286
# How long the answer to a poll serves the other tabs.
POLL_SECONDS = 2.5
# What an answer depends on beside its address.
_VARY = ("HX-Request", "HX-Boosted", "HX-History-Restore-Request")


def wants_partial(request: HttpRequest) -> bool:
    """Tell whether htmx will swap the answer into a page that is already there."""
    htmx: HtmxDetails = request.htmx  # type: ignore[attr-defined]
    return bool(htmx) and not htmx.boosted and not htmx.history_restore_request


def render_page(
    request: HttpRequest,
    page: str,
    partial: str,
    context: dict[str, Any] | None = None,
    *,
    status: int = 200,
) -> HttpResponse:
    """Render ``partial`` for htmx and ``page`` for everybody else, with the headers a cache needs."""
    template = partial if wants_partial(request) else page
    # A page that stopped polling is still a page: browsers know no status 286.
    if status == STOP_POLLING and template == page:
        status = 200
    response = render(request, template, context, status=status)
    patch_vary_headers(response, _VARY)
    return response


def render_polled(
    request: HttpRequest,
    page: str,
    partial: str,
    read: Callable[[], dict[str, Any]],
    *,
    seconds: float = POLL_SECONDS,
) -> HttpResponse:
    """Render ``page`` as it is now; of polls, tabs of the same login and address are told the same for ``seconds``.

    These are fewer than a tab waits between two polls. ``read`` returns the context, and is not called where the
    answer to a poll is known.
    """
    if not wants_partial(request):
        return render_page(request, page, partial, read())
    key = ("poll", request.user.pk, request.session.session_key, request.get_full_path())
    response = HttpResponse(recent(key, seconds, lambda: render(request, partial, read()).content))
    patch_vary_headers(response, (*_VARY, "Cookie"))
    return response
