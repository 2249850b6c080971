"""Model fields of our own."""

from __future__ import annotations

import json
from typing import Any

from django.db import models


class JSONTextField(models.TextField):  # type: ignore[type-arg]
    """Holds JSON as ASCII text, so that any string a message may carry survives.

    PostgreSQL's jsonb refuses NUL and lone surrogates and reorders keys; a message is kept as it
    came. Never filter on what is inside.
    """

    def from_db_value(self, value: str | None, *_: object) -> Any:
        """Read the stored text."""
        return None if value is None else json.loads(value)

    def to_python(self, value: Any) -> Any:
        """Read text that a fixture or a form gives; anything else is the value itself."""
        return json.loads(value) if isinstance(value, str) else value

    def get_prep_value(self, value: Any) -> str | None:
        """Write the value as ASCII JSON, spaced as kombu writes it: a replay copies the text."""
        return None if value is None else json.dumps(value, ensure_ascii=True)
