"""What a mail or a webhook tells, apart from how it looks. What comes from messages is one clean line each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from jobs.alerts import addresses, reading, rules
from jobs.core import alert_words, lengths
from jobs.core.cleaning import clean_line, for_terminal
from jobs.core.words import AlertKind
from jobs.models import Alert, AlertRule

# At most so many groups, queues or workers stand in a mail.
MOST_ROWS = 5
NAME_LENGTH = 120


class Tone(StrEnum):
    """What a story is: it decides sign, word and colour."""

    FIRING = "firing"
    STILL = "still"
    RECOVERED = "recovered"
    TEST = "test"


@dataclass(frozen=True, slots=True)
class Link:
    """A link by its words."""

    words: str
    address: str


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: ``strong`` and ``rest`` on one line, ``below`` under it, then the cells."""

    strong: str
    rest: str = ""
    below: str = ""
    cells: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """A table. Numbers and times stand right; words such as a state, at ``words``, stand left.

    The cells at ``strong`` are what counts. Both count from 1, the first cell after the name.
    """

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    words: tuple[int, ...] = ()
    strong: int = 1


# Text, and whether it is the fact that the eye looks for.
Part = tuple[str, bool]


@dataclass(frozen=True, slots=True)
class Story:
    """What is told. ``subject`` has no environment yet; ``parts`` are the sentences."""

    tone: Tone
    subject: str
    headline: str
    parts: tuple[Part, ...]
    rule_line: str
    button: Link | None = None
    table: Table | None = None
    note: str = ""
    links: tuple[Link, ...] = ()
    # For the alert's row: the search for its letters, and how it was before, in the rule's unit.
    letters_query: str = ""
    before: float | None = None

    @property
    def sentences(self) -> str:
        """The sentences as text."""
        return "".join(text for text, _ in self.parts)


def line(text: str, *, limit: int = NAME_LENGTH) -> str:
    """Return a name or a title from a message as one line that turns nothing around."""
    return for_terminal(clean_line(text, limit=limit))


def names(bundle: Sequence[Alert]) -> list[str]:
    """Return what the alerts of a bundle are about; nothing of a rule that is about all."""
    return [line(reading.subject_of(alert)) for alert in bundle if alert.subject]


def listed(words: Sequence[str], *, most: int = MOST_ROWS) -> str:
    """Write names in a sentence: "a, b and 3 more"."""
    shown = list(words[:most])
    if len(words) > most:
        return f"{', '.join(shown)} and {len(words) - most:,} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)


def rule_line(rule: AlertRule) -> str:
    """Say which rule it was, and when that fires."""
    return f"Rule “{line(rule.name)}”: {line(rules.in_words(rule), limit=400)}."


def recovered_rule_line(rule: AlertRule) -> str:
    """Say which rule it was, and why it is over."""
    words = lengths.written(rule.recovery_hold_seconds)
    held = (
        f"after {words} below its limit"
        if rule.recovery_hold_seconds
        else "as soon as it was below its limit"
    )
    return f"Rule “{line(rule.name)}”: recovered {held}."


def firing_links(alert: Alert) -> tuple[Link, ...]:
    """Return the links under a mail that says it fires."""
    rule = alert.rule
    found = [
        Link("Open the alert", addresses.alert(alert.pk)),
        Link("Silence", addresses.silence(rule.pk)),
        Link("Change the rule", addresses.rule(rule.pk)),
    ]
    if rule.runbook_url and not rules.url_problem(rule.runbook_url):
        found.insert(0, Link("Runbook", rule.runbook_url))
    return tuple(found)


def ended_links(alert: Alert) -> tuple[Link, ...]:
    """Return the links under a mail that says it is over."""
    return (
        Link("Open the alert", addresses.alert(alert.pk)),
        Link("Change the rule", addresses.rule(alert.rule_id)),
    )


def is_about_letters(rule: AlertRule) -> bool:
    """Say whether the rule is about dead letters."""
    return rule.kind in {AlertKind.LETTERS_GROWING, AlertKind.GROUP_FAILING}


def test(rule: AlertRule, *, asked_by: str, now: datetime) -> Story:
    """Tell that a rule's way to people works."""
    return Story(
        tone=Tone.TEST,
        subject=f"Test of the rule “{line(rule.name)}”",
        headline="This is a test",
        parts=(
            (f"{line(asked_by)} asked for it at ", False),
            (f"{alert_words.clock(now, now=now)} UTC", True),
            (". Nothing is wrong. When the rule fires, you are told this way.", False),
        ),
        rule_line=rule_line(rule),
        button=Link("Open the rule", addresses.rule(rule.pk)),
    )
