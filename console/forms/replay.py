"""The forms of the pages that ask before something is sent, purged or restored."""

from __future__ import annotations

from typing import Any

from django import forms

WHY_LIMIT = 2_000
RATE_SLIDER_MAX = 200
RATE_LIMIT = 100_000
STAGE_FIELDS = 3
STAGE_LIMIT = 10_000_000
_STAGE_DIGITS = 40
DEFAULT_STAGES = (1, 10, 100)
DEFAULT_RATE = 20.0


class WhyForm(forms.Form):
    """Asks for the reason that is kept in the audit."""

    why = forms.CharField(
        max_length=WHY_LIMIT,
        strip=True,
        error_messages={
            "required": "Write why: it is kept in the audit log with your name.",
            "max_length": "The reason has %(show_value)s characters, the limit is %(limit_value)s. Shorten it.",
        },
    )

    def error_of(self, name: str) -> str:
        """Return the first error of a field, or an empty text."""
        errors = self.errors.get(name)
        return str(errors[0]) if errors else ""

    def clean_why(self) -> str:
        """Drop NUL, which PostgreSQL refuses."""
        why: str = self.cleaned_data["why"]
        return why.replace("\x00", "")


class PurgeForm(WhyForm):
    """Asks for the reason and, above a number of letters, for the count."""

    typed_count = forms.CharField(required=False, max_length=20)

    def __init__(self, *args: Any, must_type: bool, selected: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.must_type = must_type
        self.selected = selected

    def clean_typed_count(self) -> int | None:
        """Compare what was typed with what is there."""
        typed: str = self.cleaned_data["typed_count"].strip()
        if not self.must_type:
            return None
        if not typed:
            raise forms.ValidationError(f"Type the count. The selection holds {self.selected}.")
        digits = typed.replace(",", "").replace(" ", "")
        if not digits.isdecimal() or int(digits) != self.selected:
            raise forms.ValidationError(f"You typed {typed[:20]}. The selection holds {self.selected}.")
        return self.selected


class ReplayForm(WhyForm):
    """Asks how to send: rate, stages, threshold, queue, ids."""

    # A range input always has a value, so the number field beside it is what counts.
    rate = forms.CharField(required=False, max_length=20)
    stop_above_percent = forms.CharField(required=False, max_length=20, strip=True, initial="20")
    target_queue = forms.CharField(required=False, max_length=255, strip=True)
    keeps_task_id = forms.BooleanField(required=False)
    accepts_effects = forms.BooleanField(required=False)

    def __init__(self, *args: Any, must_accept_effects: bool, queues: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.must_accept_effects = must_accept_effects
        self.queues = queues

    @property
    def stage_texts(self) -> list[str]:
        """The stage fields as they stand: typed, or the defaults."""
        if not self.is_bound:
            return [str(size) for size in self.initial.get("stages", ())]
        # No longer than a number can be: Python reads no digits by the thousand.
        return [text.strip()[:_STAGE_DIGITS] for text in _list_of(self.data, "stage")[:STAGE_FIELDS]]

    def clean_rate(self) -> float | None:
        """Read letters a second; empty means as fast as the broker takes them."""
        return read_rate(self.cleaned_data["rate"])

    def clean_stop_above_percent(self) -> int:
        """Read the share of a stage that may die again, in percent."""
        text: str = self.cleaned_data["stop_above_percent"]
        if not text:
            raise forms.ValidationError("Write a share from 0 to 100 %.")
        digits = text.removesuffix("%").strip()
        if not (digits.isascii() and digits.isdecimal()) or int(digits) > 100:
            raise forms.ValidationError(
                f"“{text[:20]}” is not a share. Write a whole number of percent from 0 to 100."
            )
        return int(digits)

    def clean_target_queue(self) -> str:
        """Accept only a queue that an online worker reads: elsewhere the letters would lie unread."""
        queue: str = self.cleaned_data["target_queue"]
        if queue and queue not in self.queues:
            raise forms.ValidationError(
                f"No online worker reads the queue {queue[:80]}. Choose one of the list, or the same as before."
            )
        return queue

    def clean_accepts_effects(self) -> bool:
        """Ask twice for letters whose job ran to its end."""
        accepted: bool = self.cleaned_data["accepts_effects"]
        if self.must_accept_effects and not accepted:
            raise forms.ValidationError(
                "Tick the box: without it, letters whose job ran to its end are not sent."
            )
        return accepted

    def clean(self) -> dict[str, Any]:
        """Read the stages: whole numbers, then all that are left."""
        super().clean()
        stages: list[int | None] = []
        for text in self.stage_texts:
            if not text:
                continue
            digits = text.replace(",", "")
            if not digits.isdecimal() or not 0 < int(digits) <= STAGE_LIMIT:
                self.add_error(
                    None, f"“{text[:20]}” is not a stage. Write a whole number of letters, or leave it empty."
                )
                continue
            stages.append(int(digits))
        self.cleaned_data["stages"] = [*stages, None] if stages else []
        return self.cleaned_data


class RateForm(forms.Form):
    """Asks for the rate of an operation that runs."""

    rate = forms.CharField(required=False, max_length=20)

    def clean_rate(self) -> float | None:
        """Read letters a second; empty means as fast as the broker takes them."""
        return read_rate(self.cleaned_data["rate"])


def read_rate(text: str) -> float | None:
    """Read a rate in letters a second, None for no limit.

    Raises:
        ValidationError: when it is no number above 0.
    """
    text = text.strip()
    if not text:
        return None
    try:
        rate = float(text.replace(",", ""))
    except ValueError:
        rate = 0.0
    # NaN fails every comparison.
    if not 0 < rate <= RATE_LIMIT:
        raise forms.ValidationError(
            f"“{text[:20]}” is not a rate. Write letters a second above 0 and up to {RATE_LIMIT:,}, "
            "or leave it empty for no limit."
        )
    return rate


def default_stages(count: int) -> list[int]:
    """Return the stages proposed for so many letters: each but the last smaller than what is left."""
    stages: list[int] = []
    for size in DEFAULT_STAGES:
        if count - sum(stages) <= size:
            break
        stages.append(size)
    return stages


def _list_of(data: Any, name: str) -> list[str]:
    if hasattr(data, "getlist"):
        return [str(value) for value in data.getlist(name)]
    value = data.get(name, [])
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]
