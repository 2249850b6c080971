"""The form of an alert rule: only the fields that mean something to its kind, with their units."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django import forms

from jobs.alerts import rules
from jobs.core.alert_kinds import KINDS, Kind, Unit
from jobs.core.words import AlertKind, Severity
from jobs.models import AlertRule

_UNITS = {"s": 1, "min": 60, "h": 3_600, "days": 86_400}
_UNIT_WORDS = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3_600),
    **dict.fromkeys(("d", "day", "days"), 86_400),
}
_DURATION = re.compile(r"(\d{1,7})\s*([a-z]+)")
_DURATIONS = ("hold_seconds", "recovery_hold_seconds", "cool_down_seconds", "reminder_seconds")
_WHOLE = ("window_minutes", "minimum_attempts", "percentile")
_TEXT_LIMIT = 4_000
_UNIT_OF_LIMIT = {Unit.A_MINUTE: "dead letters a minute"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """How a field is asked for; ``control`` is text, number, choice or lines."""

    label: str
    help: str = ""
    unit: str = ""
    control: str = "text"
    choices: tuple[tuple[str, str], ...] = ()
    is_wide: bool = False


@dataclass(frozen=True, slots=True)
class FieldView:
    """A field as the page shows it, with what was typed and what is wrong with it."""

    name: str
    wanted: Wanted
    value: str
    error: str


_TIME = "Write for instance 30 s, 5 min, 4 h or 1 day."
_FIELDS: dict[str, Wanted] = {
    "name": Wanted("Name", "It stands in mails and lists.", is_wide=True),
    "severity": Wanted(
        "Severity",
        control="choice",
        choices=tuple((each.value, each.value.capitalize()) for each in Severity),
    ),
    "task": Wanted("Task", "Its whole name; empty is every task."),
    "queue": Wanted("Queue", "Empty is every queue."),
    "threshold": Wanted("Fires above", control="number"),
    "recovery_threshold": Wanted("Recovers at or below", "Empty is the same limit.", control="number"),
    "window_minutes": Wanted("Looks back", unit="minutes", control="number"),
    "percentile": Wanted(
        "Percentile", control="choice", choices=(("50", "p50"), ("90", "p90"), ("95", "p95"), ("99", "p99"))
    ),
    "minimum_attempts": Wanted(
        "At least", "With fewer there is no verdict.", unit="jobs in that time", control="number"
    ),
    "hold_seconds": Wanted("Must last before it fires", f"{_TIME} 0 fires at once."),
    "recovery_hold_seconds": Wanted("Must be over before it recovers", _TIME),
    "cool_down_seconds": Wanted("Does not fire again for", f"Counted from its recovery. {_TIME}"),
    "reminder_seconds": Wanted("Reminds every", "While it fires. 0 is never."),
    "recipients": Wanted(
        "E-mail to",
        "One address a line. Empty is ALERT_EMAILS, or else the active administrators.",
        control="lines",
        is_wide=True,
    ),
    "webhook_url": Wanted(
        "Webhook", "An https address that takes a message as Slack does. Empty is none.", is_wide=True
    ),
    "runbook_url": Wanted(
        "Runbook", "An address of a page that says what to do. It is linked from mails.", is_wide=True
    ),
}
_ALWAYS = frozenset(
    {"name", "severity", *_DURATIONS, "recipients", "webhook_url", "runbook_url", "recovery_threshold"}
)
WHEN = (
    *("name", "task", "queue", "threshold", "recovery_threshold", "window_minutes", "percentile"),
    *("minimum_attempts", "hold_seconds", "recovery_hold_seconds", "cool_down_seconds"),
)
WHO = ("severity", "reminder_seconds", "recipients", "webhook_url", "runbook_url")


class RuleForm(forms.Form):
    """Reads the fields of one kind; ``values`` are what ``jobs.alerts.rules`` takes."""

    def __init__(self, data: Any = None, *, kind: AlertKind, rule: AlertRule | None = None) -> None:
        super().__init__(data)
        self.kind: Kind = KINDS[kind]
        self.rule = rules.draft(kind) if rule is None else rule
        self.values: dict[str, Any] = {}
        for name in (*WHEN, *WHO):
            if self._is_asked(name):
                self.fields[name] = forms.CharField(required=False, max_length=_TEXT_LIMIT, strip=True)

    def _is_asked(self, name: str) -> bool:
        if name == "recovery_threshold":
            return self.kind.has_threshold
        return name in _ALWAYS or name in self.kind.uses

    def clean(self) -> dict[str, Any]:
        """Read every field, then judge them together."""
        super().clean()
        for name, typed in list(self.cleaned_data.items()):
            try:
                self.values[name] = read(name, typed.replace("\x00", ""))
            except ValueError as wrong:
                self.add_error(name, str(wrong))
        for name, problem in rules.problems(AlertKind(self.kind.kind), self.values).items():
            if name in self.fields and not self.errors.get(name):
                self.add_error(name, problem)
        return self.cleaned_data

    def add_problems(self, problems: Mapping[str, str]) -> None:
        """Show what the service refused."""
        for name, problem in problems.items():
            self.add_error(name if name in self.fields else None, problem)

    @property
    def when(self) -> list[FieldView]:
        """The fields that say when it fires."""
        return self._views(WHEN)

    @property
    def who(self) -> list[FieldView]:
        """The fields that say who is told, and how urgently."""
        return self._views(WHO)

    def draft(self) -> AlertRule:
        """Return the rule as it would be with what could be read of the form; not saved."""
        drawn = AlertRule(kind=self.kind.kind.value, **rules.snapshot(self.rule))
        for name, value in self.values.items():
            if not self.errors.get(name):
                setattr(drawn, name, value)
        return drawn

    def _views(self, names: tuple[str, ...]) -> list[FieldView]:
        return [self._view(name) for name in names if name in self.fields]

    def _view(self, name: str) -> FieldView:
        wanted = _FIELDS[name]
        if name in {"threshold", "recovery_threshold"}:
            unit = _UNIT_OF_LIMIT.get(self.kind.unit, self.kind.unit.value)
            wanted = Wanted(wanted.label, wanted.help, unit, wanted.control)
        value = str(self.data.get(name, "")) if self.is_bound else write(name, getattr(self.rule, name))
        if name == "percentile" and value not in {each for each, _ in wanted.choices}:
            choices = (*wanted.choices, (value[:10], f"p{value[:10]}"))
            wanted = Wanted(wanted.label, wanted.help, control="choice", choices=choices)
        errors = self.errors.get(name)
        return FieldView(name, wanted, value[:_TEXT_LIMIT], str(errors[0]) if errors else "")


def read(name: str, typed: str) -> Any:
    """Read what was typed into a field.

    Raises:
        ValueError: when it cannot be read; says what to write.
    """
    if name in _DURATIONS:
        return seconds_of(typed)
    if name in _WHOLE:
        return _whole(typed)
    if name == "threshold":
        return _number(typed)
    if name == "recovery_threshold":
        return _number(typed) if typed else None
    if name == "recipients":
        return list(dict.fromkeys(re.split(r"[\s,;]+", typed))) if typed else []
    return typed


def write(name: str, value: Any) -> str:
    """Write a rule's value as ``read`` reads it."""
    if value is None:
        return ""
    if name in _DURATIONS:
        return duration_text(int(value))
    if name in {"threshold", "recovery_threshold"}:
        return f"{value:.10g}" if value < 1e10 else repr(float(value))
    if name == "recipients":
        return "\n".join(str(each) for each in value)
    return str(value)


def seconds_of(typed: str) -> int:
    """Read a length of time: "30 s", "5 min", "4 h", "1 day", "0".

    Raises:
        ValueError: when it is none; says how to write one.
    """
    text = typed.strip().lower()
    if text == "0":
        return 0
    found = _DURATION.fullmatch(text)
    if found is None or found[2] not in _UNIT_WORDS:
        advice = "Write a number with its unit: 30 s, 5 min, 4 h or 1 day."
        raise ValueError(f"“{typed[:40]}” is no length of time. {advice}" if typed else advice)
    return int(found[1]) * _UNIT_WORDS[found[2]]


def duration_text(seconds: int) -> str:
    """Write a length of time in the greatest unit that it is a whole number of."""
    if seconds == 0:
        return "0"
    unit, length = next(each for each in reversed(_UNITS.items()) if seconds % each[1] == 0)
    number = seconds // length
    return f"{number} {'day' if unit == 'days' and number == 1 else unit}"


def _whole(typed: str) -> int:
    digits = typed.replace(",", "").replace(" ", "")
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 12:
        raise ValueError(f"“{typed[:40]}” is not a whole number." if typed else "Write a whole number.")
    return int(digits)


def _number(typed: str) -> float:
    try:
        number = float(typed.replace(",", "").replace(" ", "")) if typed.isascii() else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"“{typed[:40]}” is not a number." if typed else "Write a number.")
    return number
