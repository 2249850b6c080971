"""A story as the text and the HTML of a mail, and as the body of a webhook call."""

from __future__ import annotations

import functools
import textwrap
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from django.template import Context, Engine, Template

from jobs import conf
from jobs.alerts.stories import Story, Tone
from jobs.core.cleaning import clean_line, for_terminal
from jobs.models import Notification

SUBJECT_LENGTH = 200
# Where the HTML says that the mail is late; nothing from a message can look like it, since that is escaped.
LATE_MARK = "<!--late-->"
WIDTH = 76


@dataclass(frozen=True, slots=True)
class Look:
    """Sign, word and colours of a tone. The colours are those of the pages in light."""

    sign: str
    word: str
    colour: str
    background: str
    button_colour: str = "#ffffff"
    button_background: str = "#4544c4"
    button_border: str = "#4544c4"


_OUTLINED = ("#1b1f27", "#ffffff", "#c8cdd6")
LOOKS = {
    Tone.FIRING: Look("●", "Firing", "#b42318", "#fdeceb"),
    Tone.STILL: Look("●", "Still firing", "#b42318", "#fdeceb"),
    Tone.RECOVERED: Look("✓", "Recovered", "#146c3c", "#e6f4ec", *_OUTLINED),
    Tone.TEST: Look("i", "Test", "#1d4f91", "#e7effa", *_OUTLINED),
}


@dataclass(frozen=True, slots=True)
class Mail:
    """A rendered mail."""

    subject: str
    text: str
    html: str


def mail(story: Story) -> Mail:
    """Render a story as a mail; the text says the same as the HTML."""
    subject = subject_of(story)
    look = LOOKS[story.tone]
    context = {"story": story, "look": look, "subject": subject, "environment": _environment()}
    html = _template().render(Context(context))
    return Mail(subject=subject, text=_text(story, look), html=html)


def subject_of(story: Story) -> str:
    """Return the subject with the environment before it: one clean line, so that no header can be added."""
    environment = _environment()
    words = f"[{environment}] {story.subject}" if environment else story.subject
    return for_terminal(clean_line(words, limit=SUBJECT_LENGTH))


def with_lateness(text: str, html: str, *, note: str) -> tuple[str, str]:
    """Return a rendered mail that says first why it comes late."""
    said = (
        '<p style="margin:0 0 16px;padding:8px 12px;border-radius:4px;background:#fff4e0;color:#7a4b00;'
        f'font-size:13px;line-height:19px">{escape(note)}</p>'
    )
    # The mark stays for the next: a recovery that tells what could not be told may be late itself.
    return f"{_wrapped(note)}\n\n{text}", html.replace(LATE_MARK, f"{LATE_MARK}{said}", 1)


def say_first(row: Notification, note: str) -> None:
    """Let a notification that is not sent yet begin with a note, whatever its way."""
    if row.body.get("attachments"):
        row.body = {**row.body, "text": f"{row.body['text']}\n{_slack(note)}"}
    else:
        row.text, row.html = with_lateness(row.text, row.html, note=note)


def webhook_body(story: Story) -> dict[str, Any]:
    """Return what a Slack-compatible webhook takes: a text, and an attachment with the same in full."""
    look = LOOKS[story.tone]
    fields = (
        [] if story.table is None else [_field(row.strong, row.rest, row.cells) for row in story.table.rows]
    )
    lines = [story.sentences, *([story.note] if story.note else [])]
    attachment: dict[str, Any] = {
        "color": look.colour,
        "fallback": _slack(subject_of(story)),
        "title": _slack(story.headline),
        "text": _slack("\n".join(lines)),
        "fields": fields,
        "footer": _slack(story.rule_line),
    }
    if story.button is not None:
        attachment["title_link"] = story.button.address
        attachment["text"] += f"\n<{_slack(story.button.address)}|{_slack(story.button.words)}>"
    return {"text": f"{look.sign} {_slack(subject_of(story))}", "attachments": [attachment]}


def _field(strong: str, rest: str, cells: tuple[str, ...]) -> dict[str, Any]:
    name = " ".join(part for part in (strong, rest) if part)
    return {
        "title": _slack(name),
        "value": _slack(" · ".join(cell for cell in cells if cell)),
        "short": False,
    }


def _slack(text: str) -> str:
    """Escape what Slack reads as links and mentions: <!channel> from an error must not wake everybody."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _environment() -> str:
    return for_terminal(clean_line(conf.current().environment_name, limit=60))


@functools.lru_cache(maxsize=1)
def _template() -> Template:
    # An engine of our own: in a project that configures templates otherwise a mail looks the same.
    directory = Path(__file__).resolve().parent.parent / "templates"
    return Engine(dirs=[str(directory)], autoescape=True).get_template("jobs/mail/alert.html")


def _text(story: Story, look: Look) -> str:
    environment = _environment()
    parts = [
        " · ".join(part for part in (look.word, environment) if part),
        _wrapped(story.headline),
        _wrapped(story.sentences),
    ]
    if story.table is not None:
        parts.append(_table(story))
    if story.button is not None:
        parts.append(f"{story.button.words}:\n{story.button.address}")
    if story.note:
        parts.append(_wrapped(story.note))
    links = [f"{link.words}: {link.address}" for link in story.links]
    parts.append("\n".join(["-- ", _wrapped(story.rule_line), *links, "All times are UTC."]))
    return "\n\n".join(part for part in parts if part) + "\n"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _table(story: Story) -> str:
    if story.table is None:
        return ""
    lines = []
    for row in story.table.rows:
        cells = [
            f"{column.lower()} {cell}"
            for column, cell in zip(story.table.columns[1:], row.cells, strict=False)
            if cell
        ]
        name = " ".join(part for part in (row.strong, row.rest) if part)
        lines.append(f"- {name}: {', '.join(cells)}")
        if row.below:
            lines.append(f"  {row.below}")
    return "\n".join(lines)
