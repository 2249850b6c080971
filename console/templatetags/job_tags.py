"""Tags of a job's page: moments to the millisecond, since a whole life may fit into a second."""

from __future__ import annotations

from datetime import UTC, datetime

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from console import times

register = template.Library()


@register.simple_tag(takes_context=True)
def moment(context: template.Context, at: datetime) -> SafeString:
    """Write a time of day with its milliseconds dimmed, after its day when that is not today."""
    now = context.get("now")
    words = times.clock(at, now=now if isinstance(now, datetime) else timezone.now(), seconds=True)
    thousandths = f".{at.microsecond // 1000:03}"
    return format_html(
        '<time datetime="{}" title="{} UTC">{}<span class="job-ms">{}</span></time>',
        at.isoformat(),
        f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}{thousandths}",
        words,
        thousandths,
    )
