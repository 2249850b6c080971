"""Runs inside any Celery worker. Imports celery and kombu only; imports itself relatively.

One line in an application's module attaches it::

    from jobs.agent import attach

    attach(app)
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["VERSION", "attach"]

VERSION = "0.1.0"


def attach(
    app: Celery,
    *,
    spool_directory: str | os.PathLike[str] | None = None,
    max_comebacks: int | None = None,
    timeout_seconds: float | None = None,
    recording: bool | None = None,
    heartbeat_seconds: float | None = None,
    history_sample: float | None = None,
    runs_cap: int | None = None,
) -> None:
    """Capture every job of this application that ends badly, in whatever worker it runs, and report all that run.

    Call it once the application object exists, before or after its configuration and its tasks.
    It opens no connection and may be called again, in web processes too: there it only stamps
    what is published. What is not given comes from the environment, see docs/agent.md.

    Raises:
        AgentSettingError: when a setting cannot be used; says which, its value and what to do.
    """
    # Imported here so that `jobs.agent.wire` can be read without loading Celery.
    from .install import install
    from .settings import read_settings

    install(
        app,
        read_settings(
            spool_directory=spool_directory,
            max_comebacks=max_comebacks,
            timeout_seconds=timeout_seconds,
            recording=recording,
            heartbeat_seconds=heartbeat_seconds,
            history_sample=history_sample,
            runs_cap=runs_cap,
        ),
    )
