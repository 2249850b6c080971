"""The forms of triage: what to do with groups, notes and their words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django import forms

MUTE_CHOICES = {"1d": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}
FOREVER = "forever"


class NoteForm(forms.Form):
    """A note; the services say what is too long."""

    text = forms.CharField(required=False, strip=True)


class MuteForm(forms.Form):
    """Until when a group is muted: a span, a date, or until somebody unmutes it."""

    until = forms.CharField(required=False, max_length=30)
    why = forms.CharField(required=False, strip=True)

    def until_at(self, now: datetime) -> datetime | None:
        """Read the end of the mute in UTC; None when there is none.

        Raises:
            ValidationError: when it is neither a span of the list nor a date.
        """
        text: str = self.cleaned_data["until"].strip()
        if text in {"", FOREVER}:
            return None
        if text in MUTE_CHOICES:
            return now + MUTE_CHOICES[text]
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise forms.ValidationError(
                f"“{text[:30]}” is not a date. Write one such as 2026-11-30, or choose a span."
            ) from None
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


class AssignForm(forms.Form):
    """Who owns a group: me, a user's id, or nobody."""

    owner = forms.CharField(required=False, max_length=20)
    # The button beside the list, which has a value of its own.
    me = forms.CharField(required=False, max_length=20)

    def __init__(self, *args: Any, users: dict[str, Any], me: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.users = users
        self.actor = me

    def clean_owner(self) -> Any:
        """Return the user, or None for nobody."""
        owner: str = self.cleaned_data["owner"].strip()
        if owner == "me" or self.data.get("me"):
            return self.actor
        if owner in {"", "nobody"}:
            return None
        if owner not in self.users:
            raise forms.ValidationError(f"“{owner}” is no active user. Choose one of the list.")
        return self.users[owner]
