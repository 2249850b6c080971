"""The forms of the pages that ask before something is done to a queue, a worker or a job."""

from __future__ import annotations

from typing import Any

from django import forms

from console.forms.replay import WhyForm

_NO_COUNT = "This page does not say how many messages it is about. Open it again."


class QueuePurgeForm(WhyForm):
    """Asks for the reason, carries how many waited, and above a number of messages asks for that count."""

    expected = forms.IntegerField(
        min_value=1,
        error_messages=dict.fromkeys(("required", "invalid", "min_value"), _NO_COUNT),
    )
    typed_count = forms.CharField(required=False, max_length=20)

    def __init__(self, *args: Any, typed_above: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.typed_above = typed_above

    def clean(self) -> dict[str, Any]:
        """Compare what was typed with what the page said."""
        super().clean()
        expected = self.cleaned_data.get("expected")
        if expected is None or expected <= self.typed_above:
            return self.cleaned_data
        typed: str = self.cleaned_data.get("typed_count", "").strip()
        digits = typed.replace(",", "").replace(" ", "")
        if not typed:
            self.add_error("typed_count", f"Type the count. {expected} messages waited.")
        elif not digits.isdecimal() or int(digits) != expected:
            self.add_error("typed_count", f"You typed {typed[:20]}. {expected} messages waited.")
        return self.cleaned_data


class RevokeForm(WhyForm):
    """Asks for the reason, and whether the job is stopped where it runs."""

    terminate = forms.BooleanField(required=False)
