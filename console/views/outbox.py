"""The outbox: what waits to be sent, why, and the button that sends it now."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods

from console.actors import actor_of
from console.forms.search import address
from console.htmx import STOP_POLLING, render_page, wants_partial
from console.methods import acts_on
from console.permissions import requires
from console.presenters import outbox_message, outbox_page
from console.presenters.plain import count_of
from console.views.letter import notice_url
from jobs import conf
from jobs.errors import OutboxRefused
from jobs.models import OutboxMessage
from jobs.outbox import service
from jobs.outbox.service import OutboxView, Retried

PAGE_SIZE = 50
_SHOWN_REFUSALS = 3


@require_GET
@requires("jobs.view_outboxmessage")
def outbox(request: HttpRequest) -> HttpResponse:
    """Show one list: ``?state=`` names it, ``?q=`` is a task, queue, job id or key, ``?at=`` the place in it."""
    if wants_partial(request) and request.GET.get("drawn", "").isdecimal():
        return _news(request)
    return _list(request, request.GET.get("state", ""), request.GET.get("q", ""))


@require_http_methods(["GET", "POST"])
@requires("jobs.view_outboxmessage")
@requires("jobs.retry_outboxmessage")
def retry(request: HttpRequest) -> HttpResponse:
    """Ask before all that is stuck is retried; on POST retry that, or the ticked messages."""
    now = timezone.now()
    if request.method == "GET":
        return _ask(request, now)
    if request.POST.get("all") == "stuck":
        try:
            retried = service.retry_all_now(actor=actor_of(request), now=now)
        except OutboxRefused as refused:
            return _ask(request, now, error=str(refused), status=409)
        return _retried(request, retried, reverse("console:outbox"))
    state, text = request.POST.get("state", ""), request.POST.get("q", "")
    try:
        ids = [_id(value) for value in request.POST.getlist("id")[:PAGE_SIZE]]
        retried = service.retry_now(ids=ids, actor=actor_of(request), now=now)
    except OutboxRefused as refused:
        status = 409 if request.POST.getlist("id") else 422
        return _list(request, state, text, error=str(refused), status=status)
    return _retried(request, retried, address(reverse("console:outbox"), text, state=state))


@require_GET
@requires("jobs.view_outboxmessage")
def message_page(request: HttpRequest, message_id: uuid.UUID) -> HttpResponse:
    """Show one message: what becomes of it, what is in it."""
    return _message(request, _find(message_id))


@acts_on("console:outbox-message", "message_id")
@requires("jobs.view_outboxmessage")
@requires("jobs.retry_outboxmessage")
def retry_one(request: HttpRequest, message_id: uuid.UUID) -> HttpResponse:
    """Send one message now; a press in a list leads back to the list."""
    is_in_list = "state" in request.POST
    state, text = request.POST.get("state", ""), request.POST.get("q", "")
    message = _find(message_id)
    try:
        retried = service.retry_now(ids=[message_id], actor=actor_of(request), now=timezone.now())
    except OutboxRefused as refused:
        if is_in_list:
            return _list(request, state, text, error=str(refused), status=409)
        return _message(request, message, error=str(refused), status=409)
    back = reverse("console:outbox-message", args=[message_id])
    if is_in_list:
        back = address(reverse("console:outbox"), text, state=state)
    return _retried(request, retried, back)


def _list(request: HttpRequest, state: str, text: str, *, error: str = "", status: int = 200) -> HttpResponse:
    now = timezone.now()
    path, text = reverse("console:outbox"), text.strip()[:255].replace("\x00", "")
    cursor = request.GET.get("at") or None
    try:
        view = _view(state)
        page = service.page(view=view, text=text, cursor=cursor, limit=PAGE_SIZE, now=now)
    except OutboxRefused as refused:
        # An address that was cut or made by hand: say so, on the first page.
        messages.error(request, f"That part of the outbox cannot be shown: {refused}")
        return HttpResponseRedirect(path)
    found = _status(now)
    kept = {"state": state}
    context: dict[str, Any] = _around(view, found, text, now) | {
        "page": found,
        "rows": [_row(message, view, found, now) for message in page.messages],
        "state": state,
        "text": text,
        "foot": outbox_page.Foot(len(page.messages), page.total, page.total),
        "about_head": outbox_page.about_head(view),
        "filter_words": outbox_page.filter_words(view),
        "empty": outbox_page.empty(view, found, text=text, path=path),
        "first_href": address(path, text, **kept) if cursor else "",
        "next_href": address(path, text, **kept, at=page.next_cursor) if page.next_cursor else "",
        "live_url": address(path, text, **kept, drawn=str(page.total or 0)),
        "error": error,
    }
    return render_page(
        request, "console/outbox/page.html", "console/outbox/page.html", context, status=status
    )


def _news(request: HttpRequest) -> HttpResponse:
    """Answer the poll: the figures, and the rows that are not as the page shows them."""
    now = timezone.now()
    try:
        view = _view(request.GET.get("state", ""))
    except OutboxRefused:
        view = OutboxView.WAITING
    text = request.GET.get("q", "")
    found = _status(now)
    around = _around(view, found, text, now)
    shown = request.GET.get("rows", "").split(",")[:PAGE_SIZE]
    count = next((each.count for each in around["segments"] if each.is_current), None)
    context = around | {
        "page": found,
        "changed": _changed(shown, view, found, now),
        "foot": outbox_page.Foot(
            number=sum(1 for row in shown if row),
            total=int(request.GET["drawn"][:18]),
            # Of a search only its own list knows how many there are.
            total_now=None if text else count,
            href=address(reverse("console:outbox"), text, state=request.GET.get("state", "")),
        ),
        "oob": True,
    }
    return render(request, "console/outbox/_news.html", context)


def _around(view: OutboxView, found: outbox_page.Status, text: str, now: datetime) -> dict[str, Any]:
    return {
        "segments": outbox_page.segments(found.overview, chosen=view, addresses=_addresses(text)),
        "has_ticks": view in outbox_page.RETRIED_VIEWS,
        "when_head": outbox_page.when_head(view),
        "now": now,
    }


def _status(now: datetime) -> outbox_page.Status:
    letters = address(reverse("console:letters"), "reason:publish_failed")
    return outbox_page.status(letters_href=letters, addresses=_addresses(""), now=now)


def _addresses(text: str) -> dict[OutboxView, str]:
    path = reverse("console:outbox")
    return {
        view: address(path, text, state="" if view == OutboxView.WAITING else view.value)
        for view in OutboxView
    }


def _view(state: str) -> OutboxView:
    try:
        return OutboxView(state or OutboxView.WAITING)
    except ValueError:
        raise OutboxRefused(
            f"{state[:80]!r} is no list of the outbox. Use one of {', '.join(OutboxView)}."
        ) from None


def _row(
    message: OutboxMessage, view: OutboxView, found: outbox_page.Status, now: datetime
) -> outbox_page.Row:
    return outbox_page.row(message, view=view, is_relay_running=found.relay.is_running, now=now)


def _changed(
    shown: list[str], view: OutboxView, found: outbox_page.Status, now: datetime
) -> list[outbox_page.Row]:
    """Return the rows of a page that are not as it shows them: "<id>:<version>"."""
    versions: dict[uuid.UUID, str] = {}
    for each in shown:
        text, _, version = each.partition(":")
        try:
            versions[uuid.UUID(text)] = version
        except ValueError:
            # No page of ours sent this, so no row waits for an answer.
            continue
    rows = [_row(message, view, found, now) for message in outbox_page.rows_of(list(versions))]
    return [row for row in rows if versions[row.message.uuid] != row.version]


def _ask(request: HttpRequest, now: datetime, *, error: str = "", status: int = 200) -> HttpResponse:
    found = service.overview(now=now)
    context = {
        "stuck": found.stuck,
        "sentences": outbox_page.retry_sentences(found, is_relay_running=outbox_page.relay().is_running),
        "error": error,
        "now": now,
    }
    return render(request, "console/outbox/retry.html", context, status=status)


def _message(
    request: HttpRequest, message: OutboxMessage, *, error: str = "", status: int = 200
) -> HttpResponse:
    now = timezone.now()
    page = outbox_message.read(message, now=now)
    context = {
        "page": page,
        "message": message,
        "notes": [(note, notice_url(note.href)) for note in page.notes],
        "live_url": reverse("console:outbox-message", args=[message.uuid]),
        "error": error,
        "now": now,
    }
    if wants_partial(request) and outbox_page.is_over(message):
        # The last answer still carries how it ended.
        status = STOP_POLLING
    return render_page(
        request, "console/outbox/message.html", "console/outbox/_answer.html", context, status=status
    )


def _retried(request: HttpRequest, retried: Retried, back: str) -> HttpResponse:
    """Say what was done, and what not, on the page one came from."""
    one = retried.count == 1
    next_words = "the relay sends it next" if one else "the relay sends them next"
    if not outbox_page.relay().is_running:
        next_words = "but the relay does not run: start a runops"
    messages.success(
        request, f"{count_of(retried.count, 'message')} {'is' if one else 'are'} due now; {next_words}."
    )
    for why in retried.refused[:_SHOWN_REFUSALS]:
        messages.warning(request, why)
    if (more := len(retried.refused) - _SHOWN_REFUSALS) > 0:
        messages.warning(request, f"{more:,} more were not retried for such reasons.")
    return redirect(back)


def _find(message_id: uuid.UUID) -> OutboxMessage:
    message = service.find(message_id)
    if message is None:
        hours = conf.current().outbox_retention.total_seconds() / 3600
        raise Http404(
            f"No outbox message has the id {str(message_id)[:8]}. "
            f"What was sent is kept for {hours:g} h; search for its job."
        )
    return message


def _id(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        raise OutboxRefused(
            f"Cannot retry {text[:40]!r}: it is not the id of an outbox message. Tick the messages again."
        ) from None
