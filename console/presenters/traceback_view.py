"""A traceback as a page shows it: own frames open, runs of library frames folded, the error last."""

from __future__ import annotations

from dataclasses import dataclass

from console.presenters.plain import Capped, capped_in_the_middle, count_of, visible
from jobs.core import tracebacks

# A page of more frames helps nobody; a recursion has 1,000 of them, all alike.
FRAME_LIMIT = 60
RAW_LIMIT = 64_000
CODE_LIMIT = 400
PATH_LIMIT = 300
# Reading the frames of a text costs time in proportion; what matters stands at both ends.
PARSE_LIMIT = 200_000


@dataclass(frozen=True, slots=True)
class FrameView:
    """One call of the stack, its texts safe to show."""

    path: str
    line: int
    function: str
    code: str


@dataclass(frozen=True, slots=True)
class Section:
    """One own frame, or a run of frames that is folded away under its words."""

    frames: tuple[FrameView, ...]
    is_own: bool
    words: str


@dataclass(frozen=True, slots=True)
class TracebackView:
    """What the traceback panel shows. Without sections only the raw text is shown."""

    sections: tuple[Section, ...]
    error_type: str
    error_text: str
    raw: Capped
    left_out_frames: int

    @property
    def has_own_frames(self) -> bool:
        """Whether any frame is the application's."""
        return any(section.is_own for section in self.sections)


def present(text: str) -> TracebackView | None:
    """Read a traceback, or return None when there is none."""
    if not text.strip():
        return None
    parsed = tracebacks.parse(_for_parsing(text))
    frames = parsed.frames
    left_out = max(0, len(frames) - FRAME_LIMIT)
    if left_out:
        # The outermost frames are the worker's, the innermost say where it broke.
        frames = (*frames[: FRAME_LIMIT // 3], *frames[-(FRAME_LIMIT - FRAME_LIMIT // 3) :])
    error_type, _, error_text = parsed.error_line.partition(":")
    return TracebackView(
        sections=tuple(_sections(frames)),
        error_type=visible(error_type[:PATH_LIMIT]),
        error_text=visible(error_text.strip()[:2_000]),
        raw=capped_in_the_middle(text, limit=RAW_LIMIT),
        left_out_frames=left_out,
    )


def _for_parsing(text: str) -> str:
    if len(text) <= PARSE_LIMIT:
        return text
    return text[: PARSE_LIMIT // 2] + "\n" + text[-PARSE_LIMIT // 2 :]


def _sections(frames: tuple[tracebacks.Frame, ...]) -> list[Section]:
    sections: list[Section] = []
    folded: list[tracebacks.Frame] = []
    for frame in frames:
        if not frame.is_application:
            folded.append(frame)
            continue
        if folded:
            sections.append(_folded(folded))
            folded = []
        sections.append(Section(frames=(_view(frame),), is_own=True, words="your code"))
    if folded:
        sections.append(_folded(folded))
    return sections


def _folded(frames: list[tracebacks.Frame]) -> Section:
    packages: list[str] = []
    for frame in frames:
        name = visible((frame.package or "other code")[:80])
        if name not in packages:
            packages.append(name)
    words = f"{count_of(len(frames), 'frame')} in {_and_list(packages)}"
    return Section(frames=tuple(_view(frame) for frame in frames), is_own=False, words=words)


def _view(frame: tracebacks.Frame) -> FrameView:
    return FrameView(
        path=visible(frame.path[-PATH_LIMIT:]),
        line=frame.line,
        function=visible(frame.function[:PATH_LIMIT]),
        code=visible(frame.code[:CODE_LIMIT]),
    )


def _and_list(names: list[str]) -> str:
    """Return "celery, kombu and jobs", at most three names."""
    if len(names) > 3:
        names = [*names[:2], f"{len(names) - 2} more packages"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
