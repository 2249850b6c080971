"""``manage.py check`` finds every job that could not be made."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from jobs import Job
from jobs.base.finalising import policy_problems
from jobs.errors import PolicyError
from tests.applications import Application
from tests.base.place import close

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Application("checked", broker="memory://", set_as_current=False)
    yield app
    close(app)


def body(x: int) -> int:
    """Do it."""
    return x


def add(app: Celery, name: str, **options: Any) -> Any:
    return app.task(base=Job, shared=False, name=name, **options)(body)


def test_all_mistakes_are_told_at_once(app: Celery) -> None:
    app.conf.task_annotations = {"c": {"max_attempts": 0}}
    add(app, "a", max_atempts=1)
    add(app, "b", rate="soon")
    add(app, "c")
    add(app, "d")

    told = [str(problem) for problem in policy_problems(app)]

    assert len(told) == 3
    assert [text.split(" on job ")[1][0] for text in told] == ["a", "c", "b"]


def test_an_application_with_mistakes_still_fails_where_a_worker_starts(app: Celery) -> None:
    add(app, "a", max_atempts=1)
    add(app, "b")

    assert policy_problems(app)

    with pytest.raises(PolicyError, match="max_atempts"):
        app.finalize()


def test_an_application_without_mistakes_is_ready(app: Celery) -> None:
    told: list[Any] = []
    app.on_after_finalize.connect(lambda **_: told.append("finalised"), weak=False)
    job = add(app, "a")

    assert policy_problems(app) == []
    assert policy_problems(app) == []

    assert (app.finalized, told) == (True, ["finalised"])
    assert app.tasks["a"].max_attempts == job.max_attempts == 5


def project(directory: Path, tasks: str, settings: str = "") -> dict[str, str]:
    """Write a Django project with one application of jobs; return the environment to run it in."""
    package = directory / "bakery"
    package.mkdir()
    (package / "__init__.py").write_text("from bakery.celery import app\n")
    (package / "celery.py").write_text(
        "import os\n"
        "from celery import Celery\n"
        "os.environ.setdefault('DJANGO_SETTINGS_MODULE', 'bakery.settings')\n"
        "app = Celery('bakery', broker='memory://')\n"
        "app.autodiscover_tasks()\n"
    )
    (package / "settings.py").write_text(
        "SECRET_KEY = 'only for tests'\n"
        "INSTALLED_APPS = ['django.contrib.contenttypes', 'django.contrib.auth', 'jobs', 'bakery']\n"
        "DATABASES = {'default': {'ENGINE': 'django.db.backends.sqlite3', 'NAME': ':memory:'}}\n"
        "USE_TZ = True\nBROKER_URL = 'memory://'\n"
        f"{settings}\n"
    )
    (package / "tasks.py").write_text(tasks)
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "bakery.settings",
        "PYTHONPATH": f"{directory}{os.pathsep}{ROOT}",
        "PYTHONWARNINGS": "error",
    }


def checked(directory: Path, tasks: str, settings: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "django", "check"],
        env=project(directory, tasks, settings),
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


IMPORTS = "from celery import shared_task\nfrom jobs import Job\n"
GOOD = IMPORTS + "@shared_task(base=Job, idempotency_key='bake:{loaf}')\ndef bake(loaf): ...\n"


def test_a_good_project_passes(tmp_path: Path) -> None:
    done = checked(tmp_path, GOOD)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("tasks", "settings", "told"),
    [
        (
            GOOD + "@shared_task(base=Job, max_atempts=3)\ndef eat(loaf): ...\n"
            "@shared_task(base=Job, idempotency_key='{bread}')\ndef sell(loaf): ...\n",
            "",
            [
                "(jobs.E011) Cannot use max_atempts on job bakery.tasks.eat",
                "(jobs.E011) Cannot use idempotency_key='{bread}' on job bakery.tasks.sell",
            ],
        ),
        (
            IMPORTS + "class Oven(Job):\n    concurrency = 0\n",
            "",
            ["(jobs.E011) Cannot use concurrency=0 on job bakery.tasks.Oven"],
        ),
        (
            GOOD,
            "JOBS_POLICIES = {'max_attempt': 3}",
            ["(jobs.E010) Cannot use 'max_attempt' in JOBS_POLICIES"],
        ),
        (
            "import flour\n",
            "",
            ["(jobs.E012) The tasks of the Celery application 'bakery' cannot be imported"],
        ),
    ],
)
def test_what_a_worker_would_stop_at_is_told(
    tmp_path: Path, tasks: str, settings: str, told: list[str]
) -> None:
    done = checked(tmp_path, tasks, settings)

    assert done.returncode == 1
    for text in told:
        assert text in done.stderr


def test_a_worker_does_not_start_with_a_wrong_job(tmp_path: Path) -> None:
    environment = project(tmp_path, GOOD + "@shared_task(base=Job, max_atempts=3)\ndef eat(loaf): ...\n")

    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "bakery", "worker", "-P", "solo"],
        env={**environment, "PYTHONWARNINGS": "ignore", "JOBS_PREFLIGHT": "off", "C_FORCE_ROOT": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode != 0
    assert "Cannot use max_atempts on job bakery.tasks.eat" in done.stdout + done.stderr


def test_a_project_without_celery_passes(tmp_path: Path) -> None:
    environment = project(tmp_path, "")
    (tmp_path / "bakery" / "__init__.py").write_text("")
    (tmp_path / "bakery" / "celery.py").unlink()

    done = subprocess.run(
        [sys.executable, "-m", "django", "check"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
