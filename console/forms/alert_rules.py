"""The form of an alert rule: only the fields that mean something to its kind, with their units."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from django import forms

from jobs.alerts import rules
from jobs.core import lengths
from jobs.core.alert_kinds import KINDS, Kind, Unit
from jobs.core.words import AlertKind, Severity
from jobs.models import AlertRule

_DURATIONS = ("hold_seconds", "recovery_hold_seconds", "cool_down_seconds", "reminder_seconds")
_WHOLE = ("minimum_attempts", "percentile")
_LIMITS = ("threshold", "recovery_threshold")
_TEXT_LIMIT = 4_000
_PER_CENT = re.compile(r"\s*(%|per ?cent)$", re.IGNORECASE)
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


_TIME = "Write for instance 30 s, 5 min, 1 h 30 min or 1 day."
_LIMIT_TIME = "Write for instance 15 min, 1 h 30 min, 90 s or 250 ms. A number alone is seconds."
_FIELDS: dict[str, Wanted] = {
    "name": Wanted("Name", "It stands in mails and lists.", is_wide=True),
    "severity": Wanted(
        "Severity",
        control="choice",
        choices=tuple((each.value, each.value.capitalize()) for each in Severity),
    ),
    "task": Wanted("Task", "Its whole name; empty is every task."),
    "queue": Wanted("Queue", "Empty is every queue."),
    "threshold": Wanted("Fires above"),
    "recovery_threshold": Wanted("Recovers at or below", "Empty is the same limit."),
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
                self.values[name] = read(name, typed.replace("\x00", ""), unit=self.kind.unit)
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
        wanted = _wanted_limit(name, self.kind.unit) if name in _LIMITS else _FIELDS[name]
        saved = write(name, getattr(self.rule, name), unit=self.kind.unit)
        value = str(self.data.get(name, "")) if self.is_bound else saved
        if name == "percentile" and value not in {each for each, _ in wanted.choices}:
            choices = (*wanted.choices, (value[:10], f"p{value[:10]}"))
            wanted = Wanted(wanted.label, wanted.help, control="choice", choices=choices)
        errors = self.errors.get(name)
        error = str(errors[0]) if errors else ""
        if _LIMIT_TIME in error:
            # What to write is said once.
            wanted = replace(wanted, help=wanted.help.replace(_LIMIT_TIME, "").strip())
        if name in _LIMITS and self.kind.unit is Unit.PER_CENT:
            # The sign stands behind the field.
            value = _PER_CENT.sub("", value)
        return FieldView(name, wanted, value[:_TEXT_LIMIT], error)


def _wanted_limit(name: str, unit: Unit) -> Wanted:
    """Say how a limit is asked for: a length of time has its units within, other numbers have one after them."""
    wanted = _FIELDS[name]
    if unit is Unit.SECONDS:
        return replace(wanted, help=f"{_LIMIT_TIME} {wanted.help}".strip())
    return replace(wanted, unit=_UNIT_OF_LIMIT.get(unit, unit.value), control="number")


def read(name: str, typed: str, *, unit: Unit) -> Any:
    """Read what was typed into a field; ``unit`` is that of the rule's limits.

    Raises:
        ValueError: when it cannot be read; says what to write.
    """
    if name in _DURATIONS:
        return _seconds(typed)
    if name == "window_minutes":
        return _minutes(typed)
    if name in _WHOLE:
        return _whole(typed)
    if name in _LIMITS:
        return None if name == "recovery_threshold" and not typed else _limit(typed, unit)
    if name == "recipients":
        return list(dict.fromkeys(re.split(r"[\s,;]+", typed))) if typed else []
    return typed


def write(name: str, value: Any, *, unit: Unit) -> str:
    """Write a rule's value as ``read`` reads it."""
    if value is None:
        return ""
    if name in _DURATIONS:
        return lengths.written(value)
    if name in _LIMITS:
        words = lengths.written(value) if unit is Unit.SECONDS else ""
        if words and lengths.seconds_of(words) == value:
            return words
        return f"{value:.10g}" if value < 1e10 else repr(float(value))
    if name == "recipients":
        return "\n".join(str(each) for each in value)
    return str(value)


def _seconds(typed: str) -> float:
    """Read how long something must last. A number alone is refused: who types 5 may mean minutes."""
    seconds = 0.0 if typed == "0" else lengths.seconds_of(typed)
    if seconds is None:
        advice = "Write a number with its unit: 30 s, 5 min, 4 h or 1 day."
        raise ValueError(f"“{typed[:40]}” is no length of time. {advice}" if typed else advice)
    return int(seconds) if seconds == int(seconds) else seconds


def _minutes(typed: str) -> int:
    """Read how far a rule looks back: whole minutes, or a length of time that is some."""
    seconds = lengths.seconds_of(typed)
    if seconds is None:
        return _whole(typed)
    if seconds % 60:
        raise ValueError(f"“{typed[:40]}” is not a whole number of minutes.")
    return int(seconds // 60)


def _limit(typed: str, unit: Unit) -> float:
    """Read a limit in its unit: a length of time, or a number, after which "%" may stand where it is one."""
    if unit is Unit.PER_CENT:
        return _number(_PER_CENT.sub("", typed))
    if unit is not Unit.SECONDS:
        return _number(typed)
    seconds = lengths.seconds_of(typed)
    if seconds is not None:
        return seconds
    try:
        return _number(typed)
    except ValueError:
        raise ValueError(
            f"“{typed[:40]}” is no length of time. {_LIMIT_TIME}" if typed else _LIMIT_TIME
        ) from None


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
