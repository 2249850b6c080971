"""Reads a supplier's price list. Its first version trusts the supplier; the mended one does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any


def total_cents(rows: Iterable[Mapping[str, Any]], *, is_fixed: bool) -> int:
    """Add up the prices of a list."""
    read_price: Callable[[Mapping[str, Any]], int] = price_cents if is_fixed else price_cents_before_the_fix
    return sum(read_price(row) for row in rows)


def price_cents_before_the_fix(row: Mapping[str, Any]) -> int:
    """Read a price; a row without one and a decimal comma are the two bugs."""
    return round(float(row["price"]) * 100)


def price_cents(row: Mapping[str, Any]) -> int:
    """Read a price; a row without one counts as nothing."""
    text = str(row.get("price", "0")).replace(",", ".")
    return round(float(text) * 100)
