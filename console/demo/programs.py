"""The demo's two programs: the shop's worker, and what sends it jobs."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from console.demo.state import DIRECTORY_VARIABLE, Demo
from console.supervisor import Program
from console.supervisor.stopping import StopRule


def programs(
    demo: Demo, environment: Mapping[str, str], *, sender_stop: StopRule, worker_stop: StopRule
) -> list[Program]:
    """Return the programs; ``environment`` is that of every program of ``up``."""
    ports = demo.ports()
    shop = {
        **environment,
        DIRECTORY_VARIABLE: str(demo.directory),
        "SHOP_MAIL_PORT": str(ports.mail),
        "SHOP_PAYMENTS_PORT": str(ports.payments),
    }
    python = (sys.executable, "-m")
    worker = (
        *python,
        *("celery", "-A", "console.demo.shop", "worker", "--loglevel=ERROR"),
        *("--hostname=shop@%h", "--concurrency=2"),
    )
    return [
        Program(
            name="shop",
            command=worker,
            stop=worker_stop,
            # With Django's settings named, Celery would load Django, which this application does without.
            environment={key: value for key, value in shop.items() if key != "DJANGO_SETTINGS_MODULE"},
            # The bugs are fixed by a release: the worker starts again with the mended code.
            restart_on=demo.flag,
            # Its failures are on the page; their tracebacks would push the login off the screen.
            is_quiet=True,
        ),
        Program(
            name="traffic",
            command=(*python, "django", "demo", "--traffic"),
            stop=sender_stop,
            environment=shop,
        ),
    ]
