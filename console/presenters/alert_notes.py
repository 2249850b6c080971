"""What the pages of alerts must say before all else: that nobody watches, or that nobody can be told."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.urls import reverse

from console import times
from console.presenters.plain import count_of
from jobs.alerts import sending
from jobs.alerts.measuring import has_little_to_judge
from jobs.models import AlertRule

# The rules are judged every few seconds: those that were not for so long are not watched.
JUDGED_WITHIN = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class Note:
    """One tinted box; ``href`` is where to do something about it."""

    level: str
    icon: str
    headline: str
    text: str
    href: str = ""
    link_text: str = ""


def read(*, now: datetime) -> list[Note]:
    """Read what is wrong with the watching itself. One query."""
    rules = list(
        AlertRule.objects.filter(is_enabled=True).values_list("evaluated_at", "trouble", "webhook_url")
    )
    if not rules:
        return []
    notes = []
    judged = max((at for at, _, _ in rules if at is not None), default=None)
    troubled = sum(1 for _, trouble, _ in rules if trouble and not has_little_to_judge(trouble))
    if judged is None or now - judged > JUDGED_WITHIN:
        since = "never judged" if judged is None else f"last judged {times.ago(judged, now=now)}"
        text = (
            f"The rules were {since}: runops, which does that every few seconds, is not running or is blocked. "
            "Until it does, nothing fires, nothing recovers, and nobody is told."
        )
        notes.append(Note("red", "stopped", "Nobody watches.", text))
    elif troubled:
        are = "rule cannot be" if troubled == 1 else "rules cannot be"
        one = "What it watches is not known at this moment, so it neither fires nor recovers."
        text = one if troubled == 1 else "What they watch is not known now, so they neither fire nor recover."
        href = reverse("console:alert-rules")
        notes.append(Note("amber", "question", f"{troubled:,} {are} judged now.", text, href, "See why"))
    if not sending.mail_is_set():
        hooks = sum(1 for _, _, webhook in rules if webhook)
        text = "Alerts are seen here and mailed to nobody. Set EMAIL_URL for runops and the web."
        if hooks:
            text += f" {count_of(hooks, 'rule')} {'has a webhook, which is' if hooks == 1 else 'have a webhook, which are'} called."
        notes.append(Note("amber", "warning", "No mail server is set.", text))
    return notes
