"""The forms of alerts: how long to be silent, and why; see alert_rules.py for the rules."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta

from django import forms

from jobs.models import AlertRule

WHY_LIMIT = 2_000
_SPANS = {"1h": timedelta(hours=1), "4h": timedelta(hours=4), "3d": timedelta(days=3)}
_MORNING = "morning"
EVERY_RULE = "every"
LENGTHS = ("1h", "4h", _MORNING, "3d")
_MORNING_AT = time(8)
# One that is nearer than this is not meant by who is to sleep.
_MORNING_AHEAD = timedelta(hours=1)


def end_of(length: str, *, now: datetime) -> datetime:
    """Return when a silence of this length ends; the morning is the next 08:00 UTC that is an hour away or more."""
    if length != _MORNING:
        return now + _SPANS[length]
    morning = datetime.combine(now.astimezone(UTC).date(), _MORNING_AT, tzinfo=UTC)
    return morning if morning - now >= _MORNING_AHEAD else morning + timedelta(days=1)


class SilenceForm(forms.Form):
    """Asks which rule or EVERY_RULE, for how long, and why."""

    rule = forms.CharField(required=False, max_length=20)
    length = forms.CharField(required=False, max_length=20)
    why = forms.CharField(
        required=False,
        max_length=WHY_LIMIT,
        strip=True,
        error_messages={
            "max_length": "The reason has %(show_value)s characters, the limit is %(limit_value)s. Shorten it."
        },
    )

    def clean_rule(self) -> AlertRule | None:
        """Find the rule; None is every rule."""
        typed: str = self.cleaned_data["rule"]
        if typed == EVERY_RULE:
            return None
        if not typed:
            raise forms.ValidationError("Choose a rule, or every rule.")
        found = None
        if typed.isascii() and typed.isdecimal() and len(typed) < 19:
            found = AlertRule.objects.filter(pk=int(typed)).first()
        if found is None:
            raise forms.ValidationError(f"There is no rule “{typed}” any more. Choose one of the list.")
        return found

    def clean_length(self) -> str:
        """Accept only a length of the list."""
        length: str = self.cleaned_data["length"]
        if length not in LENGTHS:
            raise forms.ValidationError(
                f"“{length}” is no length of the list. Choose one." if length else "Choose for how long."
            )
        return length

    def clean_why(self) -> str:
        """Drop NUL, which PostgreSQL refuses."""
        why: str = self.cleaned_data["why"]
        return why.replace("\x00", "")

    def error_of(self, name: str) -> str:
        """Return the first error of a field, or an empty text."""
        errors = self.errors.get(name)
        return str(errors[0]) if errors else ""
