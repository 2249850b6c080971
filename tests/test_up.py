"""``manage.py up``: it starts everything, says what is wrong in a sentence, and leaves nothing behind."""

from __future__ import annotations

import argparse
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from celery import Celery

from console import stack
from console.management.commands.up import port_number
from console.supervisor.stopping import StopPlan
from tests.servers import RedisServer, free_port, wait_until
from tests.up_process import ROOT, Up, alive, client, embedded_redis, log_in, password_of

pytestmark = pytest.mark.worker

SHOP = """
import time
from celery import Celery
from jobs.agent import attach

app = Celery("elsewhere")
app.conf.update(task_acks_late=True, worker_prefetch_multiplier=1, task_ignore_result=True)
attach(app)

@app.task(name="elsewhere.nap")
def nap(seconds, path):
    open(path + ".began", "a").write("x")
    time.sleep(seconds)
    open(path, "a").write("x")
"""


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    """An ``up`` that is not started yet."""
    up = Up(tmp_path / "data")
    yield up
    up.end()


def test_taken_port_is_refused_before_anything_starts(up: Up) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = up.manage("up", "--port", str(port), check=False)

    assert done.returncode == 1
    assert done.stderr == (
        f"CommandError: Port {port} on 127.0.0.1 is taken by another process. Stop that one, or choose "
        f"another port: manage.py up --port {port + 1}.\n"
    )
    assert done.stdout == ""


def test_something_that_is_no_port_is_refused(up: Up) -> None:
    done = up.manage("up", "--port=70000", check=False)

    assert done.returncode != 0
    assert "'70000' is not a port. Give a number from 0 to 65535." in done.stderr


@pytest.mark.parametrize("port", ["70000", "-1", "http", ""])
def test_a_port_is_a_number_from_0_to_65535(port: str) -> None:
    assert (port_number("0"), port_number("65535")) == (0, 65_535)

    with pytest.raises(argparse.ArgumentTypeError, match="is not a port"):
        port_number(port)


def test_broker_that_does_not_answer_is_refused(tmp_path: Path) -> None:
    port = free_port()
    up = Up(tmp_path / "data", BROKER_URL=f"redis://:hunter2@127.0.0.1:{port}/0")

    done = up.manage("up", "--port", "0", check=False)

    assert done.returncode == 1
    assert f"The broker redis://:**@127.0.0.1:{port}/0 does not answer:" in done.stderr
    assert "Start it, or unset BROKER_URL to use the embedded Redis." in done.stderr
    assert "hunter2" not in done.stdout + done.stderr


def test_broker_of_ones_own_is_used_and_its_password_is_in_no_output_and_no_list_of_processes(
    tmp_path: Path,
) -> None:
    server = RedisServer().start()
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "shop", "on", ">hunter2", "~*", "&*", "+@all")
    up = Up(tmp_path / "data", BROKER_URL=f"redis://shop:hunter2@127.0.0.1:{server.port}/0")
    try:
        up.start()
        commands = [" ".join(process.cmdline()) for process in up.family()]

        assert up.broker_url == f"redis://shop:**@127.0.0.1:{server.port}/0"
        assert not re.search(r"^redis ", up.text(), re.MULTILINE)
        assert up.stop()[0] == 0
        assert server.is_up()
        assert "hunter2" not in up.text() + " ".join(commands)
    finally:
        up.end()
        server.remove()


def test_data_survive_and_the_login_is_made_once_also_when_redis_has_to_move(up: Up) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (up.directory / "broker-url").write_text(f"redis://127.0.0.1:{port}/0\n")
        up.start("--first-login", "--no-worker", "--no-beat")
    password = password_of(up)
    with redis.Redis.from_url(up.broker_url) as server:
        server.lpush("kept", "x")
    first_broker = up.broker_url
    assert f"Port {port} is taken by another process, so the embedded Redis listens on" in up.text()
    assert first_broker != f"redis://127.0.0.1:{port}/0"
    assert up.stop(signal.SIGTERM)[0] == 0

    up.start("--first-login", "--no-worker", "--no-beat")

    assert "Sign in as" not in up.text()
    assert up.broker_url == first_broker
    with redis.Redis.from_url(up.broker_url) as server:
        assert server.lrange("kept", 0, -1) == [b"x"]
    assert "Dead Letter Office" in log_in(client(), up, password)


def test_ctrl_c_lets_a_job_finish_and_gives_a_long_one_back(up: Up, tmp_path: Path) -> None:
    up.environment["PYTHONPATH"] = str(tmp_path)
    (tmp_path / "elsewhere.py").write_text(SHOP)
    up.start("--app", "elsewhere", "--no-beat", "--concurrency", "2")
    short, long = tmp_path / "short", tmp_path / "long"
    with Celery("publisher", broker=up.broker_url) as publisher:
        publisher.send_task("elsewhere.nap", args=[1, str(short)])
        publisher.send_task("elsewhere.nap", args=[60, str(long)])
    for path in (short, long):
        wait_until(path.with_suffix(".began").exists, seconds=30, what=f"{path.name} to begin")
    family = up.family()

    status, seconds = up.stop()

    assert status == 0, up.text()
    assert seconds < 10
    assert alive(family) == []
    assert short.read_text() == "x"
    assert not long.exists()
    with embedded_redis(up.directory) as server:
        assert (server.llen("celery"), server.hlen("unacked")) == (1, 0)


@pytest.mark.parametrize(
    ("words", "name", "options"),
    [("celery -A console worker", "worker", ["--no-beat"]), ("redis-server", "redis", [])],
    ids=["worker", "redis"],
)
def test_dead_child_is_named_and_the_rest_stops(up: Up, words: str, name: str, options: list[str]) -> None:
    up.start(*options)
    family = up.family()

    up.child(words).kill()

    assert up.process.wait(timeout=30) == 1
    assert f"{name} was killed by signal 9 (SIGKILL); stopping the rest." in up.text()
    wait_until(lambda: not alive(family), seconds=5, what="every process to go")


def test_killed_up_leaves_nothing_behind_and_the_next_one_waits_for_that(up: Up) -> None:
    up.start("--no-beat")
    family = up.family()

    up.process.kill()
    up.process.wait()
    up.start("--no-worker", "--no-beat")

    assert alive(family) == []
    assert up.stop()[0] == 0


def test_a_stop_leaves_a_worker_the_time_to_give_its_jobs_back_and_ends_within_ten_seconds() -> None:
    rules = {
        "beat": stack.BEAT_STOP, "sender": stack.SENDER_STOP, "worker": stack.WORKER_STOP,
        "runops": stack.SERVICE_STOP, "redis": stack.REDIS_STOP,
    }  # fmt: skip
    plan = StopPlan(rules.items())
    alive = list(rules)
    sent: dict[tuple[str, signal.Signals], float] = {}
    for tick in range(100):
        for name, number in plan.step(tick / 10, alive):
            sent.setdefault((name, number), tick / 10)
            if number == signal.SIGKILL:
                alive.remove(name)

    # Measured with twelve processes to a core: 2.9 s.
    assert sent["worker", signal.SIGKILL] - sent["worker", signal.SIGQUIT] > 3.8
    assert sent["worker", signal.SIGQUIT] - sent["worker", signal.SIGTERM] > 0.8
    # Half a second is for the end of up itself; each gets its SIGTERM before its SIGKILL.
    assert max(sent.values()) <= 9.6
    assert all(sent[name, signal.SIGTERM] < sent[name, signal.SIGKILL] - 0.5 for name in rules)


def test_database_that_does_not_answer_stops_the_start_and_prefixes_are_coloured_on_a_terminal(
    up: Up,
) -> None:
    """A pseudo-terminal; NO_COLOR is honoured by the same condition."""
    controller, terminal = pty.openpty()
    environment = {key: value for key, value in up.env.items() if key != "NO_COLOR"}
    environment["DATABASE_URL"] = f"postgres://jobs:hunter2@127.0.0.1:{free_port()}/jobs"
    process = subprocess.Popen(
        [sys.executable, "manage.py", "up", "--port", "0"],
        cwd=ROOT,
        env=environment,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    shown = b""
    while True:
        try:
            chunk = os.read(controller, 65_536)
        except OSError:
            break
        if not chunk:
            break
        shown += chunk
    os.close(controller)

    assert process.wait(timeout=30) == 1
    assert re.search(rb"\x1b\[\d+mmigrate  \| \x1b\[0m", shown)
    assert b"\x1b[31mmigrate ended by itself with exit status 1; stopping the rest." in shown
    assert b"Connection refused" in shown
    assert b"hunter2" not in shown


def test_children_get_the_broker_also_with_settings_of_ones_own_and_nothing_that_would_win(
    up: Up, tmp_path: Path
) -> None:
    """No DATA_DIR or BROKER_IS_EMBEDDED there: those of this project's settings are not required."""
    (tmp_path / "theirs.py").write_text(
        textwrap.dedent(
            """
            from console.settings import *
            del BROKER_IS_EMBEDDED
            import os
            BROKER_URL = os.environ.get("BROKER_URL", "")
            ENVIRONMENT_NAME = "theirs"
            """
        )
    )
    up.environment |= {
        "DJANGO_SETTINGS_MODULE": "theirs",
        "PYTHONPATH": str(tmp_path),
        "CELERY_BROKER_URL": "redis://127.0.0.1:1/0",
    }

    up.start("--no-beat")

    environment = up.child("celery -A console worker").environ()
    assert environment["DJANGO_SETTINGS_MODULE"] == "theirs"
    assert environment["BROKER_URL"] == up.broker_url
    assert environment["CONSOLE_URL"] == up.url
    assert "CELERY_BROKER_URL" not in environment
    assert re.search(r"^redis ", up.text(), re.MULTILINE)
    wait_until(lambda: "ready." in up.text(), seconds=60, what="the worker to be ready")
