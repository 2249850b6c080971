"""Names as the list of jobs takes them."""

from __future__ import annotations

from jobs.core.cleaning import clean_name

MOST_NAME_BYTES = 600


def fit(name: str) -> str:
    """Return a name that is not too wide for ``run_newest``: PostgreSQL takes 2,704 bytes an entry, for four names."""
    if name.isascii() or len(encoded := name.encode()) <= MOST_NAME_BYTES:
        return name
    return clean_name(name, limit=len(encoded[:MOST_NAME_BYTES].decode(errors="ignore")))
