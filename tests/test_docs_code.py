"""Every piece of code in docs/jobs.md and docs/testing.md runs, and does what the text around it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jobs.core.policies import POLICIES
from tests.scratch_project import Project

DOCS = Path(__file__).resolve().parent.parent / "docs"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What the examples use of a shop.
SHOP = {
    "shop/models.py": """
from django.db import models


class Order(models.Model):
    email = models.EmailField(blank=True)
    points = models.IntegerField(default=100)

    def receipt(self) -> str:
        return f"Order {self.pk}"


class Upload(models.Model):
    text = models.TextField()
""",
    "shop/mail.py": """
sent = []


def send(*, to: str, subject: str, text: str) -> None:
    sent.append((to, subject, text))
""",
    "shop/bank.py": """
class CardRefused(Exception): ...


class Busy(Exception):
    seconds = 30


answers = []
charged = []


def charge(*, reference: str, cents: int) -> str:
    if answers:
        raise answers.pop(0)
    charged.append((reference, cents))
    return reference


def balance(account_id: int) -> int:
    if answers:
        raise answers.pop(0)
    return 7


def is_closed() -> bool:
    return bool(answers and answers.pop(0))


def settle(account_id: int) -> str:
    return "settled"
""",
}


def blocks(document: str, language: str = "python") -> dict[str, str]:
    """Return the code of a page by the file that its first line names."""
    found = {}
    for kind, code in _BLOCK.findall((DOCS / document).read_text()):
        if kind == language:
            first, _, rest = code.partition("\n")
            name = re.fullmatch(r"# ([\w/]+\.py)", first)
            assert name is not None, f"a block of {document} does not say which file it is: {first}"
            assert name[1] not in found, f"{document} has two files {name[1]}"
            found[name[1]] = rest
    return found


@pytest.fixture
def shop(tmp_path: Path) -> Project:
    """A project with every file of docs/jobs.md in it."""
    project = Project(tmp_path)
    for name, text in SHOP.items():
        project.write(name, text)
    for name, text in blocks("jobs.md").items():
        if name == "settings.py":
            path = project.path / "site_settings.py"
            path.write_text(path.read_text() + text)
        else:
            project.write(name, text)
    return project


def test_all_code_of_the_pages_can_be_imported_and_passes_the_checks(shop: Project) -> None:
    names = [name for name in blocks("jobs.md") if name != "settings.py"]
    modules = [name.removesuffix(".py").replace("/", ".") for name in names]
    assert len(modules) > 25

    done = shop.run(
        "-W", "error::SyntaxWarning", "-c",
        "import site_celery, django, importlib; django.setup()\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "site_celery.app.finalize()\n"
        "from django.core.management import call_command; call_command('check')\n"
        "from shop.bank_jobs import pay_out; print(pay_out.rate, pay_out.time_limit, pay_out.max_attempts)",
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "100/m 30 3"


@pytest.mark.parametrize("document", ["jobs.md", "testing.md"])
def test_the_code_of_a_page_has_no_unused_or_unsorted_line(shop: Project, document: str) -> None:
    for name, text in blocks(document).items():
        shop.write(name, text)

    assert shop.lints(*blocks(document), own=("shop", "jobs"), width=110) == ""


def test_the_tests_of_the_page_pass(shop: Project) -> None:
    for name, text in blocks("testing.md").items():
        if name != "conftest.py":
            shop.write(name, text)
    shop.write("conftest.py", "import site_celery\n" + blocks("testing.md")["conftest.py"])
    shop.write(
        "shop/test_by_hand.py",
        "import pytest\nfrom shop.by_hand import place_and_run\n\n\n@pytest.mark.django_db\n"
        "def test_it_runs():\n    assert place_and_run('ann@shop.example') == ['done']\n",
    )

    done = shop.pytest("shop")

    assert "7 passed" in done.stdout, done.stdout


def test_wrong_and_right_behave_as_the_page_says(shop: Project) -> None:
    shop.write("test_pitfalls.py", CLAIMS)

    done = shop.pytest("test_pitfalls.py")

    assert "13 passed" in done.stdout, done.stdout


def test_the_table_of_policies_is_that_of_the_code() -> None:
    table = (DOCS / "jobs.md").read_text().partition("| policy | default |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| `([^`]*)` \| ?(.*?) ?\| ", table, re.MULTILINE)

    assert [(name, default) for name, default, _ in rows] == [
        (policy.name, repr(policy.default)) for policy in POLICIES.values()
    ]
    assert {name for name, _, unit in rows if unit == "seconds"} == {
        name for name in POLICIES if name.endswith(("_seconds", "time_limit"))
    }


def test_the_message_of_a_wrong_policy_is_the_one_on_the_page(shop: Project) -> None:
    shop.write(
        "shop/tasks.py",
        "from celery import shared_task\nfrom jobs import Job\n\n\n@shared_task(base=Job, max_attempts=0)\n"
        "def send_receipt(order_id): ...\n",
    )
    shown = re.search(r"^```text\n(.*?) …\n```", (DOCS / "jobs.md").read_text(), re.MULTILINE | re.DOTALL)
    assert shown is not None

    done = shop.run(
        "-c",
        "import site_celery, django; django.setup(); site_celery.app.finalize(); import shop.tasks as t; t.send_receipt.name",
    )

    assert shown[1] in done.stderr


CLAIMS = """
from datetime import timedelta

import pytest
from celery import chain
from kombu.exceptions import EncodeError
from shop import bank, mail
from shop.models import Order, Upload

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def clean():
    mail.sent.clear()
    bank.answers.clear()
    bank.charged.clear()


def points(module, run_jobs):
    order = Order.objects.create()
    for _ in range(2):
        module.redeem_points.delay(order.pk, 10)
    run_jobs()
    order.refresh_from_db()
    return order.points


def test_not_idempotent(run_jobs):
    from right import idempotent
    from wrong import not_idempotent

    assert points(not_idempotent, run_jobs) == 80
    assert points(idempotent, run_jobs) == 90


def test_too_large(run_jobs):
    from jobs.errors import PayloadTooLarge
    from right import small
    from wrong import too_large

    text = "line\\n" * 100_000
    with pytest.raises(PayloadTooLarge):
        too_large.import_text.delay(text)
    small.import_text.delay(Upload.objects.create(text=text).pk)
    assert run_jobs()[0].result == 100_000


def test_an_object(run_jobs):
    from right import passes_an_id
    from wrong import passes_an_object

    order = Order.objects.create(email="ann@shop.example")
    with pytest.raises(EncodeError):
        passes_an_object.after_order(order)
    passes_an_id.after_order(order)
    assert run_jobs()[0].result == "Dear ann@shop.example"


@pytest.mark.django_db(transaction=True)
def test_sent_too_early(jobs_broker, run_jobs):
    from django.db import transaction
    from right import sent_with_the_commit
    from wrong import sent_too_early

    for module, early in ((sent_too_early, 1), (sent_with_the_commit, 0)):
        before = len(jobs_broker._waiting)
        with transaction.atomic():
            module.order("ann@shop.example")
            assert len(jobs_broker._waiting) - before == early
        assert len(jobs_broker._waiting) - before == 1
        run_jobs()


def test_for_ever(run_jobs, expect_dead_letter):
    from jobs.testing import NeverEnding
    from right import some_attempts
    from wrong import for_ever

    bank.answers[:] = [ConnectionError("away")] * 200
    for_ever.ask_for_balance.delay(1)
    with pytest.raises(NeverEnding):
        run_jobs(limit=100)
    some_attempts.ask_for_balance.delay(1)
    with expect_dead_letter(some_attempts.ask_for_balance, reason="retries_exhausted"):
        ran = run_jobs(leave=[for_ever.ask_for_balance])
    assert len(ran) == 12


def test_timeouts():
    from right.timeout import fetch as right
    from wrong.no_timeout import fetch as wrong

    assert (wrong.soft_time_limit, wrong.time_limit) == (600, 660)
    assert (right.soft_time_limit, right.time_limit) == (20, 30)


def test_tiers(enqueued):
    from right import tiers
    from wrong import mixed

    mixed.export_year.delay(2025), mixed.notify.delay(1)
    assert len({job.queue for job in enqueued}) == 1
    tiers.export_year.delay(2025), tiers.notify.delay(1)
    assert [job.queue for job in enqueued][2:] == ["long", "critical"]


def test_two_schedulers(run_jobs):
    from right import once_a_day
    from wrong import each_time

    for module, mails in ((each_time, 2), (once_a_day, 1)):
        mail.sent.clear()
        module.send_summary.delay(), module.send_summary.delay()
        run_jobs()
        assert len(mail.sent) == mails


def test_catching_retry(run_jobs, caplog):
    from right import raises
    from wrong import catches_retry

    for module in (catches_retry, raises):
        caplog.clear()
        bank.answers[:] = [True]
        module.settle.delay(1)
        assert [(ran.outcome, ran.result) for ran in run_jobs()] == [("retried", None), ("done", "settled")]
        assert ("caught the Retry" in caplog.text) == (module is catches_retry)


def test_renaming(run_jobs, expect_dead_letter):
    from celery import current_app
    from right import renamed

    current_app.send_task("shop.tasks.send_invoice", (5,))
    current_app.send_task("right.renamed.mail_invoice", (5,))
    assert [ran.result for ran in run_jobs()] == ["5 in en", "5 in en"]

    from wrong import renamed as wrong

    current_app.send_task("shop.tasks.no_longer_there", (5,))
    with expect_dead_letter(reason="unregistered"):
        run_jobs()
    current_app.send_task(wrong.mail_invoice.name, (5,))
    with expect_dead_letter(wrong.mail_invoice, reason="failed", error="language"):
        run_jobs()


def test_charging(run_jobs, expect_dead_letter):
    from shop.charging import charge

    bank.answers[:] = [bank.Busy(), ConnectionError()]
    charge.delay(1, 500), charge.delay(1, 500)
    run_jobs()
    assert bank.charged == [("order-1", 500)]
    bank.answers[:] = [bank.CardRefused("expired")]
    with expect_dead_letter(charge, reason="failed", error="Ask for another card"):
        charge.delay(2, 500)
        run_jobs()


def test_keys(enqueued, run_jobs):
    from django.utils import timezone
    from shop.reports import send_daily_report
    from shop.importing import import_rows

    send_daily_report.delay()
    enqueued.assert_one(send_daily_report, key=f"day:{timezone.localdate().isoformat()}")
    import_rows.delay(7, 3)
    assert run_jobs()[-1].result == 3
    assert import_rows(7, 2) == 2


def test_many(enqueued, django_assert_num_queries):
    from shop.mailing import send_again
    from shop.tasks import send_receipt

    with django_assert_num_queries(1):
        send_again(range(50))
    assert len(enqueued.of(send_receipt)) == 50
"""
