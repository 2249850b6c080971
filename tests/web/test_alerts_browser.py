"""The pages of alerts in a real browser: on a phone, by keyboard, while they are polled, and under the policy."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.db import transaction
from django.utils import timezone
from playwright.sync_api import expect

from jobs.core.words import AlertState
from jobs.models import Alert, AlertRule, Deploy, Silence
from tests.metrics_rows import make_rollup
from tests.web.browsing import poll

pytestmark = pytest.mark.django_db(transaction=True)


def rule_of(kind: str) -> AlertRule:
    return AlertRule.objects.filter(kind=kind).earliest("pk")


def test_no_page_of_alerts_scrolls_sideways_on_a_phone(browsing):
    page = browsing.open(width=380, height=800)
    rule = rule_of("letters_growing")
    firing = Alert.objects.get(state=AlertState.FIRING)

    for address in (
        "/alerts/",
        "/alerts/history/",
        "/alerts/rules/",
        f"/alerts/rules/{rule.pk}/",
        f"/alerts/rules/{rule.pk}/change/",
        f"/alerts/rules/{rule.pk}/delete/",
        "/alerts/rules/new/",
        "/alerts/silences/",
        f"/alerts/silence/?rule={rule.pk}",
        f"/alerts/{firing.pk}/",
    ):
        page.goto(address)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), address


def test_an_alert_that_recovers_leaves_the_page_while_one_looks(console_page):
    console_page.goto("/alerts/")
    expect(console_page.get_by_role("heading", name="Firing")).to_be_visible()
    expect(console_page.locator("#firing-count")).to_have_text(re.compile("1 firing"))

    now = timezone.now()
    Alert.objects.filter(state=AlertState.FIRING).update(state=AlertState.RESOLVED, resolved_at=now)

    poll(console_page)
    expect(console_page.get_by_role("heading", name="Firing")).to_have_count(0)
    expect(console_page.locator("#firing-count")).not_to_contain_text("firing")


def test_the_sentence_follows_what_is_typed_and_the_form_still_saves(console_page):
    rule = rule_of("letters_growing")
    console_page.goto(f"/alerts/rules/{rule.pk}/change/")

    console_page.get_by_label("Fires above").fill("55")
    console_page.get_by_label("Queue", exact=True).fill("critical")
    console_page.get_by_label("Queue", exact=True).press("Tab")
    expect(console_page.locator("#rule-preview")).to_contain_text(
        "More than 55 a minute over 5 minutes, queue critical."
    )
    assert AlertRule.objects.get(pk=rule.pk).threshold == 20

    console_page.get_by_role("button", name="Save the rule").click()
    console_page.wait_for_url(f"**/alerts/rules/{rule.pk}/")
    assert AlertRule.objects.get(pk=rule.pk).threshold == 55


def test_a_rule_is_silenced_with_the_keyboard_alone(console_page):
    rule = rule_of("letters_growing")
    console_page.goto(f"/alerts/silence/?rule={rule.pk}")

    console_page.get_by_label("1 hour").focus()
    console_page.keyboard.press("ArrowDown")
    console_page.keyboard.press("Tab")
    console_page.keyboard.type("the relay is repaired")
    console_page.keyboard.press("Tab")
    console_page.keyboard.press("Enter")

    console_page.wait_for_url("**/alerts/silences/")
    silence = Silence.objects.get(rule=rule)
    assert silence.why == "the relay is repaired"
    assert round((silence.ends_at - silence.starts_at).total_seconds()) == 4 * 3600


def test_the_chart_of_an_alert_is_drawn_with_its_limit_and_shown_as_a_table(console_page):
    now = timezone.now()
    firing = Alert.objects.get(state=AlertState.FIRING)
    Deploy.objects.create(name="5f2c1e9", at=now - timedelta(minutes=34))
    with transaction.atomic():
        for minute in range(2, 40):
            make_rollup(at=now - timedelta(minutes=minute), done=100, dead=120)

    console_page.goto(f"/alerts/{firing.pk}/")

    chart = console_page.locator("#measure-chart")
    expect(chart.locator(".main-svg").first).to_be_visible()
    expect(chart).to_contain_text("alert limit 20 a minute")
    expect(chart).to_contain_text("deploy 5f2c1e9")
    console_page.get_by_text("Show as a table").click()
    expect(console_page.locator("#measure-table")).to_contain_text("120 a minute")
