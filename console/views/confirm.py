"""The pages that ask before letters are replayed, purged or restored. GET shows, POST acts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode
from django.views.decorators.http import require_http_methods

from console.actors import actor_of
from console.forms.replay import DEFAULT_RATE, PurgeForm, ReplayForm, WhyForm, read_rate
from console.permissions import requires
from console.presenters import confirm_page
from console.presenters.confirm_page import Frozen
from jobs import conf
from jobs import operations as services
from jobs.audit import Actor
from jobs.core.query import QuerySyntaxError
from jobs.core.words import OperationKind
from jobs.errors import JobsError, OperationRefused
from jobs.models import Operation
from jobs.operations import Preview, Selection

# A relative time says more than the clock for so long.
DAY = timedelta(days=1)


@require_http_methods(["GET", "POST"])
@requires("jobs.view_deadletter")
@requires("jobs.replay_deadletter")
def replay(request: HttpRequest) -> HttpResponse:
    """Ask how to replay the selected letters, then start it."""
    return _page(request, OperationKind.REPLAY, _replay_form, _start_replay)


@require_http_methods(["GET", "POST"])
@requires("jobs.view_deadletter")
@requires("jobs.purge_deadletter")
def purge(request: HttpRequest) -> HttpResponse:
    """Ask whether to purge the selected letters, then start it."""
    return _page(request, OperationKind.PURGE, _purge_form, _start_purge)


@require_http_methods(["GET", "POST"])
@requires("jobs.view_deadletter")
@requires("jobs.restore_deadletter")
def restore(request: HttpRequest) -> HttpResponse:
    """Ask whether to restore the selected purged letters, then start it."""
    return _page(request, OperationKind.RESTORE, _restore_form, _start_restore)


FormMaker = Callable[[HttpRequest, Preview | None, Frozen, datetime], WhyForm]
Starter = Callable[[Any, Frozen, Actor, datetime], Operation]


def selection_of(params: QueryDict, *, now: datetime) -> Selection:
    """Read what was selected: the ``id`` parameters, or else the search ``q``.

    Raises:
        JobsError: when the search cannot be read, or there is no selection.
    """
    ids = [value for value in params.getlist("id") if value]
    if ids:
        return Selection.of_ids(ids, now=now)
    if "q" not in params:
        raise OperationRefused("Nothing is selected. Tick letters in the list, or search for them.")
    return Selection.of_query(params.get("q", ""), now=now)


def _page(request: HttpRequest, kind: OperationKind, make_form: FormMaker, start: Starter) -> HttpResponse:
    now = timezone.now()
    error, status = "", 200
    try:
        if request.method == "GET":
            selection = selection_of(request.GET, now=now)
            frozen = Frozen(selection, 0)
        else:
            frozen = confirm_page.read_token(request.POST.get("frozen", ""))
        shown: Preview | None = None
        if request.method == "POST":
            form = make_form(request, None, frozen, now)
            if form.is_valid():
                try:
                    operation = start(form, frozen, actor_of(request), now)
                except OperationRefused as refused:
                    error, status = str(refused), 409
                else:
                    return redirect("console:operation", operation_id=operation.pk)
            else:
                status = 422
        shown = services.preview(frozen.selection, kind=kind, now=now)
        if request.method == "GET":
            form = make_form(request, shown, frozen, now)
    except JobsError as refused:
        return _cannot(request, kind, refused)
    before = frozen.count if request.method == "POST" else shown.selected
    frozen = Frozen(frozen.selection, shown.selected)
    context = _context(request, kind, frozen, shown, form, now)
    context |= {"error": error, "shown_before": before, "count_changed": before != shown.selected}
    return render(request, f"console/confirm/{kind.value}.html", context, status=status)


def _context(
    request: HttpRequest, kind: OperationKind, frozen: Frozen, shown: Preview, form: WhyForm, now: datetime
) -> dict[str, Any]:
    selection = frozen.selection
    # The search of the list that the letters were chosen in, as it was typed.
    list_q = (request.POST if request.method == "POST" else request.GET).get("q")
    is_one = selection.is_by_hand and len(selection.ids) == 1
    back = reverse("console:letter", args=[selection.ids[0]]) if is_one else reverse("console:letters")
    if list_q is None and not selection.is_by_hand:
        list_q = selection.query
    if list_q is not None:
        back = f"{back}?{urlencode({'q': list_q})}"
    return {
        "kind": kind.value,
        "title": confirm_page.title(kind, frozen),
        "button": confirm_page.button(kind, shown.to_send),
        "selection": selection,
        "preview": shown,
        "oldest_is_recent": shown.oldest is not None and now - shown.oldest < DAY,
        "newest_is_recent": shown.newest is not None and now - shown.newest < DAY,
        "columns": confirm_page.columns(shown),
        "shares_total": shown.to_send + shown.refused,
        "form": form,
        "frozen": confirm_page.write_token(frozen),
        "back_url": back,
        "back_words": _back_words(selection),
        "list_q": list_q,
        "only_letter": selection.ids[0][:8] if is_one else "",
        "page_url": reverse(f"console:{kind.value}"),
        "letters_url": reverse("console:letters"),
        "now": now,
        **_extra_context(kind, shown, form, now),
    }


def _back_words(selection: Selection) -> str:
    if not selection.is_by_hand:
        return "Change the selection"
    return "Back to the letter" if len(selection.ids) == 1 else "Back to the list"


def _extra_context(kind: OperationKind, shown: Preview, form: WhyForm, now: datetime) -> dict[str, Any]:
    if kind == OperationKind.PURGE:
        return {"deleted_at": now + conf.current().purge_deadline, "must_type": _must_type(shown.selected)}
    if kind == OperationKind.RESTORE or not isinstance(form, ReplayForm):
        return {}
    stages = [int(text.replace(",", "")) for text in form.stage_texts if text.replace(",", "").isdecimal()]
    rate_text = str(form["rate"].value() or "")
    try:
        rate = read_rate(rate_text)
        takes = confirm_page.duration_words(shown.to_send, rate)
    except ValidationError:
        # The error beside the field says what is wrong with it.
        takes = ""
    return {
        "stage_fields": [*form.stage_texts, "", "", ""][:3],
        "sends": confirm_page.sends_words(confirm_page.stage_sizes([*stages, None], shown.to_send)),
        "takes": takes,
        "may_keep_id": confirm_page.may_keep_id(shown),
        "ran_to_their_end": confirm_page.ran_to_their_end(shown),
        "queues": form.queues,
    }


def _replay_form(request: HttpRequest, shown: Preview | None, frozen: Frozen, now: datetime) -> WhyForm:
    queues = confirm_page.online_queues(now=now)
    if request.method == "POST":
        asks_twice = confirm_page.has_run_to_its_end(frozen.selection)
        return ReplayForm(request.POST, must_accept_effects=asks_twice, queues=queues)
    assert shown is not None  # noqa: S101 - a GET has its preview
    initial = {
        "rate": f"{DEFAULT_RATE:g}",
        "stages": confirm_page.proposed_stages(shown.to_send),
        "stop_above_percent": 20,
    }
    return ReplayForm(
        initial=initial, must_accept_effects=confirm_page.ran_to_their_end(shown) > 0, queues=queues
    )


def _purge_form(request: HttpRequest, shown: Preview | None, frozen: Frozen, now: datetime) -> WhyForm:
    count = frozen.count if shown is None else shown.selected
    data = request.POST if request.method == "POST" else None
    return PurgeForm(data, must_type=_must_type(count), selected=count)


def _restore_form(request: HttpRequest, shown: Preview | None, frozen: Frozen, now: datetime) -> WhyForm:
    return WhyForm(request.POST if request.method == "POST" else None)


def _start_replay(form: ReplayForm, frozen: Frozen, actor: Actor, now: datetime) -> Operation:
    values = form.cleaned_data
    return services.start_replay(
        selection=frozen.selection,
        actor=actor,
        why=values["why"],
        now=now,
        rate_per_second=values["rate"],
        stages=values["stages"],
        stop_above_percent=values["stop_above_percent"],
        target_queue=values["target_queue"],
        keeps_task_id=values["keeps_task_id"],
        expected_count=frozen.count,
    )


def _start_purge(form: PurgeForm, frozen: Frozen, actor: Actor, now: datetime) -> Operation:
    values = form.cleaned_data
    return services.start_purge(
        selection=frozen.selection,
        actor=actor,
        why=values["why"],
        now=now,
        typed_count=values["typed_count"],
        expected_count=frozen.count,
    )


def _start_restore(form: WhyForm, frozen: Frozen, actor: Actor, now: datetime) -> Operation:
    return services.start_restore(
        selection=frozen.selection, actor=actor, why=form.cleaned_data["why"], now=now
    )


def _must_type(count: int) -> bool:
    return count > confirm_page.TYPED_ABOVE


def _cannot(request: HttpRequest, kind: OperationKind, refused: JobsError) -> HttpResponse:
    """Say why there is nothing to confirm, and lead back."""
    context = {
        "kind": kind.value,
        "title": f"{kind.value.capitalize()} dead letters",
        "error": str(refused),
        "suggestion": refused.suggestion if isinstance(refused, QuerySyntaxError) else "",
        "page_url": reverse(f"console:{kind.value}"),
        "letters_url": reverse("console:letters"),
    }
    return render(request, "console/confirm/cannot.html", context, status=422)
