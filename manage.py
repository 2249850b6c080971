#!/usr/bin/env python
"""Runs Django's commands for the console."""

import atexit
import gc
import os
import sys


def main() -> None:
    """Hand the command line to Django."""
    # The database, exports and logs hold whole jobs: what is written here is this user's only.
    os.umask(0o077)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
    # Python would look through all that is loaded once more before it ends: a fifth of a short command's time.
    atexit.register(gc.freeze)
    try:
        from django.core.management import execute_from_command_line
    except ImportError as error:
        raise SystemExit(
            "Django is not installed in this Python. Run `make run`, or activate .venv first."
        ) from error
    from django.core.exceptions import ImproperlyConfigured

    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        # A setting that cannot be used is the operator's to mend, so a sentence and no traceback.
        raise SystemExit(f"Cannot start: {error}") from None


if __name__ == "__main__":
    main()
