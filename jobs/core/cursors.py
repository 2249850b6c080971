"""Where a page of a list begins: after or before the row of a moment and an id."""

from __future__ import annotations

from datetime import UTC, datetime

# The moment by which a list is sorted, and the id that tells rows of the same moment apart.
Key = tuple[datetime, int]
_MOMENT = "%Y%m%dT%H%M%S%f"


def write(direction: str, key: Key) -> str:
    """Write a cursor, "after" or "before" a row, as an address can hold it."""
    moment, pk = key
    return f"{direction}.{moment.astimezone(UTC).strftime(_MOMENT)}.{pk}"


def read(cursor: str) -> tuple[bool, Key]:
    """Return whether a cursor leads backwards, and its row.

    Raises:
        ValueError: when it is none; says so in words for the page.
    """
    try:
        direction, text, number = cursor.split(".")
        backwards = {"after": False, "before": True}[direction]
        moment = datetime.strptime(text, _MOMENT).replace(tzinfo=UTC)
        pk = int(number)
        if not 0 < pk < 2**63:
            raise ValueError(pk)
    except (ValueError, KeyError):
        raise ValueError(
            f"{cursor[:80]!r} is not a place in this list. Start again from its first page."
        ) from None
    return backwards, (moment, pk)
