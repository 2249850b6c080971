"""The demo: every kind of failure, and the switch after which a replay ends well."""

from __future__ import annotations

import http.client
import json
import smtplib
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse

from console.demo import feed
from console.demo.services import FLAP_SECONDS, MailRelay, PaymentProvider
from console.demo.state import Demo
from jobs.models import AuditEntry, Deploy
from tests.preflight.place import found
from tests.servers import RedisServer, free_port, wait_until
from tests.up_process import ROOT, Up, client, log_in, password_of, token

KINDS = {
    ("shop.tasks.send_receipt", "retries_exhausted", "ConnectionRefusedError"),
    ("shop.tasks.charge_card", "retries_exhausted", "console.demo.shop.PaymentProviderDown"),
    ("shop.tasks.import_feed", "failed", "KeyError"),
    ("shop.tasks.import_feed", "failed", "ValueError"),
    ("shop.tasks.resize_image", "timed_out", "billiard.exceptions.TimeLimitExceeded"),
    ("shop.tasks.render_invoice", "worker_lost", "billiard.exceptions.WorkerLostError"),
    ("shop.tasks.send_sms", "unregistered", "celery.exceptions.NotRegistered"),
    ("shop.tasks.update_stock", "undecodable", "kombu.exceptions.DecodeError"),
}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """An ``up --demo`` in which every kind of failure has happened."""
    up = Up(tmp_path_factory.mktemp("shop") / "data")
    try:
        up.start("--demo", "--first-login")
        wait_until(lambda: kinds(up) >= KINDS, seconds=120, what="every kind of failure")
        yield up
    finally:
        up.end()


def kinds(up: Up) -> set[tuple[str, str, str]]:
    return {(letter["task"], letter["reason"], letter["error_type"]) for letter in up.letters()}


@pytest.mark.worker
class TestRunningShop:
    """In this order: what fails first, then the fix."""

    def test_every_kind_of_failure_becomes_a_letter(self, shop: Up) -> None:
        assert kinds(shop) == KINDS

    def test_a_letter_shows_whole_arguments(self, shop: Up) -> None:
        letter = next(iter(shop.letters("task:shop.tasks.import_feed error:KeyError")))

        assert letter["args"][1][0] == {"sku": "SKU-001", "price": "12.50"}
        assert letter["replayable"] is True

    def test_jobs_that_work_leave_no_letter(self, shop: Up) -> None:
        assert shop.letters("task:shop.tasks.track_view") == []

    def test_what_the_shop_does_is_not_on_the_terminal(self, shop: Up) -> None:
        assert "Traceback" not in shop.text()

    def test_preflight_finds_nothing_against_our_own_stack(self, shop: Up) -> None:
        report = json.loads(shop.manage("preflight", "--json", "--strict").stdout)

        assert found(report, "error", "warning", "unknown") == {}
        assert report["application"] == "console"
        assert "sends schedules" in found(report, "ok")["beat"]["found"]

    def test_a_second_demo_is_refused(self, shop: Up) -> None:
        done = shop.manage("demo", check=False)

        assert done.returncode == 1
        assert "The demo is already running, perhaps in `manage.py up --demo`." in done.stderr

    def test_after_the_fix_on_the_page_a_replay_ends_well(self, shop: Up) -> None:
        browser = client()
        page = log_in(browser, shop, password_of(shop))
        assert "Fix the bugs" in page
        worker = shop.child("console.demo.shop").pid

        form = f"csrfmiddlewaretoken={token(page)}&bugs=fixed".encode()
        request = urllib.request.Request(f"{shop.url}/demo/switch/", form, headers={"Origin": shop.url})
        page = browser.open(request, timeout=20).read().decode()

        assert "Bring the bugs back" in page
        wait_until(lambda: shop_worker(shop) not in {worker, None}, seconds=30, what="the new worker")
        done = shop.manage(
            *("dead_letters", "replay", "--query", "task:shop.tasks.* -reason:undecodable"),
            *("--why", "The bugs are fixed", "--yes", "--json"),
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        left = shop.letters("task:shop.tasks.* state:any")
        assert {letter["reason"] for letter in left if letter["state"] == "dead"} <= {"undecodable"}
        assert Counter(letter["state"] for letter in left)["resolved"] >= len(KINDS) - 1

    def test_the_bugs_come_back(self, shop: Up) -> None:
        done = shop.manage("demo", "--break")

        assert done.stdout == "The bugs are back. The shop's worker starts again with them.\n"
        assert shop.commands.run("demo", "--break") == "The bugs are there already.\n"


def shop_worker(up: Up) -> int | None:
    """Return the pid of the shop's worker, None while it starts again."""
    try:
        return up.child("console.demo.shop").pid
    except AssertionError:
        return None


# The switch on the page.


@pytest.fixture
def demo(tmp_path: Path, settings) -> Iterator[Demo]:
    """A demo that is running as far as its lock says."""
    settings.DATA_DIR = tmp_path
    demo = Demo.of(tmp_path)
    lock = demo.lock()
    lock.acquire()
    yield demo
    lock.release()


def browser(role: str) -> Client:
    user = User.objects.create_user(role.lower(), password="secret-word")
    user.groups.add(Group.objects.get(name=role))
    client = Client()
    client.force_login(user)
    return client


@pytest.mark.django_db
class TestSwitch:
    url = "/demo/switch/"

    def test_operator_fixes_the_bugs_and_the_audit_says_so(self, demo: Demo) -> None:
        answer = browser("Operator").post(self.url, {"bugs": "fixed"})

        assert (answer.status_code, answer["Location"]) == (302, reverse("console:overview"))
        assert demo.is_fixed
        entry = AuditEntry.objects.get(action="demo.switch")
        assert (entry.actor, entry.action, entry.text) == (
            "operator",
            "demo.switch",
            "fixed the bugs of the demo shop",
        )

    def test_fixing_twice_is_one_entry(self, demo: Demo) -> None:
        operator = browser("Operator")

        operator.post(self.url, {"bugs": "fixed"})
        operator.post(self.url, {"bugs": "fixed"})

        assert demo.is_fixed
        assert AuditEntry.objects.filter(action="demo.switch").count() == 1

    def test_each_switch_marks_a_deployment_for_the_charts(self, demo: Demo) -> None:
        operator = browser("Operator")

        for bugs in ("fixed", "fixed", "back"):
            operator.post(self.url, {"bugs": bugs})

        assert list(Deploy.objects.order_by("pk").values_list("name", flat=True)) == ["shop 1.1", "shop 1.0"]

    def test_bugs_come_back(self, demo: Demo) -> None:
        demo.switch(fixed=True)

        browser("Operator").post(self.url, {"bugs": "back"})

        assert not demo.is_fixed

    def test_viewer_is_refused_with_the_reason(self, demo: Demo) -> None:
        answer = browser("Viewer").post(self.url, {"bugs": "fixed"})

        assert answer.status_code == 403
        assert "replay dead letters" in answer.content.decode()
        assert not demo.is_fixed

    def test_get_changes_nothing(self, demo: Demo) -> None:
        assert browser("Operator").get(self.url, {"bugs": "fixed"}).status_code == 405
        assert not demo.is_fixed

    def test_unknown_value_is_refused(self, demo: Demo) -> None:
        answer = browser("Operator").post(self.url, {"bugs": "gone"})

        assert answer.status_code == 400
        assert answer.content.decode() == "bugs='gone' is not known. Send fixed or back."

    def test_without_a_demo_there_is_no_switch(self, tmp_path: Path, settings) -> None:
        settings.DATA_DIR = tmp_path
        operator = browser("Operator")

        assert operator.post(self.url, {"bugs": "fixed"}).status_code == 404
        assert "The demo shop" not in operator.get(reverse("console:overview")).content.decode()

    def test_overview_shows_the_switch_while_the_demo_runs(self, demo: Demo) -> None:
        page = browser("Operator").get(reverse("console:overview")).content.decode()

        assert "The demo shop" in page
        assert "Fix the bugs" in page

    def test_a_demo_that_was_killed_is_not_running(self, demo: Demo) -> None:
        process = subprocess.Popen([sys.executable, "-c", "pass"])
        process.wait()

        demo.lock().path.write_text(f"{process.pid}\n")

        assert not demo.is_running


# Its parts.


@pytest.mark.parametrize(
    ("row", "before", "after"),
    [
        ({"price": "12.50"}, 1250, 1250),
        ({"sku": "SKU-1"}, KeyError, 0),
        ({"price": "12,50"}, ValueError, 1250),
    ],
)
def test_price_list_parser_is_mended(row: dict[str, str], before: object, after: int) -> None:
    if isinstance(before, int):
        assert feed.total_cents([row], is_fixed=False) == before
    else:
        with pytest.raises(before):  # type: ignore[call-overload]
            feed.total_cents([row], is_fixed=False)
    assert feed.total_cents([row], is_fixed=True) == after


def test_mail_relay_refuses_then_takes_then_refuses() -> None:
    relay = MailRelay(free_port())
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "a@shop.example", "b@shop.example", "Order"
    message.set_content("Thank you.\n.\n")

    with pytest.raises(ConnectionRefusedError):
        smtplib.SMTP("127.0.0.1", relay.port, timeout=5)
    relay.open()
    with smtplib.SMTP("127.0.0.1", relay.port, timeout=5) as client:
        assert client.send_message(message) == {}
    relay.close()
    with pytest.raises(ConnectionRefusedError):
        smtplib.SMTP("127.0.0.1", relay.port, timeout=5)
    relay.release()


def charge(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("POST", "/charges", body=json.dumps({"amount": 1}))
    status = connection.getresponse().status
    connection.close()
    return status


def test_payment_provider_flaps_until_it_is_fixed() -> None:
    now = [0.0]
    provider = PaymentProvider(free_port(), is_fixed=False, clock=lambda: now[0])
    provider.start()
    answers = []
    try:
        for is_fixed in (False, False, False, True):
            provider.is_fixed = is_fixed
            answers.append(charge(int(provider.server_address[1])))
            now[0] += 0 if len(answers) == 3 else FLAP_SECONDS
    finally:
        provider.shutdown()
        provider.server_close()

    assert answers == [503, 201, 503, 201]


@pytest.mark.parametrize("counts", [(300, 300), (0, 3_000)])
def test_no_failure_is_sent_once_there_are_enough(
    broker: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: tuple[int, int]
) -> None:
    demo = Demo.of(tmp_path)
    ports = demo.ports()
    monkeypatch.setenv("SHOP_DIRECTORY", str(demo.directory))
    monkeypatch.setenv("SHOP_MAIL_PORT", str(ports.mail))
    monkeypatch.setenv("SHOP_PAYMENTS_PORT", str(ports.payments))
    monkeypatch.setenv("BROKER_URL", broker.url)
    code = f"""
import threading, time
from pathlib import Path
from console.demo.state import Demo
from console.demo import traffic
traffic.STEADY_SECONDS = 0.01
traffic.RISKY_SECONDS = 0.01
stop = threading.Event()
run = traffic.Traffic(Demo(Path({str(demo.directory)!r})), count_letters=lambda: {counts!r})
def stop_after_enough():
    while run.sent < 40:
        time.sleep(0.01)
    stop.set()
threading.Thread(target=stop_after_enough, daemon=True).start()
run.run(stop, say=print)
print("sent", run.sent)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )

    assert "There are enough dead letters to look at" in done.stdout
    with broker.client() as client:
        assert client.llen("shop.catalog") == int(done.stdout.split()[-1]) > 5
        assert client.llen("shop.mail") + client.llen("shop.payments") + client.llen("shop.media") == 0


def test_ports_stay_the_same_while_they_are_free(tmp_path: Path) -> None:
    demo = Demo.of(tmp_path)
    first = demo.ports()

    assert demo.ports() == first
    with socket.create_server(("127.0.0.1", first.mail)):
        assert demo.ports().mail != first.mail
