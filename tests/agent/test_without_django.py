"""The agent in an application that has no Django."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.agent.fleet import ROOT, Worker

pytestmark = pytest.mark.worker


def test_a_flask_like_application_is_captured_where_django_cannot_be_imported(
    own_worker: Callable[..., Worker],
) -> None:
    worker = own_worker("prefork", program=("tests.agent.plain_shop",)).start()
    sent = worker.send("plain.fail", 7)

    record = worker.record_of(sent)

    assert (record.kind, record.reason) == ("death", "failed")
    assert record.error is not None
    assert record.error.message == "order 7, Django modules loaded: []"
    assert record.parameters == ["order_id"]


def test_attaching_in_a_web_process_loads_no_worker_and_opens_nothing() -> None:
    program = (
        "import sys\n"
        "from celery import Celery\n"
        "from jobs.agent import attach\n"
        "app = Celery('web', broker='redis://127.0.0.1:1/0')\n"
        "attach(app); attach(app)\n"
        "assert not app.configured\n"
        "heavy = [n for n in sys.modules if n.startswith(('celery.worker.', 'jobs.agent.', 'redis'))]\n"
        "light = {'celery.worker.state', 'celery.worker.worker'}  # Celery loads them itself\n"
        "light |= {f'jobs.agent.{name}' for name in ('install', 'publications', 'settings', 'wire')}\n"
        "assert set(heavy) <= light, heavy\n"
    )

    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stderr
