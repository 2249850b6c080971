"""What is silenced, the page that silences, and the button that ends it."""

from __future__ import annotations

from datetime import datetime

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods

from console import times
from console.actors import actor_of
from console.forms.alerts import EVERY_RULE, LENGTHS, SilenceForm, end_of
from console.methods import acts_on
from console.permissions import requires
from console.presenters import alert_list, alert_rules
from jobs.alerts import silences as services
from jobs.errors import AlertRefused
from jobs.models import Silence

_LENGTH_WORDS = {"1h": "1 hour", "4h": "4 hours", "morning": "Until the morning", "3d": "3 days"}


@require_GET
@requires("jobs.view_alert")
def silences(request: HttpRequest) -> HttpResponse:
    """List the silences that last, and those that are over."""
    now = timezone.now()
    context = {
        "page": alert_list.read_silences(now=now),
        "tabs": alert_list.tabs("alert-silences", now=now),
        "now": now,
    }
    return render(request, "console/alerts/silences.html", context)


@require_http_methods(["GET", "POST"])
@requires("jobs.view_alert")
@requires("jobs.add_silence")
def silence(request: HttpRequest) -> HttpResponse:
    """Ask for how long and why; on POST silence. ``?rule=`` is a rule's id."""
    now = timezone.now()
    if request.method == "GET":
        return _ask(request, SilenceForm(initial={"rule": request.GET.get("rule", ""), "length": "1h"}), now)
    form = SilenceForm(request.POST)
    if not form.is_valid():
        return _ask(request, form, now, status=422)
    rule = form.cleaned_data["rule"]
    until = end_of(form.cleaned_data["length"], now=now)
    try:
        services.silence(
            rule=rule, until=until, actor=actor_of(request), why=form.cleaned_data["why"], now=now
        )
    except AlertRefused as refused:
        return _ask(request, form, now, error=str(refused), status=409)
    what = f"“{rule.name}” is" if rule is not None else "All rules are"
    messages.success(
        request, f"{what} silent until {times.clock(until, now=now)} UTC. Nobody is told until then."
    )
    return redirect("console:alert-silences")


@acts_on("console:alert-silences")
@requires("jobs.view_alert")
@requires("jobs.add_silence")
def end(request: HttpRequest, silence_id: int) -> HttpResponse:
    """End a silence early."""
    found = Silence.objects.select_related("rule").filter(pk=silence_id).first()
    if found is None:
        raise Http404("There is no such silence any more: its rule was deleted.")
    try:
        services.end(silence=found, actor=actor_of(request), now=timezone.now())
    except AlertRefused as refused:
        messages.warning(request, str(refused))
    else:
        messages.success(request, "The silence has ended. What fires from now on is told.")
    return redirect("console:alert-silences")


def _ask(
    request: HttpRequest, form: SilenceForm, now: datetime, *, error: str = "", status: int = 200
) -> HttpResponse:
    chosen = str(form["rule"].value() or "")
    rules = alert_rules.names()
    length = str(form["length"].value() or "")
    context = {
        "form": form,
        "error": error,
        "rules": rules,
        "chosen_rule": chosen,
        "rule": next((each for each in rules if str(each.pk) == chosen), None),
        "is_unknown": chosen not in {"", EVERY_RULE} and all(str(each.pk) != chosen for each in rules),
        "lengths": [
            {
                "value": each,
                "word": _LENGTH_WORDS[each],
                "until": _until_words(each, now=now),
                "is_chosen": each == length,
            }
            for each in LENGTHS
        ],
        "now": now,
    }
    return render(request, "console/alerts/silence.html", context, status=status)


def _until_words(length: str, *, now: datetime) -> str:
    """Say when it would end; of the morning which one."""
    end = end_of(length, now=now)
    clock = times.clock(end, now=now)
    if length != "morning":
        return f"until {clock}"
    return f"today {clock}" if end.date() == now.astimezone(end.tzinfo).date() else f"tomorrow, {clock}"
