"""Serves plotly.js out of the installed package: that one file, not the folder around it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import plotly  # type: ignore[import-untyped]
from django.contrib.staticfiles.finders import BaseFinder
from django.core.checks import CheckMessage
from django.core.files.storage import FileSystemStorage, Storage

_NAME = "plotly.min.js"
_FOLDER = Path(plotly.__file__).parent / "package_data"


class PlotlyFinder(BaseFinder):
    """Finds ``plotly/plotly.min.js``."""

    def __init__(self) -> None:
        self.storage = FileSystemStorage(location=str(_FOLDER))
        # collectstatic and WhiteNoise put it under this folder.
        self.storage.prefix = "plotly"  # type: ignore[attr-defined]

    def check(self, **_: Any) -> list[CheckMessage]:
        """There is nothing to configure."""
        return []

    def find(self, path: str, find_all: bool = False, **_: Any) -> Any:
        """Return the path of the file, if it is the one asked for."""
        if path != f"plotly/{_NAME}":
            return []
        found = str(_FOLDER / _NAME)
        return [found] if find_all else found

    def list(self, ignore_patterns: Iterable[str] | None) -> Iterator[tuple[str, Storage]]:
        """Yield the one file."""
        yield _NAME, self.storage
