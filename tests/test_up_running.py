"""One ``manage.py up`` that runs: what it serves, how it keeps its data, and what works beside it."""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import signal
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from celery import Celery
from playwright.sync_api import Browser, Page

from tests.servers import running, wait_until
from tests.up_process import ROOT, START_SECONDS, Up, alive, client, log_in, password_of

pytestmark = pytest.mark.worker

SHOP = """
from celery import Celery
from jobs.agent import attach

app = Celery("elsewhere")
app.conf.task_ignore_result = True
attach(app)

@app.task(name="elsewhere.fail")
def fail(number):
    raise LookupError(f"no order {number}")
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One that runs, for the tests that stop nothing."""
    up = Up(tmp_path_factory.mktemp("shared") / "data", is_first=True)
    try:
        yield up.start("--first-login")
    finally:
        up.end()


def test_page_answers_and_wants_a_login(shared: Up) -> None:
    with client().open(f"{shared.url}/", timeout=20) as page:
        assert page.status == 200
        assert urllib.parse.urlsplit(page.url).path == "/login/"


def test_health_answers_without_a_login(shared: Up) -> None:
    with client().open(f"{shared.url}/healthz", timeout=20) as page:
        assert (page.status, page.url) == (200, f"{shared.url}/healthz")


def test_scripts_and_pages_are_sent_compressed_and_scripts_are_kept(shared: Up) -> None:
    with client().open(f"{shared.url}/login/", timeout=20) as page:
        style = re.findall(r'href="(/static/console/css/base\.css\?v=[0-9a-f]+)"', page.read().decode())[0]
    found = {}
    for address in ("/login/", style, "/static/plotly/plotly.min.js"):
        request = urllib.request.Request(f"{shared.url}{address}", headers={"Accept-Encoding": "gzip"})
        with client().open(request, timeout=20) as answer:
            sent = answer.read()
            assert len(sent) == int(answer.headers["Content-Length"])
            assert len(gzip.decompress(sent)) > len(sent)
            found[address] = (answer.headers["Content-Encoding"], answer.headers["Cache-Control"])

    assert found == {
        "/login/": ("gzip", "max-age=0, no-cache, no-store, must-revalidate, private"),
        style: ("gzip", "max-age=315360000, public, immutable"),
        # Nothing says which content is meant.
        "/static/plotly/plotly.min.js": ("gzip", "max-age=60, public"),
    }


def test_first_login_works_and_edits_schedules(shared: Up) -> None:
    browser = client()

    assert "Dead Letter Office" in log_in(browser, shared, password_of(shared))
    with browser.open(f"{shared.url}/admin/django_celery_beat/periodictask/add/", timeout=20) as page:
        assert 'name="crontab"' in page.read().decode()


def test_first_login_is_no_superuser(shared: Up) -> None:
    code = "from django.contrib.auth.models import User; u = User.objects.get(); print(u.is_superuser, u.groups.get())"

    assert shared.commands.run("shell", "-v", "0", "-c", code).strip() == "False Admin"


def test_every_part_shows_its_output_without_colour(shared: Up) -> None:
    # Up says where the console is as soon as it answers; the others may still be starting.
    for name in ("redis", "migrate", "worker", "beat", "runops"):
        wait_until(
            lambda name=name: re.search(rf"^{name} +\| \S", shared.text(), re.MULTILINE),
            seconds=START_SECONDS,
            what=f"{name} to say something",
        )

    assert "\033" not in shared.text()


def test_worker_consumes_every_tier_and_the_default_of_others(shared: Up) -> None:
    wait_until(lambda: " ready." in shared.text(), seconds=START_SECONDS, what="the worker to be ready")

    shown = re.findall(r"\.> (\w+) +exchange=(\w+)\(direct\) key=(\w+)", shared.text())

    assert sorted(shown) == [(name,) * 3 for name in ("celery", "critical", "default", "long", "low")]


def test_second_up_on_the_same_data_is_refused(shared: Up) -> None:
    done = shared.manage("up", "--port", "0", check=False)

    assert done.returncode == 1
    assert done.stderr == (
        f"CommandError: `manage.py up` is already running on {shared.directory} (process {shared.process.pid}). "
        "Stop that one, or give this one data of its own with JOBS_DATA_DIR.\n"
    )


def test_what_is_written_under_data_is_this_users_only(shared: Up) -> None:
    ours = {shared.directory / "up.log", shared.directory / "broker-url"}
    opened = []
    for parent, directories, files in os.walk(shared.directory):
        for path in (Path(parent, name) for name in (*directories, *files)):
            # What runs there removes files, also between a look at its name and one at its rights.
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mode & 0o077:
                    opened.append(path)

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


def test_another_application_attaches_to_the_printed_broker(shared: Up, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text(SHOP)
    line = next(line for line in shared.text().splitlines() if "celery -A yourapp" in line)
    arguments = line.replace("yourapp", "elsewhere").split()[1:]
    log = tmp_path / "worker.log"
    environment = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "HOME": str(tmp_path)}

    with running(
        [sys.executable, "-m", "celery", *arguments, "--concurrency", "1", "--queues", "elsewhere"],
        env=environment,
        log=log,
        cwd=tmp_path,
    ):
        with Celery("publisher", broker=shared.broker_url) as publisher:
            publisher.send_task("elsewhere.fail", args=[48213], queue="elsewhere")
        wait_until(
            lambda: shared.letters("task:elsewhere.fail"), seconds=START_SECONDS, what="the dead letter"
        )

    (letter,) = shared.letters("task:elsewhere.fail")
    assert letter["reason"] == "failed"
    assert letter["args"] == [48213]


def test_the_demo_runs_beside_one_that_has_none(shared: Up, tmp_path: Path) -> None:
    log = tmp_path / "demo.log"
    with running([sys.executable, "manage.py", "demo"], env=shared.env, log=log, cwd=ROOT) as demo:
        wait_until(
            lambda: shared.letters("task:shop.tasks.send_sms reason:unregistered"),
            seconds=90,
            what="a letter of the shop",
        )
        demo.terminate()
        status = demo.wait(timeout=20)

    assert status == 0, log.read_text()
    assert shared.commands.run("demo", "--fix").endswith(
        "The demo is not running now. Start it: manage.py demo, or manage.py up --demo.\n"
    )


@pytest.fixture(scope="module")
def admin(shared: Up, browser: Browser) -> Iterator[Page]:
    """A page of a browser in which the first user is logged in."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{shared.url}/login/")
    page.fill("[name=username]", "operator")
    page.fill("[name=password]", password_of(shared))
    page.press("[name=password]", "Enter")
    page.wait_for_url(f"{shared.url}/")
    yield page
    context.close()


@pytest.mark.browser
def test_a_schedule_made_in_the_admin_is_sent(shared: Up, admin: Page) -> None:
    refused: list[str] = []
    admin.on("console", lambda message: refused.append(message.text) if message.type == "error" else None)
    beat = f"{shared.url}/admin/django_celery_beat"
    admin.goto(f"{beat}/crontabschedule/add/")
    admin.fill("[name=minute]", "30")
    admin.fill("[name=hour]", "4")
    admin.click("[name=_save]")
    admin.goto(f"{beat}/intervalschedule/add/")
    admin.fill("[name=every]", "1")
    admin.select_option("[name=period]", "seconds")
    admin.click("[name=_save]")

    admin.goto(f"{beat}/periodictask/add/")
    admin.select_option("[name=crontab]", index=len(admin.query_selector_all("[name=crontab] option")) - 1)
    words = admin.inner_text(".field-crontab [role=status]")
    admin.select_option("[name=crontab]", "")
    admin.fill("[name=name]", "every second")
    admin.fill("[name=task]", "reports.of_another_release")
    admin.select_option("[name=interval]", index=1)
    admin.click("details:has([name=queue]) > summary")
    admin.fill("[name=queue]", "low")
    admin.click("[name=_save]")

    assert "04:30" in words
    assert "was added successfully" in admin.inner_text(".messagelist")
    wait_until(lambda: shared.letters("task:reports.of_another_release"), seconds=40, what="beat to send it")
    letter = shared.letters("task:reports.of_another_release")[0]
    assert (letter["reason"], letter["queue"]) == ("unregistered", "low")
    assert refused == []


@pytest.mark.browser
def test_run_selected_tasks_sends_through_the_broker(shared: Up, admin: Page) -> None:
    beat = f"{shared.url}/admin/django_celery_beat"
    schedule = "from django_celery_beat.models import IntervalSchedule as I; I.objects.create(every=1, period='days')"
    shared.commands.run("shell", "-v", "0", "-c", schedule)
    admin.goto(f"{beat}/periodictask/add/")
    admin.fill("[name=name]", "by hand")
    # Known to every Celery application.
    admin.fill("[name=task]", "celery.accumulate")
    admin.click("details:has([name=args]) > summary")
    admin.fill("[name=args]", '["not a number", 1, {"a": 1}]')
    admin.uncheck("[name=enabled]")
    admin.select_option("[name=interval]", index=1)
    admin.click("[name=_save]")

    admin.goto(f"{beat}/periodictask/")
    admin.check("tr:has-text('by hand') [name=_selected_action]")
    admin.select_option("[name=action]", "run_tasks")
    admin.click("[name=index]")

    assert re.search(r"1 task was successfully run", admin.inner_text(".messagelist"))
    wait_until(lambda: "celery.accumulate" in shared.text(), seconds=20, what="the worker to run it")


@pytest.mark.browser
def test_no_page_of_the_admin_breaks_the_policy(shared: Up, admin: Page) -> None:
    refused: list[str] = []
    admin.on("console", lambda message: refused.append(message.text) if message.type == "error" else None)

    for path in (
        "",
        "django_celery_beat/",
        "django_celery_beat/periodictask/",
        "auth/user/1/change/",
        "auth/group/add/",
    ):
        answer = admin.goto(f"{shared.url}/admin/{path}")
        assert answer is not None
        assert answer.status == 200
        assert "default-src 'self'" in answer.headers["content-security-policy"]

    assert refused == []


def test_ctrl_c_stops_everything_in_time_and_in_order(shared: Up) -> None:
    """The last of this file: it ends what the others use."""
    family = shared.family()

    status, seconds = shared.stop(signal.SIGINT)

    assert status == 0, shared.text()
    assert seconds < 10
    assert alive(family) == []
    assert shared.text().rstrip().endswith("Everything stopped.")
    assert "Killed" not in shared.text()
