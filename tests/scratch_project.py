"""A Django project in a directory of its own, as the users of this product have one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.commands import Commands

ROOT = Path(__file__).resolve().parent.parent
NEEDED = frozenset({"HOME", "LD_LIBRARY_PATH", "PATH", "TMPDIR"})
SETTINGS = """
SECRET_KEY = "only for tests"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "jobs", "shop"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": "site.sqlite3",
        # Its own tests get their tables from the models: that takes a second less, and no test is about it.
        "TEST": {"MIGRATE": False},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
BROKER_URL = "redis://127.0.0.1:1/0"
CELERY_TASK_ACKS_LATE = True
"""
CELERY = """
import os
from celery import Celery
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "site_settings")
app = Celery("site")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
app.set_default()
"""


class Project:
    """A Django project in a directory, with one application."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.app = path / "shop"
        self.app.mkdir()
        (self.app / "__init__.py").touch()
        (path / "site_settings.py").write_text(SETTINGS)
        (path / "site_celery.py").write_text(CELERY)
        self.write("conftest.py", "import site_celery\npytest_plugins = ['jobs.testing']\n")
        self.commands = Commands(lambda: self.environment, directory=path)
        self._at_first = self.files()

    def reset(self) -> None:
        """Remove what was written since, and bring back what was changed."""
        for path in self.path.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for name, data in self._at_first.items():
            (self.path / name).parent.mkdir(exist_ok=True)
            (self.path / name).write_bytes(data)

    def write(self, name: str, text: str) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="") as file:
            file.write(text)
        return path

    @property
    def environment(self) -> dict[str, str]:
        """Its own settings, and of the caller's only what a program needs to start.

        Whether the caller has CI, COLUMNS, FORCE_COLOR or a locale of its own changes what pytest, ruff and Django say.
        """
        return {
            **{name: value for name, value in os.environ.items() if name in NEEDED},
            "LC_ALL": "C.UTF-8",
            "PYTHONPATH": os.pathsep.join([str(self.path), str(ROOT)]),
            "DJANGO_SETTINGS_MODULE": "site_settings",
            "JOBS_SPOOL_DIRECTORY": str(self.path / "spool"),
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a process of Python; the caller stops it."""
        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.path,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        )

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments to its end."""
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.path,
            env={**self.environment, **environment},
            capture_output=True,
            encoding="utf-8",
            timeout=150,
            check=False,
        )

    def pytest(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run pytest as a user would, without the plugins of this repository's own tests."""
        options = ("-q", "-p", "no:cacheprovider", "-p", "no:playwright")
        return self.run("-m", "pytest", *options, *arguments, **environment)

    def django_test(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``manage.py test``."""
        run = "import site_celery; from django.core.management import execute_from_command_line as run; run"
        return self.run("-c", f"{run}({['manage.py', 'test', *arguments]!r})")

    def startjob(self, *arguments: str) -> str:
        """Run the command, which must succeed, and return what it says."""
        return self.commands.run("startjob", *arguments)

    def refused(self, *arguments: str) -> str:
        """Run the command, which must refuse and write nothing, and return its sentence."""
        before = self.files()
        sentence = self.commands.refused("startjob", *arguments)
        assert self.files() == before
        return sentence

    def files(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.path)): path.read_bytes()
            for path in self.path.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }

    def lints(self, *names: str, own: tuple[str, ...] = ("shop",), width: int = 88) -> str:
        """Return what ruff says of files: unused names, order of imports, line length, format."""
        check = self.run(
            *("-m", "ruff", "check", "--isolated", "--quiet", "--select", "B,E,F,I,RET,SIM,UP,W"),
            f"--line-length={width}",
            *("--config", f"lint.isort.known-first-party={list(own)!r}", *names),
        )
        form = self.run("-m", "ruff", "format", "--isolated", f"--line-length={width}", "--diff", *names)
        return check.stdout + check.stderr + form.stdout
