"""One stream for the output of all programs, each line with the name of its program."""

from __future__ import annotations

import errno
from typing import TextIO

# Readable on black and on white: cyan, yellow, green, magenta, blue, and their bright forms.
COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
RED = 31
# What a job prints may be hostile: an escape sequence could rewrite the operator's terminal.
SAFE = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code != 9}


class Output:
    """Writes lines with a prefix, in colour on a terminal.

    A reader or terminal that went away (``up | head``) sets ``is_broken``; nothing is written from then on.
    """

    def __init__(self, stream: TextIO, *, colour: bool, width: int = 8) -> None:
        self._stream = stream
        self._colour = colour
        self._width = width
        self._colours: dict[str, int] = {}
        self.is_broken = False

    def line(self, name: str, text: str) -> None:
        """Write one line of a program."""
        colour = self._colours.setdefault(name, COLOURS[len(self._colours) % len(COLOURS)])
        self._write(self._painted(f"{name:<{self._width}} | ", colour) + text.translate(SAFE))

    def say(self, text: str) -> None:
        """Write a sentence of the supervisor itself, or several lines."""
        self._write(text)

    def complain(self, text: str) -> None:
        """Write a sentence about something that went wrong."""
        self._write(self._painted(text, RED))

    def _painted(self, text: str, colour: int) -> str:
        return f"\033[{colour}m{text}\033[0m" if self._colour else text

    def _write(self, text: str) -> None:
        if self.is_broken:
            return
        try:
            self._stream.write(text + "\n")
            self._stream.flush()
        except OSError as error:
            # A full disk loses this line of the log and stops nobody's work.
            self.is_broken = error.errno in {errno.EPIPE, errno.EIO}
