"""Tags of the console: icons, times, states, names, small SVG. Whatever comes from a message is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from django import template
from django.templatetags.static import static
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from console import addresses, permissions, times
from console.presenters.plain import visible
from console.states import MARKS, REASON_MARKS, Mark
from jobs.core.fingerprint import split_variable

register = template.Library()

# Two lines of a list on the widest screen; the letter's page shows more.
_LINE_LIMIT = 300
_EMPTY = SafeString("")


@register.simple_tag(takes_context=True)
def windowed(context: template.Context, address: str) -> str:
    """Return an address that keeps the page's time window: ``{% url … as page %}{% windowed page %}``."""
    query = str(context.get("window_query") or "")
    if not query:
        return address
    return f"{address}{'&' if '?' in address else '?'}{query}"


@register.simple_tag(takes_context=True)
def page_of(context: template.Context, kind: str, name: str) -> str:
    """Return the address of a queue's, task's, worker's or job's page; the time window is kept."""
    query = str(context.get("window_query") or "")
    if kind == "queue":
        return addresses.queue_page(name, window_query=query)
    if kind == "task":
        return addresses.task_page(name, window_query=query)
    if kind == "worker":
        return addresses.worker_page(name, window_query=query)
    return addresses.job_page(name)


@register.simple_tag
def icon(name: str, css: str = "") -> SafeString:
    """Draw an icon of static/icons.svg beside its word."""
    return format_html(
        '<svg class="icon{}" aria-hidden="true"><use href="{}#{}"/></svg>',
        f" {css}" if css else "",
        static("console/icons.svg"),
        name,
    )


def _now(context: template.Context) -> datetime:
    now = context.get("now")
    return now if isinstance(now, datetime) else timezone.now()


@register.simple_tag(takes_context=True)
def ago(context: template.Context, moment: datetime | None, prefix: str = "") -> SafeString:
    """Write a relative time with the exact one in its title; "never" when there is none."""
    if moment is None:
        return SafeString("never")
    return format_html(
        '{}<time datetime="{}" title="{}" data-ago>{}</time>',
        f"{prefix} " if prefix else "",
        moment.isoformat(),
        times.exact(moment),
        times.ago(moment, now=_now(context)),
    )


@register.simple_tag(takes_context=True)
def clock(context: template.Context, moment: datetime | None, seconds: bool = True) -> SafeString:
    """Write the time of day, with its day when that is not today."""
    if moment is None:
        return _EMPTY
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        moment.isoformat(),
        times.exact(moment),
        times.clock(moment, now=_now(context), seconds=seconds),
    )


@register.simple_tag(takes_context=True)
def day(context: template.Context, moment: datetime) -> SafeString:
    """Write the day, with the exact time in its title."""
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        moment.isoformat(),
        times.exact(moment),
        times.day(moment, now=_now(context)),
    )


@register.simple_tag(takes_context=True)
def lasting(context: template.Context, since: datetime | None, until: datetime | None = None) -> str:
    """Say how long something lasts or lasted: "for 26 min"."""
    if since is None:
        return ""
    return f"for {times.span(((until or _now(context)) - since).total_seconds())}"


@register.filter
def comma(number: Any) -> str:
    """Write a whole number with commas: 4,310."""
    return "" if number is None or number == "" else f"{int(number):,}"


@register.filter
def span(seconds: float | None) -> str:
    """Write a length of time: "2 h 41 min"."""
    return "" if seconds is None else times.span(seconds)


@register.filter
def count(number: Any, noun: str) -> str:
    """Write a number with its noun: "1 letter", "4,310 letters"; "a|b" gives an irregular plural."""
    one, _, many = noun.partition("|")
    whole = int(number)
    return f"{whole:,} {one if whole == 1 else many or one + 's'}"


@register.filter
def shown(text: Any) -> str:
    """Make text from a message safe to read: controls and direction marks are written out."""
    return visible(str(text), keep="")


@register.filter
def coded(text: str) -> SafeString:
    """Make a message safe to read, with what stands in backticks as code."""
    parts = visible(text, keep="").split("`")
    return format_html_join(
        "",
        "{}",
        (
            (format_html("<code>{}</code>", part) if index % 2 and index < len(parts) - 1 else part,)
            for index, part in enumerate(parts)
        ),
    )


def _mark(kind: str, state: str) -> Mark:
    return MARKS[kind].get(state) or Mark(state, "grey", "question")


@register.simple_tag
def badge(kind: str, state: str, suffix: str = "") -> SafeString:
    """Draw a state: ``kind`` is letter, group, operation or outbox."""
    mark = _mark(kind, state)
    return format_html(
        '<span class="badge badge-{}">{}{}{}</span>', mark.colour, icon(mark.icon), mark.word, suffix
    )


@register.simple_tag
def reason(name: str, css: str = "") -> SafeString:
    """Draw a reason: its icon in its chart colour, its word, its meaning in the title."""
    mark = REASON_MARKS.get(name) or Mark(name, "c-rest", "question")
    return format_html(
        '<span class="reason{}" title="{}">{}<span class="clip">{}</span></span>',
        f" {css}" if css else "",
        mark.meaning,
        icon(mark.icon, f"icon-small {mark.colour}"),
        mark.word,
    )


@register.filter
def reason_word(name: str) -> str:
    """Return a reason's word."""
    mark = REASON_MARKS.get(name)
    return mark.word if mark else name


@register.filter
def action_word(name: str) -> str:
    """Write an audited action as a word: "set_rate" gives "Set rate"."""
    return visible(re.sub(r"[._]", " ", name).capitalize(), keep="")


def short_type(error_type: str) -> str:
    """Return an error's type without its module."""
    return error_type.rsplit(".", 1)[-1]


@register.simple_tag
def error_line(error_type: str, error: str, limit: int = _LINE_LIMIT, plain: bool = False) -> SafeString:
    """Write an error in one line: type bold, message, its variable parts dimmed unless ``plain``."""
    name = short_type(visible(error_type[:limit], keep=""))
    whole = " ".join(error[: limit * 2].split())
    text = whole[:limit]
    cut = "…" if len(whole) > limit or len(error) > limit * 2 else ""
    if name and text.startswith(f"{name}: "):
        text = text[len(name) + 2 :]
    parts = format_html_join(
        "",
        "{}",
        (
            (
                format_html('<span class="dim">{}</span>', visible(part, keep=""))
                if varies
                else visible(part, keep=""),
            )
            for part, varies in ([(text, False)] if plain else split_variable(text))
        ),
    )
    if cut and not text.endswith(cut):
        parts = format_html("{}{}", parts, cut)
    if not name:
        return format_html('<span class="hostile">{}</span>', parts or "No error was recorded")
    return format_html('<span class="hostile"><b>{}</b> {}</span>', name, parts)


@register.simple_tag
def group_title(group: Any, limit: int = _LINE_LIMIT) -> SafeString:
    """Write a group's title: type bold, then what its letters have in common."""
    return error_line(group.error_type, group.title, limit, plain=True)


@register.simple_tag
def task_name(name: str) -> SafeString:
    """Write a task's name, its module dimmed."""
    if not name:
        return SafeString('<span class="dim">no task name</span>')
    module, dot, last = visible(name[:255], keep="").rpartition(".")
    return format_html(
        '<span class="hostile"><span class="dim task-module">{}</span>{}</span>', module + dot, last
    )


def person_name(user: Any) -> str:
    """Return a person's name, or the login when there is none."""
    return (user.get_full_name() or user.get_username()) if user is not None else ""


def initials_of(name: str) -> str:
    """Return two letters of a name: "Mara Lindqvist" gives ML, "tomas" gives TO."""
    words: list[str] = re.findall(r"\w+", name)
    if not words:
        return "?"
    letters = words[0][0] + words[-1][0] if len(words) > 1 else words[0][:2]
    return letters.upper()


@register.simple_tag
def initials(who: Any, css: str = "initials-small") -> SafeString:
    """Draw the initials of a user or of a name."""
    name = who if isinstance(who, str) else person_name(who)
    return format_html(
        '<span class="initials {}" aria-hidden="true">{}</span>', css, initials_of(visible(name, keep=""))
    )


@register.filter
def first_name(user: Any) -> str:
    """Return how colleagues call a user."""
    return getattr(user, "first_name", "") or person_name(user)


@register.filter
def full_name(user: Any) -> str:
    """Return a user's name, or the login."""
    return person_name(user)


_SPARK_WIDTH, _SPARK_HEIGHT = 108.0, 24.0
# Fewer letters than this in the highest bar are not magnified to full height.
_SPARK_FLOOR = 8


@register.simple_tag
def spark(buckets: Sequence[int], failing: bool = False, label: str = "deaths") -> SafeString:
    """Draw bars of counts, first to last; red only for what still fails."""
    if not buckets:
        return _EMPTY
    step = _SPARK_WIDTH / len(buckets)
    top = max(_SPARK_FLOOR, *buckets)
    bars = format_html_join(
        "",
        '<rect class="spark-bar" x="{}" y="{}" width="{}" height="{}"/>',
        (
            (
                f"{index * step:.1f}",
                f"{_SPARK_HEIGHT - height:.1f}",
                f"{max(step - 1, 0.8):.1f}",
                f"{height:.1f}",
            )
            for index, number in enumerate(buckets)
            if number and (height := max(1.5, _SPARK_HEIGHT * number / top))
        ),
    )
    return format_html(
        '<svg class="spark{}" viewBox="0 0 108 26" preserveAspectRatio="none" role="img" aria-label="{}">{}'
        '<line class="spark-base" x1="0" y1="24.5" x2="108" y2="24.5"/></svg>',
        " spark-failing" if failing else "",
        f"{sum(buckets):,} {label}: {buckets[0]:,} at first, {buckets[-1]:,} at last",
        bars,
    )


@register.simple_tag
def share_bar(part: float, whole: float) -> SafeString:
    """Draw a share of a whole as a thin bar."""
    width = 0.0 if not whole else max(0.5 if part else 0.0, 100 * part / whole)
    return format_html(
        '<svg viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="bar-track" width="100" height="4"/><rect class="bar-share" width="{}" height="4"/></svg>',
        f"{min(width, 100):.2f}",
    )


# How the label of a bar calls a part, where its name is not the word.
_PART_WORDS = {"already": "already done"}


@register.simple_tag
def progress_bar(parts: Iterable[tuple[str, int]], css: str = "") -> SafeString:
    """Draw one bar in parts: (done, already, died, skipped, waiting, unknown or rest; count), in this order."""
    rows = [(name, number) for name, number in parts if number > 0]
    total = sum(number for _, number in rows) or 1
    rects, x = [], 0.0
    for name, number in rows:
        # A part that is not nothing can be seen.
        width = max(0.25, 100 * number / total)
        rects.append((name, f"{x:.3f}", f"{width:.3f}"))
        x += width
    return format_html(
        '<svg class="progress {}" viewBox="0 0 {} 10" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<rect class="part-rest" width="100%" height="10"/>{}</svg>',
        css,
        f"{max(x, 100):.3f}",
        ", ".join(f"{number:,} {_PART_WORDS.get(name, name)}" for name, number in rows) or "nothing yet",
        format_html_join("", '<rect class="part-{}" x="{}" width="{}" height="10"/>', rects),
    )


@register.simple_tag
def progress_of(progress: Any, css: str = "") -> SafeString:
    """Draw an operation's progress as jobs.operations counts it."""
    return progress_bar(
        (
            ("done", progress.done),
            ("already", progress.already_done),
            ("died", progress.died),
            ("skipped", progress.skipped + progress.refused),
            ("waiting", progress.waiting),
            ("unknown", progress.unknown),
            ("rest", progress.not_sent),
        ),
        css,
    )


@register.filter
def append(text: str, more: Any) -> str:
    """Join two values as text; Django's own ``add`` returns nothing for a text and a number."""
    return f"{text}{more}"


@register.inclusion_tag("console/_action.html", takes_context=True)
def action(
    context: template.Context,
    label: str,
    href: str = "",
    icon: str = "",
    permission: str = "",
    css: str = "",
    why_not: str = "",
    name: str = "",
    value: str = "",
    formaction: str = "",
) -> dict[str, Any]:
    """Draw a button: a link with ``href``, else a submit button; refused buttons stay, with their reason.

    ``permission`` is checked for the user of the page; ``why_not`` is another reason that refuses.
    """
    user = context["user"]
    reason = (permissions.refusal(user, permission) if permission else "") or why_not
    return {
        "label": label,
        "href": href,
        "icon": icon,
        "css": css,
        "reason": reason,
        "name": name,
        "value": value,
        "formaction": formaction,
    }


@register.simple_tag(takes_context=True)
def may(context: template.Context, permission: str) -> bool:
    """Tell whether the user of the page has a permission."""
    return not permissions.refusal(context["user"], permission)
