"""Tags of the numbers: a level over time as a small line, a figure that may be unknown."""

from __future__ import annotations

from collections.abc import Sequence

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

register = template.Library()

_WIDTH, _HEIGHT = 108.0, 24.0
# A level below it is not magnified to full height: three messages are no mountain.
_FLOOR = 40


@register.simple_tag
def spark_line(levels: Sequence[float | None], label: str = "messages waiting") -> SafeString:
    """Draw a level over time, with a dot at its end; what is not known is a gap."""
    known = [level for level in levels if level is not None]
    if not known:
        return SafeString('<span class="dim">–</span>')
    top = max(_FLOOR, *known)
    step = _WIDTH / max(1, len(levels) - 1)
    points = [
        None if level is None else (f"{index * step:.1f}", f"{_HEIGHT - (_HEIGHT - 3) * level / top:.1f}")
        for index, level in enumerate(levels)
    ]
    last = next(point for point in reversed(points) if point is not None)
    return format_html(
        '<svg class="spark spark-line" viewBox="-2 -1 114 28" role="img" aria-label="{}">{}'
        '<circle class="spark-dot" cx="{}" cy="{}" r="2"/></svg>',
        f"{known[0]:,.0f} {label} at first, {max(known):,.0f} at most, {known[-1]:,.0f} at last",
        format_html_join(
            "", '<polyline points="{}"/>', ((" ".join(",".join(p) for p in run),) for run in _runs(points))
        ),
        *last,
    )


def _runs(points: Sequence[tuple[str, str] | None]) -> list[list[tuple[str, str]]]:
    """Return the pieces without a gap; a single point becomes a line that can be seen."""
    runs: list[list[tuple[str, str]]] = [[]]
    for point in points:
        if point is None:
            runs.append([])
        else:
            runs[-1].append(point)
    return [run if len(run) > 1 else run * 2 for run in runs if run]
