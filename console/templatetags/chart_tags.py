"""Tags of the charts: the rows of the table behind one."""

from __future__ import annotations

from django import template
from django.utils.html import escape
from django.utils.safestring import SafeString

from console.chart_parts import NumberChart

register = template.Library()


@register.simple_tag
def chart_rows(chart: NumberChart) -> SafeString:
    """Write the rows: a page has hundreds, and a template's loop would take a tenth of a second for them."""
    rows = []
    for label, cells in chart.rows:
        columns = "".join(f'<td class="number">{escape(cell)}</td>' for cell in cells)
        rows.append(f'<tr><th scope="row">{escape(label)}</th>{columns}</tr>')
    return SafeString("".join(rows))
