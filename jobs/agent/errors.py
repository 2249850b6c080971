"""Errors as text: nothing here loads, compares or keeps an exception object."""

from __future__ import annotations

import re
from typing import Any

from billiard import einfo
from celery.utils.serialization import UnpickleableExceptionWrapper

from .wire import WireError

MESSAGE_LIMIT_CHARS = 4_000
# A traceback keeps its first 8 and last 56 KiB: where it began, and what finally went wrong.
TRACEBACK_HEAD_BYTES = 8 * 1024
TRACEBACK_TAIL_BYTES = 56 * 1024

# What Python writes between the errors of a chain.
_CHAIN = re.compile(
    r"\n\n(?:During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception):\n\n"
)
_FRAME = re.compile(r'^  File "(?P<path>[^"\n]*)", line \d+, in (?P<function>.+)$', re.MULTILINE)
_ERROR = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$", re.DOTALL)
# Libraries between the application and the broker or the result backend. The tracer's own files
# are not among them: an application's error starts there.
_PLUMBING = re.compile(r"[/\\](?:kombu|redis|amqp|vine|billiard|celery[/\\]backends)[/\\]")


def unwrap(exc: Any) -> Any:
    """Return the exception that billiard wrapped to carry its traceback."""
    wrapper: Any = getattr(einfo, "ExceptionWithTraceback", ())
    return exc.exc if isinstance(exc, wrapper) else exc


def describe(exc: Any, traceback: object = "") -> WireError:
    """Write an exception as text: "module.Name", its message and its traceback, cut to their limits."""
    if isinstance(exc, UnpickleableExceptionWrapper):
        # The exception could not travel between the processes; this holds its names and its text.
        name, message = f"{exc.exc_module}.{exc.exc_cls_name}", _message(exc)
    else:
        name, message = type_name(type(exc)), _message(exc)
    return WireError(type=name, message=message[:MESSAGE_LIMIT_CHARS], traceback=cut_traceback(traceback))


def describe_raised(exc: Any, traceback: object) -> WireError:
    """Write the exception that a job raised, under the name it had in the process that raised it.

    An exception that cannot be pickled arrives as the nearest of its base classes that can, often
    without its message: urllib's HTTPError as ``OSError()``. The traceback was written before.
    """
    error = describe(exc, traceback)
    written = _last_error(traceback)
    if written is None or not _is_a_base(type(exc)) or written[0] == error.type:
        return error
    return WireError(
        type=written[0],
        message=(written[1] or error.message)[:MESSAGE_LIMIT_CHARS],
        traceback=error.traceback,
    )


def _is_a_base(kind: type) -> bool:
    """Return whether others derive from the class, so that it may stand for one that could not travel.

    Those are Python's own, and whichever says of itself whether it is permanent.
    """
    return kind.__module__ == "builtins" or "permanent" in vars(kind)


def _last_error(traceback: object) -> tuple[str, str] | None:
    """Return type and message of the error a traceback ends with."""
    text = traceback if isinstance(traceback, str) else ""
    block = _CHAIN.split(text)[-1]
    if not _FRAME.search(block):
        return None
    error = _ERROR.match(_after_last_frame(block))
    return None if error is None else (_full_name(error["type"]), error["message"] or "")


def _full_name(written: str) -> str:
    """Return "module.Name" of a type as a traceback writes it; built-in ones have no module there."""
    return written if "." in written else f"builtins.{written}"


def type_name(kind: type) -> str:
    """Return "module.Name" of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def _message(exc: BaseException) -> str:
    for write in (str, repr):
        try:
            return write(exc)
        except Exception:  # noqa: BLE001, S112 (an exception's own __str__ may raise anything)
            continue
    return type(exc).__name__


def cut_traceback(traceback: object) -> str:
    """Return at most 64 KiB of a traceback, its beginning and its end."""
    text = traceback if isinstance(traceback, str) else ""
    limit = TRACEBACK_HEAD_BYTES + TRACEBACK_TAIL_BYTES
    if len(text) * 4 <= limit:
        return text
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) <= limit:
        return text
    note = f"\n... {len(raw) - limit} bytes left out ...\n"
    head = raw[:TRACEBACK_HEAD_BYTES].decode("utf-8", "ignore")
    return head + note + raw[-TRACEBACK_TAIL_BYTES + len(note) :].decode("utf-8", "ignore")


def frames(traceback: object) -> list[tuple[str, str]]:
    """Return (path, function) of every frame of a traceback text."""
    text = traceback if isinstance(traceback, str) else ""
    return [(match["path"], match["function"]) for match in _FRAME.finditer(text)]


def ran_to_its_end(traceback: object) -> bool:
    """Return whether the error came after the task's function had returned.

    Celery's tracer then sends the callbacks and stores the result; both are functions of its own.
    """
    if not isinstance(traceback, str) or not ("mark_as_done" in traceback or "_dispatch_" in traceback):
        return False  # almost always, and in a hundredth of the time
    return any(
        (function == "mark_as_done" and _is_in(path, "celery", "backends"))
        or (function == "_dispatch_callbacks_and_chain" and _is_in(path, "celery", "app"))
        for path, function in frames(traceback)
    )


def is_from_retry(traceback: object) -> bool:
    """Return whether ``Task.retry`` raised this error, which it does when it cannot publish."""
    found = frames(traceback)
    return bool(found) and found[-1][1] == "retry" and _is_in(found[-1][0], "celery", "app")


def first_error(traceback: object) -> WireError | None:
    """Return the error a chain began with, when the application raised it.

    None when there is no chain, or when it began between Celery and its broker or backend.
    """
    text = traceback if isinstance(traceback, str) else ""
    blocks = _CHAIN.split(text)
    if len(blocks) < 2:
        return None
    found = _FRAME.search(blocks[0])
    if found is None or all(_PLUMBING.search(path) for path, _ in frames(blocks[0])):
        return None
    if _PLUMBING.search(found["path"]):
        return None
    error = _ERROR.match(_after_last_frame(blocks[0]))
    if error is None:
        return None
    return WireError(
        type=_full_name(error["type"]),
        message=(error["message"] or "")[:MESSAGE_LIMIT_CHARS],
        traceback=cut_traceback(blocks[0] + "\n"),
    )


def _after_last_frame(block: str) -> str:
    """Return what follows the last frame and its indented source line."""
    last = list(_FRAME.finditer(block))[-1]
    lines = block[last.end() :].split("\n")
    start = next((number for number, line in enumerate(lines) if line and not line.startswith(" ")), None)
    return "" if start is None else "\n".join(lines[start:]).rstrip("\n")


def _is_in(path: str, *directories: str) -> bool:
    return "/".join(directories) + "/" in path.replace("\\", "/")


_SIGNAL = re.compile(r"signal (\d+)(?: \((\w+)\))?")
_EXIT_CODE = re.compile(r"exitcode (-?\d+)")


def exit_details(exc: BaseException) -> dict[str, Any]:
    """Return the signal or exit code that ended a process, as billiard's message or SystemExit says."""
    if isinstance(exc, SystemExit):
        code = 0 if exc.code is None else exc.code
        return {"exit_code": code if isinstance(code, int) else 1}
    text = _message(exc)
    if found := _SIGNAL.search(text):
        return {"signal": found[2] or int(found[1])}
    if found := _EXIT_CODE.search(text):
        return {"exit_code": int(found[1])}
    return {}
