"""Dead letters: the list, the groups, the find box."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode

from console import addresses, charts, times
from console.forms import search as search_form
from console.forms.search import SearchBox
from console.htmx import render_page
from console.permissions import requires
from jobs import search
from jobs.core import query as core_query
from jobs.core.cleaning import clean_name
from jobs.core.query import Query, QuerySyntaxError, quote, quote_pattern
from jobs.core.words import GroupState
from jobs.errors import QueryError
from jobs.metrics import names
from jobs.models import DeadLetter
from jobs.overview import STILL_FAILING
from jobs.search import summary

PAGE_SIZE = 50
_GROUP_SEGMENTS = (
    GroupState.NEW,
    GroupState.REGRESSED,
    GroupState.KNOWN,
    GroupState.MUTED,
    GroupState.RESOLVED,
)
_GROUP_ORDERS = {"-letters": "Most first", "-last": "Last seen first", "-first": "Youngest first"}


@requires("jobs.view_deadletter")
def letters(request: HttpRequest) -> HttpResponse:
    """Show one page of the letters that match, newest first."""
    now = timezone.now()
    box, answer = _box(request, "console:letters", ("order",), now)
    if answer is not None:
        return answer
    if box.query is None:
        return render(
            request, "console/letters/list.html", _head(box, None, now=now) | {"tab": "letters"}, status=400
        )
    if _asks_for_news(request):
        return _news(request, box)
    order = request.GET.get("order", "-died")
    try:
        page = search.page(box.query, cursor=request.GET.get("at") or None, limit=PAGE_SIZE, order=order)
    except (QueryError, ValueError) as error:
        # An address that was cut or made by hand: say so, on the first page.
        messages.error(request, f"That place in the list cannot be shown: {error}")
        return HttpResponseRedirect(search_form.address(box.path, box.text))
    extra = {"order": order} if order != "-died" else {}
    context = _head(box, page.total, now=now) | {
        "tab": "letters",
        "page": page,
        "order": order,
        "order_href": search_form.address(box.path, box.text, order="" if order == "died" else "died"),
        "newer_href": _page_href(box, page.previous_cursor, extra),
        "older_href": _page_href(box, page.next_cursor, extra),
        "argument_qualifier": search_form.argument_qualifier(
            [each.arguments_preview for each in page.letters]
        ),
        "selection_q": box.text,
    }
    return render_page(request, "console/letters/list.html", "console/letters/list.html", context)


@requires("jobs.view_deadletter")
def groups(request: HttpRequest) -> HttpResponse:
    """Show the groups of the letters that match."""
    now = timezone.now()
    box, answer = _box(request, "console:groups", ("group_state", "order"), now)
    if answer is not None:
        return answer
    if box.query is None:
        return render(
            request, "console/letters/list.html", _head(box, None, now=now) | {"tab": "groups"}, status=400
        )
    if _asks_for_news(request):
        return _news(request, box)
    order = request.GET.get("order", "-letters")
    chosen = request.GET.get("group_state", "")
    states = {state.value: [state] for state in GroupState}.get(chosen)
    try:
        rows = search.groups(box.query, states=states, order=order)
    except ValueError as error:
        messages.error(request, f"The groups cannot be shown so: {error}")
        return HttpResponseRedirect(search_form.address(box.path, box.text))
    head = _head(box, search.count(box.query), now=now)
    still_failing = {row.group.pk for row in rows if _still_fails(row, now)}
    context = head | {
        "tab": "groups",
        "rows": [
            {
                "row": row,
                "failing": row.group.pk in still_failing,
                "href": search_form.address(
                    reverse("console:letters"), box.query.with_term(f"group:{row.group.pk}")
                ),
                "replay_href": search_form.address(
                    reverse("console:replay"), box.query.with_term(f"group:{row.group.pk}")
                ),
            }
            for row in rows
        ],
        "shown_letters": sum(row.letters for row in rows),
        "group_state": chosen if states else "",
        "segments": _segments(box, head["group_states"], chosen if states else "", order),
        "order": order,
        "orders": [
            (
                word,
                search_form.address(
                    box.path, box.text, group_state=chosen, order="" if value == "-letters" else value
                ),
                value == order,
            )
            for value, word in _GROUP_ORDERS.items()
        ],
        "window_words": _window_words(box.query, now),
        # Without a tick the buttons mean what is shown, not what another state's groups hold as well.
        "selection_q": _of_groups(box.text, rows) if states else box.text,
    }
    return render_page(request, "console/letters/list.html", "console/letters/list.html", context)


@requires("jobs.view_deadletter")
def selected_groups(request: HttpRequest) -> HttpResponse:
    """Go from ticked groups to the page that asks what to do with their letters, or with the groups."""
    targets = {name: f"console:{name}" for name in ("replay", "purge", "export")}
    targets["triage"] = "console:groups-triage"
    target = targets.get(request.GET.get("go", ""), targets["replay"])
    ids = [number for number in request.GET.getlist("group") if number.isdecimal() and len(number) < 10]
    text = request.GET.get("q", "")
    if ids:
        text = f"{text} group:{','.join(ids)}".strip()
    # Ticked groups stay themselves; letters of a group can be gone, the group to be marked is not.
    if target == targets["triage"] and ids:
        return HttpResponseRedirect(f"{reverse(target)}?{urlencode({'group': ids}, doseq=True)}")
    return HttpResponseRedirect(search_form.address(reverse(target), text))


@requires("jobs.view_deadletter")
def find(request: HttpRequest) -> HttpResponse:
    """Go to the letter with this id or job id, to the job, queue, worker or task, else search for the text."""
    text = request.GET.get("q", "").strip()[:2000]
    if not text:
        return redirect("console:letters")
    letter = search.find(text)
    if letter is not None:
        return redirect("console:letter", letter.uuid)
    now = timezone.now()
    name = clean_name(text)
    if names.is_queue(name, now=now):
        return HttpResponseRedirect(addresses.queue_page(name))
    if names.is_worker(name):
        return HttpResponseRedirect(addresses.worker_page(name))
    tasks = names.tasks_named(name, now=now)
    if len(tasks) == 1:
        return HttpResponseRedirect(addresses.task_page(tasks[0]))
    if tasks:
        return HttpResponseRedirect(search_form.address(reverse("console:letters"), f"task:{quote(name)}"))
    jobs = names.jobs_of(name)
    if len(jobs) == 1:
        return HttpResponseRedirect(addresses.job_page(jobs[0]))
    if jobs:
        return HttpResponseRedirect(
            search_form.address(reverse("console:jobs"), quote(name, starts_term=True))
        )
    return HttpResponseRedirect(search_form.address(reverse("console:letters"), text))


def _box(
    request: HttpRequest, name: str, kept: tuple[str, ...], now: datetime
) -> tuple[SearchBox, HttpResponse | None]:
    """Read the address; what was typed or brushed leads to the address that says so."""
    path = reverse(name)
    box = search_form.read(path, request.GET.dict(), kept=kept, now=now)
    if box.query is None:
        return box, None
    try:
        text = search_form.changed(request.GET.dict(), now=now)
    except QuerySyntaxError:
        text = None
    if text is not None:
        return box, HttpResponseRedirect(box.address(text))
    return box, None


def _head(box: SearchBox, total: int | None, *, now: datetime) -> dict[str, Any]:
    """Return what both tabs show above their table."""
    context: dict[str, Any] = {
        "box": box,
        "total": total,
        "linked_qualifiers": [
            (f"{name}:", box.address(box.text, type=f"{name}:")) for name in search_form.LINKED_QUALIFIERS
        ],
        "groups_href": search_form.address(reverse("console:groups"), box.text),
        "letters_href": search_form.address(reverse("console:letters"), box.text),
        "page_size": PAGE_SIZE,
        "now": now,
    }
    query = box.query
    if query is None:
        return context
    states = search.group_states(query)
    timeline = search.timeline(query, now=now)
    newest = summary.newest_id(query)
    chart = charts.timeline_chart(
        start=timeline.start,
        width_seconds=timeline.width_seconds,
        reasons=timeline.reasons,
        gone=timeline.gone,
        counts=summary.reason_counts(query, timeline=timeline),
        selected=(query.since, query.until),
        now=now,
    )
    return context | {
        "group_states": states,
        "group_count": sum(states.values()),
        "sentence": _sentence(query, total or 0, sum(states.values()), now),
        "chart": chart,
        "legend": [(entry, box.address(query.with_term(f"reason:{entry.name}"))) for entry in chart.legend],
        "brush_href": box.address(box.text),
        "live_url": box.address(box.text, after=str(newest)),
        "is_searching": bool(query.terms),
        "total_without_search": search.count(_everything(now)) if not total else None,
        "wider_searches": [] if total else _wider(box, now),
        "shorter_searches": [
            (chip.text, chip.without) for chip in box.chips if chip.text in {t.canonical for t in query.terms}
        ],
    }


def _wider(box: SearchBox, now: datetime) -> list[tuple[str, str, int]]:
    """Return searches that take a name for a part of one, and find something: ``task:charge`` and the like."""
    assert box.query is not None  # noqa: S101 - only a search that was read finds nothing
    found = []
    for term in box.query.terms:
        if term.qualifier not in {"task", "queue", "worker"} or term.negated or len(term.values) != 1:
            continue
        (name,) = term.values
        if "*" in name:
            continue
        wider = f"{term.qualifier}:{quote_pattern(('', name, ''))}"
        text = f"{box.query.without(term)} {wider}".strip()
        if number := search.count(core_query.parse(text, now=now)):
            found.append((wider, box.address(text), number))
    return found[:2]


def _of_groups(text: str, rows: list[search.GroupRow]) -> str:
    return f"{text} group:{','.join(str(row.group.pk) for row in rows)}".strip() if rows else text


def _everything(now: datetime) -> Query:
    return core_query.parse("", now=now)


def _sentence(query: Query, total: int, group_count: int, now: datetime) -> str:
    if not total:
        return (
            "Nothing matches."
            if query.terms
            else "No letter is dead now, as far as the workers have reported."
        )
    matches = "1 matches" if total == 1 else f"{total:,} match"
    groups = "1 group" if group_count == 1 else f"{group_count:,} groups"
    extent = summary.extent(query)
    if extent is None:
        return f"{matches}, in {groups}."
    first, last = times.clock_range(*extent, now=now)
    if first != last:
        return f"{matches}, in {groups}. They died between {first} and {last} UTC."
    return f"{matches}, in {groups}. {'It' if total == 1 else 'They'} died at {last} UTC."


def _window_words(query: Query, now: datetime) -> str:
    return "–".join(times.clock_range(*search.period(query, now=now), now=now))


def _segments(
    box: SearchBox, states: dict[GroupState, int], chosen: str, order: str
) -> list[tuple[str, int, str, bool]]:
    extra = {"order": "" if order == "-letters" else order}
    segments = [("All", sum(states.values()), search_form.address(box.path, box.text, **extra), not chosen)]
    segments += [
        (
            state.value.capitalize(),
            states.get(state, 0),
            search_form.address(box.path, box.text, group_state=state.value, **extra),
            chosen == state.value,
        )
        for state in _GROUP_SEGMENTS
        if states.get(state) or chosen == state.value
    ]
    return segments


def _still_fails(row: search.GroupRow, now: datetime) -> bool:
    return (
        row.group.state in {GroupState.NEW, GroupState.REGRESSED} and now - row.last_died_at <= STILL_FAILING
    )


def _page_href(box: SearchBox, cursor: str | None, extra: dict[str, str]) -> str:
    return search_form.address(box.path, box.text, at=cursor, **extra) if cursor else ""


def _asks_for_news(request: HttpRequest) -> bool:
    return bool(request.htmx) and request.GET.get("after", "").isdecimal()  # type: ignore[attr-defined]


def _news(request: HttpRequest, box: SearchBox) -> HttpResponse:
    """Answer the poll: how many more match since the page was drawn, which rows changed, the side bar's count."""
    assert box.query is not None  # noqa: S101 - the caller has looked
    context = {
        "newer": summary.newer_count(box.query, after_id=int(request.GET["after"][:18])),
        "href": search_form.address(box.path, box.text, **dict(box.kept)),
        "changed": _changed_rows(request.GET.get("rows", "")),
        "box": box,
        "oob": True,
    }
    return render(request, "console/letters/_news.html", context)


def _changed_rows(rows: str) -> list[DeadLetter]:
    """Return the letters of a page that are not as its rows show them: "<id>:<state>.<deaths>", comma-separated."""
    shown: dict[uuid.UUID, str] = {}
    for row in rows.split(",")[:PAGE_SIZE]:
        text, _, version = row.partition(":")
        try:
            shown[uuid.UUID(text)] = version
        except ValueError:
            # No page of ours sent this, so no row waits for an answer.
            continue
    found = DeadLetter.objects.filter(uuid__in=shown).defer(*search.HEAVY_COLUMNS)
    return [letter for letter in found if shown[letter.uuid] != f"{letter.state}.{letter.deaths}"]
