"""Python tracebacks as text → frames: whose code each is, and what was raised."""

from __future__ import annotations

import re
from dataclasses import dataclass

_BLOCK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s*File "(.*)", line (\d+)(?:, in (.*))?$')
# Under the code of a frame, from Python 3.11 on: "    ~~~~^^^^".
_CARETS = re.compile(r"^\s*[~^]+\s*$")
_REPEATED = re.compile(r"^\s*\[Previous line repeated \d+ more times?\]$")
# Exception groups draw a tree with these in front of every line.
_TREE = re.compile(r"^\s*[|+](?: |-+ ?)")

_SITE_PACKAGES = re.compile(r"/(?:site|dist)-packages/([^/]+)")
_STANDARD_LIBRARY = re.compile(r"/(?:lib(?:64)?/python3(?:\.\d+)?t?|[Pp]ython3\d+/[Ll]ib|python3\d+\.zip)/")
# Between the worker and the job, wherever they are installed.
_RUNNER = re.compile(
    r"(?:^|/)(celery|billiard|jobs)/(?:app/(?:trace|task|autoretry|base)\.py|pool\.py|agent/[a-z_]+\.py"
    r"|base/(?:job|running)\.py|idempotency/running\.py)$"
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One call. ``package`` names the library; it is empty for the application's own code.

    ``line`` is 0 and ``code`` empty where the traceback has none.
    """

    path: str
    line: int
    function: str
    code: str
    is_application: bool
    package: str


@dataclass(frozen=True, slots=True)
class ParsedTraceback:
    """The frames of the last block, outermost first, and the line that names the error."""

    frames: tuple[Frame, ...]
    error_line: str


def parse(text: str) -> ParsedTraceback:
    """Read the last block of a traceback; of a chain, that is the error that came out.

    Total: a text that is no traceback has no frames and its last line as the error.
    """
    lines = [_TREE.sub("", line) if _TREE.match(line) else line for line in text.splitlines()]
    starts = [number for number, line in enumerate(lines) if line.strip().endswith(_BLOCK)]
    if not starts:
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return ParsedTraceback((), last)
    return _parse_block(lines[starts[-1] + 1 :])


def _parse_block(lines: list[str]) -> ParsedTraceback:
    frames: list[Frame] = []
    position = 0
    while position < len(lines):
        line = lines[position]
        match = _FRAME.match(line)
        if match is None:
            if line.strip() and not _REPEATED.match(line) and not _CARETS.match(line):
                return ParsedTraceback(tuple(frames), line.strip())
            position += 1
            continue
        indent = len(line) - len(line.lstrip())
        position += 1
        code: list[str] = []
        while position < len(lines) and _is_code(lines[position], indent):
            if not _CARETS.match(lines[position]) and not _REPEATED.match(lines[position]):
                code.append(lines[position])
            position += 1
        frames.append(_frame(match, code))
    return ParsedTraceback(tuple(frames), "")


def _is_code(line: str, indent: int) -> bool:
    """Say whether a line belongs to the frame above it: it is indented further than its File line."""
    return len(line) - len(line.lstrip()) > indent and _FRAME.match(line) is None


def _frame(match: re.Match[str], code: list[str]) -> Frame:
    path = match[1]
    package = package_of(path)
    margin = min((len(line) - len(line.lstrip()) for line in code), default=0)
    return Frame(
        path=path,
        # A hostile number would not fit an integer column, nor int().
        line=int(match[2]) if len(match[2]) < 10 else 0,
        function=match[3] or "",
        code="\n".join(line[margin:].rstrip() for line in code),
        is_application=not package,
        package=package,
    )


def package_of(path: str) -> str:
    """Name the library that a file belongs to: its package, or "python"; empty for the application."""
    path = path.replace("\\", "/")
    if match := _SITE_PACKAGES.search(path):
        return match[1].removesuffix(".py")
    if path.startswith("<") or _STANDARD_LIBRARY.search(path):
        return "python"
    if match := _RUNNER.search(path):
        return match[1]
    return ""
