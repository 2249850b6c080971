"""The rules: the list, one of them, the form, and what is done to a rule."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods

from console.actors import actor_of
from console.forms.alert_rules import RuleForm
from console.htmx import render_page, wants_partial
from console.methods import acts_on
from console.permissions import requires
from console.presenters import (
    alert_list,
    alert_names,
    alert_notes,
    alert_page,
    alert_rehearsal,
    alert_rules,
    alert_words,
)
from jobs.alerts import rules as services
from jobs.alerts import testing
from jobs.core.alert_kinds import KINDS
from jobs.core.words import AlertKind
from jobs.errors import AlertRefused
from jobs.models import AlertRule

PREVIEW = "preview"


@require_GET
@requires("jobs.view_alert")
def rule_list(request: HttpRequest) -> HttpResponse:
    """List the rules and how they stand; polled."""
    now = timezone.now()
    context = {
        "page": alert_rules.read_list(now=now),
        "tabs": alert_list.tabs("alert-rules", now=now),
        "live_url": reverse("console:alert-rules"),
        "notes": alert_notes.read(now=now),
        "now": now,
    }
    return render_page(request, "console/alerts/rules.html", "console/alerts/_rules.html", context)


@require_GET
@requires("jobs.view_alert")
def rule_page(request: HttpRequest, rule_id: int) -> HttpResponse:
    """Show one rule: what it watches, how it stands, who is told, and what was told; polled."""
    return _page(request, _find(rule_id))


@require_GET
@requires("jobs.view_alert")
@requires("jobs.add_alertrule")
def kinds(request: HttpRequest) -> HttpResponse:
    """Ask what a new rule shall watch."""
    return render(
        request, "console/alerts/kinds.html", {"kinds": list(KINDS.values()), "now": timezone.now()}
    )


@require_http_methods(["GET", "POST"])
@requires("jobs.view_alert")
@requires("jobs.add_alertrule")
def new(request: HttpRequest, kind: str) -> HttpResponse:
    """Show the form of a new rule of a kind; on POST make it, or say it in words."""
    if kind not in {each.value for each in AlertKind}:
        raise Http404(f"No rule can watch {kind[:40]!r}. Choose one of {', '.join(KINDS)}.")
    found = AlertKind(kind)
    if request.method == "GET":
        return _form(request, RuleForm(kind=found))
    form = RuleForm(request.POST, kind=found)
    is_valid = form.is_valid()
    if _is_preview(request):
        return _preview(request, form)
    if not is_valid:
        return _form(request, form, status=422)
    try:
        rule = services.create(kind=found, values=form.values, actor=actor_of(request), now=timezone.now())
    except AlertRefused as refused:
        return _refused(request, form, refused)
    messages.success(request, f"The rule “{rule.name}” watches from now on.")
    return _saved(request, rule)


@require_http_methods(["GET", "POST"])
@requires("jobs.view_alert")
@requires("jobs.change_alertrule")
def change(request: HttpRequest, rule_id: int) -> HttpResponse:
    """Show the form of a rule; on POST change it, or say it in words."""
    rule = _find(rule_id)
    kind = AlertKind(rule.kind)
    if request.method == "GET":
        return _form(request, RuleForm(kind=kind, rule=rule), rule=rule)
    form = RuleForm(request.POST, kind=kind, rule=rule)
    is_valid = form.is_valid()
    if _is_preview(request):
        return _preview(request, form)
    if not is_valid:
        return _form(request, form, rule=rule, status=422)
    try:
        rule = services.change(rule=rule, values=form.values, actor=actor_of(request), now=timezone.now())
    except AlertRefused as refused:
        return _refused(request, form, refused, rule=rule)
    messages.success(request, f"The rule “{rule.name}” is kept as it is here.")
    return _saved(request, rule)


@acts_on("console:alert-rule", "rule_id")
@requires("jobs.view_alert")
@requires("jobs.change_alertrule")
def enable(request: HttpRequest, rule_id: int) -> HttpResponse:
    """Judge a rule from now on."""
    rule = _find(rule_id)
    try:
        services.enable(rule=rule, actor=actor_of(request), now=timezone.now())
    except AlertRefused as refused:
        return _page(request, rule, error=str(refused), status=409)
    messages.success(request, f"The rule “{rule.name}” watches from now on.")
    return redirect("console:alert-rule", rule_id=rule_id)


@acts_on("console:alert-rule", "rule_id")
@requires("jobs.view_alert")
@requires("jobs.change_alertrule")
def disable(request: HttpRequest, rule_id: int) -> HttpResponse:
    """Judge a rule no longer."""
    rule = _find(rule_id)
    try:
        services.disable(rule=rule, actor=actor_of(request), now=timezone.now())
    except AlertRefused as refused:
        return _page(request, rule, error=str(refused), status=409)
    messages.success(request, f"The rule “{rule.name}” is off. Its open alerts have ended, nobody is told.")
    return redirect("console:alert-rule", rule_id=rule_id)


@require_http_methods(["GET", "POST"])
@requires("jobs.view_alert")
@requires("jobs.delete_alertrule")
def delete(request: HttpRequest, rule_id: int) -> HttpResponse:
    """Ask whether to delete a rule with its alerts, then do it."""
    rule = _find(rule_id)
    now = timezone.now()
    if request.method == "POST":
        try:
            services.delete(rule=rule, actor=actor_of(request), now=now)
        except AlertRefused as refused:
            messages.warning(request, str(refused))
        else:
            messages.success(request, f"The rule “{rule.name}” is deleted.")
        return redirect("console:alert-rules")
    context = {
        "rule": rule,
        "sentence": alert_words.sentence(rule),
        "counts": alert_rules.counts(rule),
        "now": now,
    }
    return render(request, "console/alerts/delete.html", context)


@acts_on("console:alert-rule", "rule_id")
@requires("jobs.view_alert")
@requires("jobs.test_alertrule")
def test(request: HttpRequest, rule_id: int) -> HttpResponse:
    """Send a test to whom the rule tells; the page shows what becomes of it."""
    rule = _find(rule_id)
    try:
        sent = testing.send_test(rule=rule, actor=actor_of(request), now=timezone.now())
    except AlertRefused as refused:
        return _page(request, rule, error=str(refused), status=409)
    whom = "; ".join(alert_words.recipients(each) for each in sent)
    messages.success(
        request, f"A test is on its way: {whom}. What becomes of it stands under “What was told”."
    )
    return redirect("console:alert-rule", rule_id=rule_id)


def _find(rule_id: int) -> AlertRule:
    rule = alert_rules.find(rule_id)
    if rule is None:
        raise Http404(f"There is no alert rule {rule_id}: somebody deleted it, or the address is wrong.")
    return rule


def _page(request: HttpRequest, rule: AlertRule, *, error: str = "", status: int = 200) -> HttpResponse:
    now = timezone.now()
    context = {
        "page": alert_rules.read(rule, now=now),
        "rule": rule,
        "live_url": reverse("console:alert-rule", args=[rule.pk]),
        "notes": alert_notes.read(now=now),
        "error": error,
        "now": now,
    }
    return render_page(
        request, "console/alerts/rule.html", "console/alerts/_rule.html", context, status=status
    )


def _form(
    request: HttpRequest,
    form: RuleForm,
    *,
    rule: AlertRule | None = None,
    error: str = "",
    status: int = 200,
) -> HttpResponse:
    now = timezone.now()
    tasks, queues = alert_names.known(now=now)
    context: dict[str, Any] = _words(form, now) | {
        "form": form,
        "rule": rule,
        "kind": form.kind,
        "tasks": tasks,
        "queues": queues,
        "error": error,
        "now": now,
    }
    return render(request, "console/alerts/form.html", context, status=status)


def _refused(
    request: HttpRequest, form: RuleForm, refused: AlertRefused, *, rule: AlertRule | None = None
) -> HttpResponse:
    form.add_problems(refused.problems)
    error = "" if refused.problems else str(refused)
    return _form(request, form, rule=rule, error=error, status=422 if refused.problems else 409)


def _is_preview(request: HttpRequest) -> bool:
    return wants_partial(request) or request.POST.get("step") == PREVIEW


def _preview(request: HttpRequest, form: RuleForm) -> HttpResponse:
    """Say the rule in words; nothing is saved."""
    now = timezone.now()
    if wants_partial(request):
        return render(request, "console/alerts/_preview.html", _words(form, now))
    return _form(request, form, rule=form.rule if form.rule.pk else None)


def _words(form: RuleForm, now: datetime) -> dict[str, Any]:
    drawn = form.draft()
    return {
        "name": drawn.name,
        "sentence": alert_words.sentence(drawn),
        "rehearsal": alert_rehearsal.sentence(drawn, now=now),
        "ways": alert_page.ways(drawn),
        "warnings": alert_names.unknown_words(drawn, now=now),
        "problems": len(form.errors) if form.is_bound else 0,
    }


def _saved(request: HttpRequest, rule: AlertRule) -> HttpResponse:
    for words in alert_names.unknown_words(rule, now=timezone.now()):
        messages.warning(request, words)
    return redirect("console:alert-rule", rule_id=rule.pk)
