"""Printing in a terminal that does not know every character."""

from __future__ import annotations

import io
import sys


def escape_unknown() -> None:
    """Let what the output's encoding lacks be printed as an escape: a job's error must not end the command."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
