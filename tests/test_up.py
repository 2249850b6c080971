"""``manage.py up``: it starts everything, says what is wrong in a sentence, and leaves nothing behind."""

from __future__ import annotations

import http.cookiejar
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import textwrap
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from celery import Celery

from tests.servers import RedisServer, free_port, running, wait_until
from tests.up_process import ROOT, START_SECONDS, Up, alive

pytestmark = pytest.mark.worker

ATTACHED_APP = """
import os, time
from celery import Celery
from jobs.agent import attach

app = Celery("elsewhere")
app.conf.update(task_acks_late=True, worker_prefetch_multiplier=1, task_ignore_result=True)
attach(app)

@app.task(name="elsewhere.fail")
def fail(number):
    raise LookupError(f"no order {number}")

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


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One that runs, for the tests that stop nothing."""
    up = Up(tmp_path_factory.mktemp("shared") / "data", is_first=True)
    try:
        yield up.start("--first-login")
    finally:
        up.end()


@pytest.fixture
def application(tmp_path: Path) -> Path:
    """A directory with an application that is not this project's."""
    directory = tmp_path / "application"
    directory.mkdir()
    (directory / "elsewhere.py").write_text(ATTACHED_APP)
    return directory


def client() -> urllib.request.OpenerDirector:
    """A browser's manners: cookies and redirects."""
    return urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))


def token(page: str) -> str:
    """Return the CSRF token of a form on the page."""
    return re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)[1]  # type: ignore[index]


def log_in(browser: urllib.request.OpenerDirector, up: Up, password: str) -> str:
    """Log in as the first user and return the page that follows."""
    page = browser.open(f"{up.url}/login/", timeout=20).read().decode()
    form = {"username": "operator", "password": password, "csrfmiddlewaretoken": token(page)}
    request = urllib.request.Request(
        f"{up.url}/login/", urllib.parse.urlencode(form).encode(), headers={"Origin": up.url}
    )
    return browser.open(request, timeout=20).read().decode()  # type: ignore[no-any-return]


def password_of(up: Up) -> str:
    return re.search(r"Sign in as 'operator' with the password  (\S+)", up.text())[1]  # type: ignore[index]


def test_page_answers_and_wants_a_login(shared: Up) -> None:
    with client().open(f"{shared.url}/", timeout=20) as page:
        assert page.status == 200
        assert urllib.parse.urlsplit(page.url).path == "/login/"


def test_health_answers_without_a_login(shared: Up) -> None:
    with client().open(f"{shared.url}/healthz", timeout=20) as page:
        assert (page.status, page.url) == (200, f"{shared.url}/healthz")


def test_first_login_works_and_edits_schedules(shared: Up) -> None:
    browser = client()

    assert "Dead Letter Office" in log_in(browser, shared, password_of(shared))
    with browser.open(f"{shared.url}/admin/django_celery_beat/periodictask/add/", timeout=20) as page:
        assert 'name="crontab"' in page.read().decode()


def test_first_login_is_no_superuser(shared: Up) -> None:
    code = "from django.contrib.auth.models import User; u = User.objects.get(); print(u.is_superuser, u.groups.get())"

    assert shared.manage("shell", "-v", "0", "-c", code).stdout.strip() == "False Admin"


def test_every_part_shows_its_output_without_colour(shared: Up) -> None:
    text = shared.text()

    assert "\033" not in text
    for name in ("redis", "migrate", "worker", "beat", "runops"):
        assert re.search(rf"^{name} +\| \S", text, re.MULTILINE), name


def test_worker_consumes_every_tier_and_the_default_of_others(shared: Up) -> None:
    shown = re.findall(r"\.> (\w+) +exchange=(\w+)\(direct\) key=(\w+)", shared.text())

    assert sorted(shown) == [(name,) * 3 for name in ("celery", "critical", "default", "long", "low")]


def test_second_up_on_the_same_data_is_refused(shared: Up) -> None:
    done = shared.manage("up", "--port", "0", check=False)

    assert done.returncode == 1
    assert done.stderr == (
        f"CommandError: `manage.py up` is already running on {shared.directory} (process {shared.process.pid}). "
        "Stop that one, or give this one data of its own with JOBS_DATA_DIR.\n"
    )


def test_taken_port_is_refused_before_anything_starts(shared: Up, up: Up) -> None:
    port = shared.url.rpartition(":")[2]

    done = up.manage("up", "--port", port, check=False)

    assert done.returncode == 1
    assert done.stderr == (
        f"CommandError: Port {port} on 127.0.0.1 is taken by another process. Stop that one, or choose "
        f"another port: manage.py up --port {int(port) + 1}.\n"
    )
    assert done.stdout == ""


@pytest.mark.parametrize("port", ["70000", "-1", "http"])
def test_something_that_is_no_port_is_refused(up: Up, port: str) -> None:
    done = up.manage("up", f"--port={port}", check=False)

    assert done.returncode != 0
    assert f"{port!r} is not a port. Give a number from 0 to 65535." in done.stderr


def test_broker_that_does_not_answer_is_refused(tmp_path: Path) -> None:
    port = free_port()
    up = Up(tmp_path / "data", BROKER_URL=f"redis://:hunter2@127.0.0.1:{port}/0")

    done = up.manage("up", "--port", "0", check=False)

    assert done.returncode == 1
    assert f"The broker redis://:**@127.0.0.1:{port}/0 does not answer:" in done.stderr
    assert "Start it, or unset BROKER_URL to use the embedded Redis." in done.stderr
    assert "hunter2" not in done.stdout + done.stderr


def test_database_that_does_not_answer_stops_the_start(tmp_path: Path) -> None:
    address = f"postgres://jobs:hunter2@127.0.0.1:{free_port()}/jobs"
    up = Up(tmp_path / "data", DATABASE_URL=address)

    done = up.manage("up", "--port", "0", check=False)

    assert done.returncode == 1
    assert "migrate ended by itself with exit status 1; stopping the rest." in done.stdout
    assert "Connection refused" in done.stdout
    assert "hunter2" not in done.stdout + done.stderr


def test_broker_of_ones_own_is_used(tmp_path: Path) -> None:
    server = RedisServer().start()
    up = Up(tmp_path / "data", BROKER_URL=server.url)
    try:
        up.start("--no-beat", "--no-worker")

        assert up.broker_url == server.url
        assert not re.search(r"^(redis|worker|beat) ", up.text(), re.MULTILINE)
        assert up.stop()[0] == 0
        assert server.is_up()
    finally:
        up.end()
        server.remove()


def test_the_password_of_the_broker_is_in_no_output_and_no_list_of_processes(tmp_path: Path) -> None:
    server = RedisServer().start()
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "shop", "on", ">hunter2", "~*", "&*", "+@all")
    up = Up(tmp_path / "data", BROKER_URL=f"redis://shop:hunter2@127.0.0.1:{server.port}/0")
    try:
        up.start()
        commands = [" ".join(process.cmdline()) for process in up.family()]

        assert up.broker_url == f"redis://shop:**@127.0.0.1:{server.port}/0"
        assert up.stop()[0] == 0
        assert "hunter2" not in up.text() + " ".join(commands)
    finally:
        up.end()
        server.remove()


def test_what_is_written_under_data_is_this_users_only(shared: Up) -> None:
    ours = {shared.directory / "up.log", shared.directory / "broker-url"}
    opened = [path for path in shared.directory.rglob("*") if path.stat().st_mode & 0o077]

    assert (shared.directory / "console.sqlite3").exists()
    # The test made these two before it started.
    assert set(opened) <= ours


def test_embedded_redis_keeps_jobs_and_refuses_what_is_dangerous(shared: Up) -> None:
    with redis.Redis.from_url(shared.broker_url, socket_timeout=10) as server:
        kept = {
            name: server.config_get(name)[name]
            for name in ("appendonly", "appendfsync", "maxmemory-policy", "bind")
        }
        refused = []
        for command in (
            "CONFIG SET dir /tmp",
            "MODULE LIST",
            "DEBUG SLEEP 0",
            "REPLICAOF NO ONE",
            "SHUTDOWN",
            "ACL LIST",
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                server.execute_command(*command.split())
            refused.append(command)

    assert kept == {
        "appendonly": "yes",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
        "bind": "127.0.0.1",
    }
    assert len(refused) == 6


def test_command_in_a_second_terminal_uses_the_embedded_redis(shared: Up) -> None:
    code = "from django.conf import settings; print(settings.BROKER_URL)"

    assert shared.manage("shell", "-v", "0", "-c", code).stdout.strip() == shared.broker_url


def test_another_application_attaches_to_the_printed_broker(
    shared: Up, application: Path, tmp_path: Path
) -> None:
    line = next(line for line in shared.text().splitlines() if "celery -A yourapp" in line)
    arguments = line.replace("yourapp", "elsewhere").split()[1:]
    log = tmp_path / "worker.log"
    environment = {"PYTHONPATH": f"{application}{os.pathsep}{ROOT}", "HOME": str(tmp_path)}

    with running(
        [sys.executable, "-m", "celery", *arguments, "--concurrency", "1", "--queues", "elsewhere"],
        env=environment,
        log=log,
        cwd=application,
    ):
        with Celery("publisher", broker=shared.broker_url) as publisher:
            publisher.send_task("elsewhere.fail", args=[48213], queue="elsewhere")
        wait_until(
            lambda: shared.letters("task:elsewhere.fail"), seconds=START_SECONDS, what="the dead letter"
        )

    (letter,) = shared.letters("task:elsewhere.fail")
    assert letter["reason"] == "failed"
    assert letter["args"] == [48213]


def test_ctrl_c_stops_everything_in_time_and_in_order(up: Up) -> None:
    up.start()
    family = up.family()

    status, seconds = up.stop(signal.SIGINT)

    assert status == 0, up.text()
    assert seconds < 10
    assert alive(family) == []
    assert up.text().rstrip().endswith("Everything stopped.")
    assert "Killed" not in up.text()


def test_data_survive_and_the_login_is_made_once(up: Up) -> None:
    up.start("--first-login", "--no-worker", "--no-beat")
    password = password_of(up)
    with redis.Redis.from_url(up.broker_url) as server:
        server.lpush("kept", "x")
    first_broker = up.broker_url
    assert up.stop(signal.SIGTERM)[0] == 0

    up.start("--first-login", "--no-worker", "--no-beat")

    assert "Sign in as" not in up.text()
    assert up.broker_url == first_broker
    with redis.Redis.from_url(up.broker_url) as server:
        assert server.lrange("kept", 0, -1) == [b"x"]
    assert "Dead Letter Office" in log_in(client(), up, password)


def test_ctrl_c_lets_a_job_finish_and_gives_a_long_one_back(
    up: Up, application: Path, tmp_path: Path
) -> None:
    up.environment["PYTHONPATH"] = str(application)
    (application / "elsewhere_celery.py").write_text("from elsewhere import app\n")
    up.start("--app", "elsewhere_celery", "--no-beat", "--concurrency", "2")
    short, long = tmp_path / "short", tmp_path / "long"
    with Celery("publisher", broker=up.broker_url) as publisher:
        publisher.send_task("elsewhere.nap", args=[2, str(short)])
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
    up.start("--no-worker", "--no-beat")
    with redis.Redis.from_url(up.broker_url) as server:
        assert (server.llen("celery"), server.hlen("unacked")) == (1, 0)


@pytest.mark.parametrize(
    ("words", "name"), [("celery -A console worker", "worker"), ("redis-server", "redis")]
)
def test_dead_child_is_named_and_the_rest_stops(up: Up, words: str, name: str) -> None:
    up.start()
    family = up.family()

    up.child(words).kill()

    assert up.process.wait(timeout=30) == 1
    assert f"{name} was killed by signal 9 (SIGKILL); stopping the rest." in up.text()
    wait_until(lambda: not alive(family), seconds=5, what="every process to go")


def test_killed_up_leaves_nothing_behind_and_the_next_one_waits_for_that(up: Up) -> None:
    up.start()
    family = up.family()

    up.process.kill()
    up.process.wait()
    up.start("--no-worker", "--no-beat")

    assert alive(family) == []
    assert up.stop()[0] == 0


def test_embedded_redis_moves_when_its_port_is_taken(up: Up) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (up.directory / "broker-url").write_text(f"redis://127.0.0.1:{port}/0\n")

        up.start("--no-worker", "--no-beat")

    assert f"Port {port} is taken by another process, so the embedded Redis listens on" in up.text()
    assert up.broker_url != f"redis://127.0.0.1:{port}/0"
    with redis.Redis.from_url(up.broker_url) as server:
        assert server.ping()


def test_prefixes_are_coloured_on_a_terminal(up: Up) -> None:
    """A pseudo-terminal; NO_COLOR is honoured by the same condition."""
    controller, terminal = pty.openpty()
    environment = {key: value for key, value in up.env.items() if key != "NO_COLOR"}
    # The start fails at once, which is enough to see a coloured line.
    environment["DATABASE_URL"] = f"postgres://jobs@127.0.0.1:{free_port()}/jobs"
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
    assert b"\x1b[31mmigrate ended by itself with exit status 1" in shown


def test_children_get_the_broker_and_no_setting_of_celery_that_would_win(up: Up) -> None:
    up.environment["CELERY_BROKER_URL"] = "redis://127.0.0.1:1/0"

    up.start("--no-beat")

    environment = up.child("celery -A console worker").environ()
    assert environment["BROKER_URL"] == up.broker_url
    assert environment["CONSOLE_URL"] == up.url
    assert "CELERY_BROKER_URL" not in environment
    wait_until(lambda: "ready." in up.text(), seconds=60, what="the worker to be ready")


def test_settings_of_a_project_of_ones_own_are_used(up: Up, tmp_path: Path) -> None:
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
    up.environment |= {"DJANGO_SETTINGS_MODULE": "theirs", "PYTHONPATH": str(tmp_path)}

    up.start("--no-worker", "--no-beat")

    assert re.search(r"^redis ", up.text(), re.MULTILINE)
