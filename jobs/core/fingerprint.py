"""Which failures are one bug: a hash over what stays the same when it strikes again.

Same bug with other ids, numbers, addresses and line numbers: one fingerprint. Two bugs of one
exception type: two, because the frames, or the innermost line of code, differ.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

from jobs.core.cleaning import clean_line
from jobs.core.tracebacks import Frame, parse
from jobs.core.words import Reason

# Deeper frames are callers that many bugs share; more of them would split one bug by its callers.
FRAMES = 5
# A message is compared over this many characters, so that a megabyte of it costs nothing.
MESSAGE_LENGTH = 2_000
TITLE_LENGTH = 255

# What strikes anywhere in the code, or before any of it ran: its place says nothing.
_PLACELESS = frozenset({
    Reason.WORKER_LOST,
    Reason.TIMED_OUT,
    Reason.EXPIRED,
    Reason.UNREGISTERED,
    Reason.MALFORMED,
    Reason.UNDECODABLE,
    Reason.BROKER,
    Reason.PUBLISH_FAILED,
})  # fmt: skip
# Whether its retries were used up does not make it another bug.
_SAME_BUG = {Reason.RETRIES_EXHAUSTED: Reason.FAILED}

# Numbers that name the error rather than the data.
_CONSTANTS = (
    r"\[(?:Errno|WinError|SSL: [A-Z_]+) ?-?\d*\]|\bsignal \d+\b|\b[1-5]\d\d (?:Client|Server) Error\b"
)
_VARIABLES = {
    "quoted": r"(?<!\w)'[^'\n]{1,500}'(?!\w)|(?<!\w)\"[^\"\n]{1,500}\"(?!\w)|`[^`\n]{1,500}`",
    "url": r"\b[a-zA-Z][a-zA-Z0-9+.\-]{1,20}://[^\s'\"<>)\]]+",
    "email": r"(?<![\w.+\-])[\w.+\-]{1,64}@[\w\-]{1,64}(?:\.[\w\-]{1,64})+",
    "uuid": r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b",
    "time": (
        r"\b\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:Z|[+\-]\d{2}:?\d{2})?)?"
        r"|\b\d{1,2}:\d{2}:\d{2}(?:[.,]\d+)?\b"
    ),
    "ip": r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?\b|(?<![\w:])(?:[0-9a-fA-F]{0,4}:){3,7}[0-9a-fA-F]{1,4}(?![\w:])",
    "address": r"\b0x[0-9a-fA-F]+\b",
    "path": r"(?<![\w/\\])(?:[A-Za-z]:)?(?:[/\\][\w.\-+@~]+){2,}[/\\]?",
    # 8f3c2a91, gen48213, ord_2026_0007: not utf8, v2 or sha256, and not the first half of 1000.50.
    "id": (
        r"\b(?!\d{1,40}[.,]\d)(?=[a-f]{0,40}\d)[0-9a-f]{8,}\b"
        r"|\b(?!\d{1,40}[.,]\d)(?=[A-Za-z_\-]{0,40}\d{4})[\w\-]+\b"
    ),
    "number": r"(?<![\w.])[+\-]?\d+(?:[.,_]\d+)*(?:[eE][+\-]?\d+)?(?:\.(?!\w))?(?=[^A-Za-z_0-9]|[a-z%]{1,3}\b|$)",
}
_SPLIT = re.compile(
    f"(?P<constant>{_CONSTANTS})|" + "|".join(f"(?P<{kind}>{regex})" for kind, regex in _VARIABLES.items())
)
# In a title, what was quoted and a small number help to recognise the bug: KeyError: 'sku'.
_KEPT_IN_TITLES = frozenset({"constant", "quoted", "number"})

# Directories that name a release, not a module.
_RELEASE = re.compile(
    r"v?\d+(?:[.\-_]\d+)+(?:[\-+.]?\w+)?|\d{5,}|(?=[a-f]*\d)[0-9a-f]{7,40}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
)
_ROOTS = frozenset(
    [
        "app",
        "apps",
        "application",
        "src",
        "source",
        "code",
        "srv",
        "opt",
        "www",
        "site",
        "web",
        "current",
        "release",
        "releases",
        "deploy",
        "deploys",
        "home",
        "root",
        "usr",
        "var",
        "tmp",
        "mnt",
        "data",
        "project",
        "projects",
        "repo",
        "workspace",
        "workspaces",
        "backend",
        "server",
        "lib",
    ]
)


def fingerprint(*, task: str, reason: str, error_type: str, error: str, traceback: str) -> str:
    """Return 40 hexadecimal characters that are the same for the same bug."""
    reason = _SAME_BUG.get(Reason(reason), Reason(reason))
    places, code = ((), "") if reason in _PLACELESS else _places(_without_error(traceback))
    if places:
        parts = [task, error_type, *places, code or normal_message(error)]
    else:
        parts = [task, error_type, reason, normal_message(error)]
    joined = "\x1f".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.sha1(joined, usedforsecurity=False).hexdigest()


def application_frames(traceback: str) -> list[Frame]:
    """Return up to FRAMES innermost frames of the application's own code, outermost first.

    A call that repeats counts once, so that the depth of a recursion makes no difference.
    """
    chosen: dict[tuple[str, str], Frame] = {}
    for frame in reversed(parse(traceback).frames):
        if frame.is_application:
            chosen.setdefault((normal_path(frame.path), frame.function), frame)
        if len(chosen) == FRAMES:
            break
    return list(reversed(chosen.values()))


def _without_error(traceback: str) -> str:
    """Cut after the last frame: what follows differs from job to job and says nothing about the place."""
    position = traceback.rfind('  File "')
    for _ in range(2):  # its File line and its code
        newline = traceback.find("\n", position + 1)
        if position < 0 or newline < 0:
            break
        position = newline
    return traceback[:position] if position > 0 else traceback


# In a storm thousands of jobs die in few places.
@lru_cache(maxsize=256)
def _places(traceback: str) -> tuple[tuple[str, ...], str]:
    frames = application_frames(traceback)
    if not frames:
        return (), ""
    places = tuple(f"{normal_path(frame.path)}:{_normal_function(frame.function)}" for frame in frames)
    return places, _first_line(frames[-1].code)


def normal_path(path: str) -> str:
    """Return a module's last two parts: the same in every release directory and container.

    /srv/app/releases/20261101/shop/tasks.py and /app/shop/tasks.py are both shop/tasks.py.
    """
    parts = [part for part in path.replace("\\", "/").split("/") if part and part != "."]
    if not parts:
        return ""
    *directories, name = parts
    directories = [part for part in directories if not _RELEASE.fullmatch(part)]
    if not directories or directories[-1].lower() in _ROOTS or directories[-1].endswith(":"):
        return name
    return f"{directories[-1]}/{name}"


def normal_message(error: str) -> str:
    """Return a message with every variable part replaced, blanks single, at most MESSAGE_LENGTH."""
    pieces = ("#" if is_variable else text for text, is_variable in split_variable(error[:MESSAGE_LENGTH]))
    return " ".join("".join(pieces).split())


def title(error_type: str, error: str) -> str:
    """Return "Type: message" for a group: urls, ids, addresses and paths left out, at most 255 characters."""
    name = error_type.rpartition(".")[2]
    pieces: list[str] = []
    position = 0
    text = error[:MESSAGE_LENGTH].strip()
    for match in _SPLIT.finditer(text):
        pieces.append(text[position : match.start()])
        kept = match.lastgroup in _KEPT_IN_TITLES and len(match[0]) <= 40
        pieces.append(match[0] if kept else "…")
        position = match.end()
    pieces.append(text[position:])
    first = next((line for line in "".join(pieces).splitlines() if line.strip()), "")
    message = first.strip().removesuffix("…").rstrip(" :=,(")
    return clean_line(f"{name}: {message}" if name and message else name or message, limit=TITLE_LENGTH)


def split_variable(text: str) -> list[tuple[str, bool]]:
    """Split a message into what the bug says (False) and what this job's data say (True).

    Joined, the parts are the text again; neighbours differ.
    """
    parts: list[tuple[str, bool]] = []

    def add(piece: str, is_variable: bool) -> None:
        if piece and parts and parts[-1][1] == is_variable:
            parts[-1] = (parts[-1][0] + piece, is_variable)
        elif piece:
            parts.append((piece, is_variable))

    position = 0
    for match in _SPLIT.finditer(text):
        add(text[position : match.start()], False)
        add(match[0], match.lastgroup != "constant")
        position = match.end()
    add(text[position:], False)
    return parts


def _normal_function(name: str) -> str:
    return re.sub(r"0x[0-9a-fA-F]+|\d{4,}", "#", name)


def _first_line(code: str) -> str:
    return " ".join(code.partition("\n")[0].split())
