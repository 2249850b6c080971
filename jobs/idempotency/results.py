"""Results as the ledger keeps them: kombu's JSON, so that dates, UUIDs and decimals come back equal."""

from __future__ import annotations

from typing import Any

from kombu.utils import json

# A larger one is not kept: the ledger is read for every copy of a job, and is no store of documents.
RESULT_LIMIT_BYTES = 65_536


def encode(result: Any) -> tuple[str | None, str]:
    """Return the result as JSON and "", or None and why it cannot be kept."""
    if result is None:
        return "null", ""
    try:
        text = json.dumps(result)
        if "__type__" in text:
            # A dictionary of the job's own may look like one of kombu's marks and be read as one.
            json.loads(text)
    except Exception as error:  # noqa: BLE001 - an object's own __json__ may raise anything; it is told
        return None, f"it has no JSON form ({type(error).__name__}: {str(error)[:200]})"
    # All of it is ASCII.
    if len(text) > RESULT_LIMIT_BYTES:
        return None, f"it has {len(text):,} bytes and {RESULT_LIMIT_BYTES:,} are allowed"
    return text, ""


def decode(text: str) -> Any:
    """Return what encode was given; tuples have become lists, as in every JSON."""
    return json.loads(text)
