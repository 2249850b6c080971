"""Where the pages of queues are, and their text."""

from __future__ import annotations

import uuid
from typing import Any

from jobs.roles import VIEWER
from tests.web.people import client_of, tags

QUEUES = "/queues/"
CRITICAL = "/queues/one/?name=critical"


def page(address: str = QUEUES, client: Any = None, status: int = 200) -> str:
    """Return the text of a page as ``client`` sees it, or a viewer."""
    response = (client or client_of(VIEWER, login=f"viewer-{uuid.uuid4()}")).get(address)
    assert response.status_code == status
    return tags(response).text


def rows(text: str) -> str:
    """Return the part of the list's text that is its rows."""
    return text[text.index("Dead letters ", text.index("Latency p95")) :]
