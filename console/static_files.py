"""Static files: plotly.js out of its package, text compressed, and addresses that browsers may keep.

Nothing is collected or written for it: the files stay where they lie. A file is compressed in memory when it is
first asked for, once a process. The address of a file names its content, as ``?v=``; what is asked for by that
name may be kept for ever, since another content has another address.
"""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from http import HTTPStatus
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs
from wsgiref.headers import Headers

import plotly  # type: ignore[import-untyped]
from django.contrib.staticfiles import finders
from django.contrib.staticfiles.finders import BaseFinder
from django.contrib.staticfiles.storage import StaticFilesStorage
from django.core.checks import CheckMessage
from django.core.exceptions import SuspiciousFileOperation
from django.core.files.storage import FileSystemStorage, Storage
from django.middleware.gzip import re_accepts_gzip
from whitenoise.middleware import WhiteNoiseMiddleware  # type: ignore[import-untyped]
from whitenoise.responders import Response, StaticFile  # type: ignore[import-untyped]

_NAME = "plotly.min.js"
_FOLDER = Path(plotly.__file__).parent / "package_data"
# Beginnings of the media types that become smaller.
_TEXT = ("text/", "image/svg+xml", "application/json")
# Of plotly.js 1.47 of 4.8 MB in 0.13 s; the highest level takes 0.04 s more for 0.2 % less.
_LEVEL = 6
_FOR_EVER = f"max-age={WhiteNoiseMiddleware.FOREVER}, public, immutable"


class PlotlyFinder(BaseFinder):
    """Finds ``plotly/plotly.min.js``: that one file, not the folder around it."""

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


class VersionedStorage(StaticFilesStorage):
    """Gives each file an address that names its content: ``/static/console/js/app.js?v=1f0c…``."""

    def url(self, name: str | None) -> str:
        """Return the address; one without a version where there is no such file, as amid an upgrade."""
        address = super().url(name)
        path = _path_of(name) if name else None
        try:
            return address if path is None else f"{address}?v={_version_at(*_stamp(path))}"
        except FileNotFoundError:
            return address


class StaticFilesMiddleware(WhiteNoiseMiddleware):  # type: ignore[misc]
    """Serves static files as WhiteNoise does, and text compressed."""

    def get_static_file(
        self, path: str, url: str, stat_cache: Mapping[str, os.stat_result] | None = None
    ) -> StaticFile | _TextFile:
        """Return what answers requests for the file at ``path``."""
        file = super().get_static_file(path, url, stat_cache)
        is_text = self.media_types.get_type(path).startswith(_TEXT)
        return _TextFile(file, path) if is_text else file


class _TextFile:
    """Answers for a file as WhiteNoise does, in gzip to whoever reads that."""

    def __init__(self, file: StaticFile, path: str) -> None:
        self._file = file
        self._path = path

    def get_response(self, method: str, request_headers: Mapping[str, str]) -> Response:
        reads_gzip = re_accepts_gzip.search(request_headers.get("HTTP_ACCEPT_ENCODING", "")) is not None
        if reads_gzip:
            # Whoever has the beginning of the file has it compressed, and would put a part of the plain file after it.
            request_headers = {name: text for name, text in request_headers.items() if name != "HTTP_RANGE"}
        answer = self._file.get_response(method, request_headers)
        if answer.status not in {HTTPStatus.OK, HTTPStatus.NOT_MODIFIED}:
            return answer
        headers = Headers(list(answer.headers))
        headers["Vary"] = "Accept-Encoding"
        if not reads_gzip:
            return Response(answer.status, headers.items(), answer.file)
        version, compressed = _compressed(*_stamp(self._path))
        # Read and named at once, so that a file that is replaced is never kept under the name of the one before.
        if parse_qs(request_headers.get("QUERY_STRING", "")).get("v") == [version]:
            headers["Cache-Control"] = _FOR_EVER
        if answer.status == HTTPStatus.NOT_MODIFIED:
            return Response(answer.status, headers.items(), None)
        headers["Content-Encoding"] = "gzip"
        headers["Content-Length"] = str(len(compressed))
        if answer.file is None:
            return Response(answer.status, headers.items(), None)
        answer.file.close()
        return Response(answer.status, headers.items(), BytesIO(compressed))


@lru_cache(maxsize=1024)
def _path_of(name: str) -> str | None:
    """Return where the file of that name lies; None where none does, as of a folder, or of "/style.css"."""
    try:
        path = finders.find(name)
    except SuspiciousFileOperation:
        return None
    return path if path is not None and Path(path).is_file() else None


def _stamp(path: str) -> tuple[str, int, int]:
    """Return what changes when the file does: nothing is read again before."""
    stat = Path(path).stat()
    return path, stat.st_mtime_ns, stat.st_size


@lru_cache(maxsize=1024)
def _version_at(path: str, mtime_ns: int, size: int) -> str:
    return _version(Path(path).read_bytes())


@lru_cache(maxsize=1024)
def _compressed(path: str, mtime_ns: int, size: int) -> tuple[str, bytes]:
    content = Path(path).read_bytes()
    return _version(content), gzip.compress(content, _LEVEL, mtime=0)


def _version(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:10]
