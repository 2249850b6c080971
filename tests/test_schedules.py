"""Schedules are edited in Django's admin from the first day, under the console's content policy."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.journeys.conftest import browser_type_launch_args  # noqa: F401 (Debian's Chromium)
from tests.servers import wait_until
from tests.test_up import password_of
from tests.up_process import Up

pytestmark = [pytest.mark.worker, pytest.mark.browser]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    up = Up(tmp_path_factory.mktemp("schedules") / "data")
    try:
        yield up.start("--first-login")
    finally:
        up.end()


@pytest.fixture(scope="module")
def admin(up: Up, browser: Browser) -> Iterator[Page]:
    """A page of a browser in which the first user is logged in."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{up.url}/login/")
    page.fill("[name=username]", "operator")
    page.fill("[name=password]", password_of(up))
    page.press("[name=password]", "Enter")
    page.wait_for_url(f"{up.url}/")
    yield page
    context.close()


def test_a_schedule_made_in_the_admin_is_sent(up: Up, admin: Page) -> None:
    refused: list[str] = []
    admin.on("console", lambda message: refused.append(message.text) if message.type == "error" else None)
    beat = f"{up.url}/admin/django_celery_beat"
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
    wait_until(lambda: up.letters("task:reports.of_another_release"), seconds=40, what="beat to send it")
    letter = up.letters("task:reports.of_another_release")[0]
    assert (letter["reason"], letter["queue"]) == ("unregistered", "low")
    assert refused == []


def test_run_selected_tasks_sends_through_the_broker(up: Up, admin: Page) -> None:
    beat = f"{up.url}/admin/django_celery_beat"
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
    wait_until(lambda: "celery.accumulate" in up.text(), seconds=20, what="the worker to run it")


def test_no_page_of_the_admin_breaks_the_policy(up: Up, admin: Page) -> None:
    refused: list[str] = []
    admin.on("console", lambda message: refused.append(message.text) if message.type == "error" else None)

    for path in (
        "",
        "django_celery_beat/",
        "django_celery_beat/periodictask/",
        "auth/user/1/change/",
        "auth/group/add/",
    ):
        answer = admin.goto(f"{up.url}/admin/{path}")
        assert answer is not None
        assert answer.status == 200
        assert "default-src 'self'" in answer.headers["content-security-policy"]

    assert refused == []
