"""One URL, two renderings: the whole page, or the part of it that htmx asked for."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.cache import patch_vary_headers
from django_htmx.middleware import HtmxDetails

# htmx stops polling an element whose answer has this status.
STOP_POLLING = 286


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
    patch_vary_headers(response, ("HX-Request", "HX-Boosted", "HX-History-Restore-Request"))
    return response
