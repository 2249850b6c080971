"""Alerts and their rules in the words of pages; jobs.core.alert_words has those that mails share."""

from __future__ import annotations

from console.presenters.plain import visible
from jobs.alerts import rules
from jobs.core import alert_words as words
from jobs.core.alert_kinds import KINDS, Kind
from jobs.core.words import AlertKind
from jobs.models import AlertRule, Notification

_NAME_LIMIT = 80
_SHOWN_RECIPIENTS = 2


def kind_of(rule: AlertRule) -> Kind:
    """Return what a rule can watch."""
    return KINDS[AlertKind(rule.kind)]


def sentence(rule: AlertRule) -> str:
    """Say what a rule watches as a sentence: "More than 20 a minute over 5 minutes, all queues."."""
    text = visible(rules.in_words(rule), keep="")
    return f"{text[:1].upper()}{text[1:]}."


def with_unit(rule: AlertRule, value: float | None) -> str:
    """Return a measured value with its unit on one line; "" when there is none."""
    return "" if value is None else words.said(kind_of(rule).unit, value)


def limit(rule: AlertRule, value: float) -> str:
    """Return a limit with its unit on one line, as it was typed."""
    return words.limit(kind_of(rule).unit, value)


def names(each: Notification) -> list[str]:
    """Return to whom it goes; of a webhook only the host, for its path is a secret."""
    if each.channel == "webhook":
        return [visible(host(str(url)), keep="") for url in each.recipients]
    return [visible(str(name)[:_NAME_LIMIT], keep="") for name in each.recipients]


def recipients(each: Notification) -> str:
    """Say by what way whom: "E-mail to oncall@shop.example and 2 more"."""
    shown = names(each)
    way = "Webhook" if each.channel == "webhook" else "E-mail"
    if not shown:
        return f"{way} to nobody"
    more = len(shown) - _SHOWN_RECIPIENTS
    if more > 0:
        return f"{way} to {', '.join(shown[:_SHOWN_RECIPIENTS])} and {more} more"
    return f"{way} to {' and '.join(shown)}"


def host(url: str) -> str:
    """Return the host of a webhook, which is all of its address that pages show."""
    return rules.host_of(url)[:_NAME_LIMIT]
