"""``manage.py startjob`` in a project of its own: what it writes, and what it refuses."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scratch_project import SETTINGS, Project
from tests.servers import RedisServer

OLD_TASKS = '''"""What the shop does later."""

import logging
import os
from datetime import timedelta

from celery import shared_task
from django.conf import settings

from shop import prices

logger = logging.getLogger("shop")


@shared_task
def old(): # kept as it is
    return   os.sep, settings, prices, timedelta
'''


@pytest.fixture(scope="module")
def shared_project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    project = Project(tmp_path_factory.mktemp("site"))
    yield project
    project.commands.end()


@pytest.fixture
def project(shared_project: Project) -> Iterator[Project]:
    """The project as it was at first."""
    yield shared_project
    shared_project.reset()


def test_the_command_says_what_it_wrote_and_what_it_refuses(project: Project) -> None:
    """As a process; the tests below ask one process that stays."""
    written = project.run("-m", "django", "startjob", "shop.send_receipt")
    refused = project.run("-m", "django", "startjob", "shop.send_receipt")

    assert written.returncode == 0, written.stderr
    assert written.stdout.splitlines()[:2] == [
        "wrote shop/tasks.py, line 1",
        "wrote shop/test_send_receipt.py, line 1",
    ]
    assert refused.returncode == 1
    assert refused.stderr.startswith("CommandError: ")
    assert len(refused.stderr.splitlines()) == 1
    assert "send_receipt is there already" in refused.stderr


def test_it_writes_a_job_and_its_test_that_a_linter_accepts(project: Project) -> None:
    said = project.startjob("shop.send_receipt")

    assert said.splitlines()[:2] == ["wrote shop/tasks.py, line 1", "wrote shop/test_send_receipt.py, line 1"]
    assert project.lints("shop/tasks.py", "shop/test_send_receipt.py") == ""


def test_the_job_has_key_queue_limits_errors_types_and_a_docstring(project: Project) -> None:
    project.startjob("shop.charge_order", "--queue", "critical", "--key", "charge:{order_id}:{day}")

    text = (project.app / "tasks.py").read_text()
    assert 'idempotency_key="charge:{order_id}:{day}"' in text
    assert 'queue="critical"' in text
    assert "soft_time_limit=20" in text
    assert "time_limit=30" in text
    assert "def charge_order(order_id: int, day: str) -> None:" in text
    assert "raise PermanentError(" in text
    assert "raise TransientError(" in text
    assert '"""Charge order, once for each key.' in text


def test_the_name_may_be_given_as_the_task_will_be_called(project: Project) -> None:
    project.startjob("shop.tasks.send_receipt")

    assert "def send_receipt" in (project.app / "tasks.py").read_text()


def test_the_application_may_be_an_option(project: Project) -> None:
    project.startjob("send_receipt", "--app", "shop")

    assert "def send_receipt" in (project.app / "tasks.py").read_text()


def test_an_existing_module_keeps_every_line_and_its_imports_stay_sorted(project: Project) -> None:
    project.write("shop/tasks.py", OLD_TASKS)
    project.write("shop/prices.py", "")

    said = project.startjob("shop.send_receipt")

    lines = (project.app / "tasks.py").read_text().splitlines()
    old = OLD_TASKS.splitlines()
    assert [line for line in lines if line in old][: len(old)] == old
    imports = lines[lines.index("from celery import shared_task") :][:5]
    assert imports == [
        "from celery import shared_task",
        "from django.conf import settings",
        "from jobs import Job, PermanentError, TransientError",
        "",
        "from shop import prices",
    ]
    at = int(said.partition("line ")[2].split()[0])
    assert lines[at - 1] == "@shared_task("
    assert lines[at - 4 : at - 1] == ["    return   os.sep, settings, prices, timedelta", "", ""]


def test_a_second_job_adds_no_second_import(project: Project) -> None:
    project.startjob("shop.send_receipt")
    project.startjob("shop.send_invoice")

    text = (project.app / "tasks.py").read_text()
    assert text.count("import ") == 4
    assert text.count("logger = ") == 1
    assert project.lints("shop/tasks.py", "shop/test_send_invoice.py") == ""


OLD_MODULES = {
    "empty": "",
    "comment": "# only a comment\n",
    "docstring": '"""Only a docstring."""',
    "value": "X = 1",
    "decorated": "@print\ndef decorated(): ...\n",
    "relative": "from . import tools\n",
    "future": "from __future__ import annotations\n\nX = 1\n",
    "semicolon": "import logging; X = 1\n",
    "brackets": "from celery import (\n    shared_task,\n    group,\n)\nX = group\n",
}


def test_whatever_stood_there_still_does_and_can_be_imported(project: Project) -> None:
    for name, old in OLD_MODULES.items():
        path = project.write("shop/tasks.py", old)
        project.startjob("shop.send_receipt")
        written = path.read_text()
        # Each goes into a package of its own, so that one process can import them all.
        project.write(f"shop/{name}/__init__.py", "")
        project.write(f"shop/{name}/tools.py", "")
        shutil.move(path, project.app / name / "tasks.py")
        (project.app / "test_send_receipt.py").unlink()

        assert [line for line in old.splitlines() if line not in written.splitlines()] == [], name

    done = project.run(
        "-c",
        "import site_celery, django, importlib; django.setup()\n"
        f"for name in {list(OLD_MODULES)}: importlib.import_module(f'shop.{{name}}.tasks').send_receipt.name",
    )
    assert done.returncode == 0, done.stderr


def test_the_line_ends_of_the_file_are_kept(project: Project) -> None:
    path = project.write("shop/tasks.py", '"""Ours."""\r\n\r\nX = 1\r\n')

    project.startjob("shop.send_receipt")

    data = path.read_bytes()
    assert data.count(b"\n") == data.count(b"\r\n") > 40


def test_a_tasks_package_gets_a_module_that_it_imports(project: Project) -> None:
    project.write("shop/tasks/__init__.py", "from . import older as older\n")
    project.write("shop/tasks/older.py", "")

    project.startjob("shop.send_receipt")

    assert (project.app / "tasks" / "__init__.py").read_text() == (
        "from . import older as older\nfrom . import send_receipt as send_receipt\n"
    )
    done = project.run(
        "-c",
        "import site_celery as s, django; django.setup(); s.app.loader.import_default_modules(); print(*s.app.tasks)",
    )
    assert "shop.tasks.send_receipt.send_receipt" in done.stdout.split()
    assert project.lints("shop/tasks", "shop/test_send_receipt.py") == ""


def test_its_test_goes_into_the_tests_package_when_there_is_one(project: Project) -> None:
    project.write("shop/tests/__init__.py", "")

    project.startjob("shop.send_receipt")

    assert (project.app / "tests" / "test_send_receipt.py").is_file()


def test_beside_a_tests_module_its_test_stands_beside(project: Project) -> None:
    """``startapp`` makes tests.py; a package of the same name would hide it."""
    project.write("shop/tests.py", "")

    project.startjob("shop.send_receipt")

    assert (project.app / "test_send_receipt.py").is_file()
    assert not (project.app / "tests").exists()


def test_what_it_writes_passes_its_own_test_under_pytest_and_under_django(tmp_path: Path) -> None:
    """In an application without jobs, in one with a module of them, and in one with a package."""
    project = Project(tmp_path)
    project.write("site_settings.py", SETTINGS.replace('"shop"', '"shop", "mall", "depot"'))
    project.write("mall/__init__.py", "")
    project.write("mall/tasks.py", OLD_TASKS.replace("from shop", "from mall"))
    project.write("mall/prices.py", "")
    project.write("depot/__init__.py", "")
    project.write("depot/tasks/__init__.py", "")
    for name in ("shop", "mall", "depot"):
        project.startjob(f"{name}.send_receipt")
        project.startjob(f"{name}.charge_order", "--key", "charge:{day}:{order_id}", "--queue", "long")
    project.commands.end()

    by_pytest = project.pytest()
    by_django = project.django_test()

    assert "24 passed" in by_pytest.stdout, by_pytest.stdout + by_pytest.stderr
    assert "Ran 24 tests" in by_django.stderr, by_django.stderr
    assert "\n\nOK\n" in by_django.stderr
    assert by_django.returncode == 0


def test_the_test_it_writes_fails_when_the_job_forgets_its_key(project: Project) -> None:
    project.startjob("shop.send_receipt")
    path = project.app / "tasks.py"
    path.write_text(path.read_text().replace('    idempotency_key="receipt:{receipt_id}",\n', ""))

    done = project.pytest("shop")

    assert "2 failed, 2 passed" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["send_receipt"], "which application is it for? Give one of shop: shop.send_receipt."),
        (["shop.send-receipt"], "it is not a name of a Python function. Use letters, digits and underscores, for instance send_receipt."),
        (["shop.class"], "it is a word of Python's own"),
        (["shop."], "it is not a name of a Python function"),
        (["auth.send_receipt"], "Cannot write a job into auth: it is not code of this project. Use one of shop."),
        (["jobs.send_receipt"], "Cannot write a job into jobs: it is not code of this project. Use one of shop."),
        (["nope.send_receipt"], "no application of this name is installed. Yours are shop. Make one with: python manage.py startapp nope"),
        (["sqlite3.send_receipt"], "sqlite3 can be imported, so add it"),
        (["shop.send_receipt", "--app", "other"], "the name says shop, --app says other"),
        (["shop.send_receipt", "--key", "receipt"], "it names no argument, so only the first job ever would run"),
        (["shop.send_receipt", "--key", "receipt:{0}"], "'0' is not the name of an argument"),
        (["shop.send_receipt", "--key", "receipt:{order.id}"], "'order.id' is not the name of an argument"),
        (["shop.send_receipt", "--key", "receipt:{class}"], "'class' is not the name of an argument"),
        (["shop.send_receipt", "--key", "receipt:{send_receipt}"], "'send_receipt' is not the name of an argument"),
        (["shop.send_receipt", "--key", 'receipt"{order_id}'], "quotes, backslashes and control characters are not for keys"),
        (["shop.send_receipt", "--key", "receipt:{order_id"], "Write for instance 'receipt:{receipt_id}'."),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_what_to_do(project: Project, arguments: list[str], says: str) -> None:
    assert says in project.refused(*arguments)


def test_without_an_application_it_says_how_to_make_one(project: Project) -> None:
    project.write("site_settings.py", SETTINGS.replace(', "shop"', ""))

    said = project.run("-m", "django", "startjob", "send_receipt").stderr

    assert "no application of yours is installed" in said
    assert "python manage.py startapp shop" in said
    assert "JOBS_APPS=shop" in said


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("shop/tasks.py", "def send_receipt(): ...\n", "shop/tasks.py: send_receipt is there already"),
        ("shop/tasks.py", "if True:\n    from os import sep as _send_receipt\n", "_send_receipt is there already"),
        ("shop/tasks.py", "class Job: ...\n", "Job means something else there"),
        ("shop/tasks.py", "def broken(:\n", "line 1 is not Python"),
        ("shop/tasks.py", "# \udcff", "it is not text in UTF-8"),
        ("shop/test_send_receipt.py", "", "shop/test_send_receipt.py: it is there already, and nothing is overwritten"),
        ("shop/tasks/send_receipt.py", "", "shop/tasks/send_receipt.py: it is there already"),
        ("shop/tasks/__init__.py", "send_receipt = 1\n", "shop/tasks/__init__.py: send_receipt is there already"),
    ],
)  # fmt: skip
def test_what_is_there_is_never_overwritten(project: Project, name: str, text: str, says: str) -> None:
    path = project.write(name, "")
    path.write_bytes(text.encode("utf-8", "surrogateescape"))

    assert says in project.refused("shop.send_receipt")


def test_a_module_and_a_package_of_one_name_are_refused(project: Project) -> None:
    project.write("shop/tasks/__init__.py", "")
    project.write("shop/tasks.py", "")

    assert "Python sees only the package. Remove one of them." in project.refused("shop.send_receipt")


def test_a_file_that_cannot_be_written_leaves_the_others_as_they_were(project: Project) -> None:
    from jobs.errors import JobsError
    from jobs.startjob import Change, write

    target = project.write("shop/tasks.py", "X = 1\n")
    changes = [
        Change(project.app / "new.py", "Y = 1\n", is_new=True),
        Change(project.app / "no" / "such.py", "Z = 1\n", is_new=True),
        Change(target, "X = 2\n", is_new=False),
    ]

    with pytest.raises(JobsError, match=r"such\.py: No such file or directory\. Nothing was written\."):
        write(changes)

    assert not (project.app / "new.py").exists()
    assert target.read_text() == "X = 1\n"


@pytest.mark.worker
def test_what_it_writes_runs_in_a_real_worker(project: Project, broker: RedisServer) -> None:
    project.write("site_settings.py", SETTINGS.replace("redis://127.0.0.1:1/0", broker.url))
    project.write("site_celery.py", (project.path / "site_celery.py").read_text() + ATTACH)
    project.startjob("shop.send_receipt", "--queue", "critical")
    assert project.run("-m", "django", "migrate", "-v0").returncode == 0
    worker = project.start(
        *("-m", "celery", "-A", "site_celery", "worker", "--pool=prefork", "--concurrency=1"),
        *("--queues=critical", "--loglevel=INFO"),
    )
    try:
        done = project.run("-c", SEND_AND_WAIT)
    finally:
        worker.terminate()
        output, _ = worker.communicate(timeout=60)

    assert done.stdout.splitlines()[-1:] == ["[('receipt:5', 'done')]"], done.stderr + output
    assert output.count("send_receipt: receipt_id=5") == 1
    assert output.count("succeeded in") == 2


ATTACH = """
from jobs.agent import attach
attach(app)
"""
# Two jobs of one key, in a transaction; then the ledger and the queue, polled until both are at rest.
SEND_AND_WAIT = """
import site_celery, django, time
django.setup()
from django.db import transaction
from jobs.models import IdempotencyRecord
from shop.tasks import send_receipt
with transaction.atomic():
    send_receipt.delay(receipt_id=5)
    send_receipt.delay(receipt_id=5)
deadline = time.monotonic() + 90
while time.monotonic() < deadline:
    with site_celery.app.connection_for_read() as connection:
        client = connection.default_channel.client
        left = client.llen("critical") + client.hlen("unacked")
    if not left and IdempotencyRecord.objects.filter(state="done").exists():
        break
    time.sleep(0.2)
print(list(IdempotencyRecord.objects.values_list("key", "state")))
"""
