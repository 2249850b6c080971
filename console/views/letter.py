"""The page of one dead letter, and what is done on it: note, reveal, raw traceback."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone
from django.utils.cache import patch_cache_control
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from console.actors import actor_of
from console.forms.triage import NoteForm
from console.htmx import STOP_POLLING, render_page, wants_partial
from console.methods import acts_on
from console.permissions import requires
from console.presenters import letter_page as presenter
from console.presenters import letter_story
from console.presenters.plain import either, short_task, visible
from jobs import search, triage
from jobs.core import query
from jobs.core.query import Query, QuerySyntaxError
from jobs.core.words import REASON_MEANINGS, LetterState, Reason
from jobs.models import DeadLetter
from jobs.search import Neighbours
from jobs.triage import TriageRefused


@require_GET
@requires("jobs.view_deadletter")
def letter_page(request: HttpRequest, letter_id: uuid.UUID) -> HttpResponse:
    """Show one letter; ``?q=`` is the list it was opened from, ``?death=`` chooses a traceback."""
    death = request.GET.get("death", "")
    return _page(request, find_or_404(letter_id), death_id=int(death) if _is_number(death) else None)


@require_GET
@requires("jobs.view_deadletter")
def raw_traceback(request: HttpRequest, letter_id: uuid.UUID) -> HttpResponse:
    """Return a death's whole traceback as plain text."""
    deaths = find_or_404(letter_id).death_set.order_by("-died_at", "-id")
    number = request.GET.get("death", "")
    death = (deaths.filter(pk=int(number)) if _is_number(number) else deaths).first()
    if death is None:
        raise Http404("This letter has no such death.")
    response = HttpResponse(visible(death.traceback), content_type="text/plain; charset=utf-8")
    response["X-Content-Type-Options"] = "nosniff"
    return response


@acts_on("console:letter", "letter_id")
@never_cache
@requires("jobs.view_deadletter")
@requires("jobs.reveal_deadletter")
def reveal(request: HttpRequest, letter_id: uuid.UUID) -> HttpResponse:
    """Show the page once with its masked arguments, and write down who looked."""
    letter = find_or_404(letter_id)
    triage.reveal(letter=letter, actor=actor_of(request), now=timezone.now())
    response = _page(request, letter, is_revealed=True)
    patch_cache_control(response, no_store=True, private=True)
    return response


@acts_on("console:letter", "letter_id")
@requires("jobs.note_deadletter")
def note(request: HttpRequest, letter_id: uuid.UUID) -> HttpResponse:
    """Write a note on the letter."""
    letter = find_or_404(letter_id)
    form = NoteForm(request.POST)
    form.is_valid()
    text = form.cleaned_data.get("text", "")
    try:
        triage.note_letter(letter=letter, text=text, actor=actor_of(request), now=timezone.now())
    except TriageRefused as refused:
        return _page(request, letter, note_text=text, note_error=str(refused), status=422)
    messages.success(request, "The note is kept.")
    return HttpResponseRedirect(letter_url(letter, request.POST.get("q")) + "#notes")


def find_or_404(letter_id: uuid.UUID) -> DeadLetter:
    """Return the letter.

    Raises:
        Http404: when none has this id; says why that may be.
    """
    letter = presenter.find_letter(letter_id)
    if letter is None:
        raise Http404(
            f"No dead letter has the id {str(letter_id)[:8]}. "
            "It may have been deleted after its time; search for its job."
        )
    return letter


def letter_url(letter: DeadLetter, q: str | None = None) -> str:
    """Return the address of a letter's page within a search."""
    address = reverse("console:letter", args=[letter.uuid])
    return address if q is None else f"{address}?{urlencode({'q': q})}"


def _page(
    request: HttpRequest,
    letter: DeadLetter,
    *,
    death_id: int | None = None,
    is_revealed: bool = False,
    note_text: str = "",
    note_error: str = "",
    status: int = 200,
) -> HttpResponse:
    now = timezone.now()
    source = request.POST if request.method == "POST" else request.GET
    q = source.get("q")
    searched, neighbours = _neighbours(letter, q)
    masked_html = SafeString(render_to_string("console/letter/_masked.html", request=request).strip())
    page = presenter.read(
        letter, now=now, death_id=death_id, is_revealed=is_revealed, masked_html=masked_html
    )
    context = {
        "page": page,
        "letter": letter,
        "group": letter.group,
        "now": now,
        "q": q if searched is not None else None,
        "neighbours": neighbours,
        "newer_url": letter_url(neighbours.newer, q) if neighbours and neighbours.newer else "",
        "older_url": letter_url(neighbours.older, q) if neighbours and neighbours.older else "",
        "notice_url": notice_url(page.notice.href),
        "letter_url": letter_url(letter, q),
        "live_url": request.get_full_path() if request.method == "GET" else letter_url(letter, q),
        "short_task": visible(short_task(letter.task), keep=""),
        "reason_meaning": REASON_MEANINGS[Reason(letter.reason)],
        "never_ran": letter.reason in letter_story.NEVER_RAN,
        **_actions(request, letter, page, q if searched is not None else None),
        "note_text": note_text,
        "note_error": note_error,
    }
    if wants_partial(request) and letter.state != LetterState.REPLAYING:
        # The last answer still carries how it ended.
        status = STOP_POLLING
    return render_page(
        request, "console/letter/page.html", "console/letter/_answer.html", context, status=status
    )


def _actions(
    request: HttpRequest, letter: DeadLetter, page: presenter.LetterPage, q: str | None
) -> dict[str, Any]:
    """Return the addresses of the actions and why some are refused, each reason once."""
    refused = {
        action: letter_story.refusal(letter, action, page.items) for action in ("replay", "edit", "purge")
    }
    lacking = [
        doing
        for permission, doing in (
            ("jobs.replay_deadletter", "replaying"),
            ("jobs.edit_deadletter", "editing arguments"),
            ("jobs.purge_deadletter", "purging"),
        )
        if not request.user.has_perm(permission)
    ]
    reasons = list(dict.fromkeys(reason for reason in refused.values() if reason))
    if lacking:
        reasons.append(f"Your role does not allow {either(lacking)}. Ask an admin.")
    chosen = urlencode({"id": str(letter.uuid), **({} if q is None else {"q": q})})
    return {
        "refused_replay": refused["replay"],
        "refused_edit": refused["edit"],
        "refused_purge": refused["purge"],
        "refusals": reasons,
        "replay_url": f"{reverse('console:replay')}?{chosen}",
        "purge_url": f"{reverse('console:purge')}?{chosen}",
        "restore_url": f"{reverse('console:restore')}?{chosen}",
        "edit_url": reverse("console:letter-edit", args=[letter.uuid]),
    }


def _neighbours(letter: DeadLetter, q: str | None) -> tuple[Query | None, Neighbours | None]:
    """Read the search that the letter was opened from; one that cannot be read is left out."""
    if q is None:
        return None, None
    try:
        searched = query.parse(q, now=timezone.now())
    except QuerySyntaxError:
        return None, None
    return searched, search.neighbours(letter, searched)


def notice_url(href: str) -> str:
    """Return the address that a notice leads to: of "operation:214"; empty when to none."""
    kind, _, number = href.partition(":")
    return reverse(f"console:{kind}", args=[number]) if number else ""


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 19
