"""The rules of who imports whom hold, and each one breaks when it is violated."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CONTRACTS = [
    contract["name"]
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
]
# Contract, a new module that violates it, what is in that module.
VIOLATIONS = [
    ("jobs never imports console", "jobs/violation.py", "import console.apps"),
    ("the agent imports", "jobs/agent/violation.py", "import django.db"),
    ("the agent imports", "jobs/agent/violation.py", "import jobs.core.words"),
    ("the core is pure", "jobs/core/violation.py", "import celery"),
    ("the core is pure", "jobs/core/violation.py", "import time"),
    ("the core is pure", "jobs/core/violation.py", "import jobs.models"),
    ("the tables know no service", "jobs/models/violation.py", "import jobs.search"),
    ("alerts read queues", "jobs/metrics/violation.py", "import jobs.queues.reading"),
    ("alerts read queues", "jobs/queues/violation.py", "import jobs.alerts.reading"),
    ("Celery is imported by", "jobs/violation.py", "import celery"),
    ("Celery is imported by", "console/violation.py", "from celery import Celery"),
    ("pages and forms ask", "console/views/violation.py", "import jobs.broker"),
    ("the checks of preflight are pure", "jobs/preflight/redis_checks.py", "import jobs.conf"),
    ("the checks of preflight are pure", "jobs/preflight/timeout_checks.py", "import redis"),
    ("the supervisor and the demo shop", "console/supervisor/violation.py", "import django.conf"),
    ("the supervisor and the demo shop", "console/demo/shop.py", "import jobs.models"),
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code that a test may break."""
    directory = tmp_path_factory.mktemp("contracts")
    for name in ("jobs", "console"):
        shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", directory)
    return directory


def lint(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=directory,
        # Its lines are looked for whole and plain, whatever the caller's terminal is.
        env={**os.environ, "COLUMNS": "250", "NO_COLOR": "1", "FORCE_COLOR": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_contracts_hold(copy: Path) -> None:
    done = lint(copy)

    assert done.returncode == 0, done.stdout
    assert f"Contracts: {len(CONTRACTS)} kept, 0 broken." in done.stdout


@pytest.mark.parametrize(("contract", "path", "code"), VIOLATIONS)
def test_contract_breaks_when_violated(copy: Path, contract: str, path: str, code: str) -> None:
    (name,) = [name for name in CONTRACTS if name.startswith(contract)]
    file = copy / path
    before = file.read_text() if file.exists() else None
    file.write_text(f"{before or ''}\n{code}\n")

    done = lint(copy)

    if before is None:
        file.unlink()
    else:
        file.write_text(before)
    assert done.returncode != 0
    assert f"{name} BROKEN" in done.stdout


def test_every_contract_has_a_violation() -> None:
    shown = {name for name in CONTRACTS for start, _, _ in VIOLATIONS if name.startswith(start)}

    assert shown == set(CONTRACTS)


def test_jobs_does_not_name_console_anywhere() -> None:
    """Not even in a string or a sentence: it can be installed without it."""
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / "jobs").rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if re.search(r"\bconsole\b", line, re.IGNORECASE)
    ]

    assert found == []


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_importing_jobs_imports_nothing_else() -> None:
    done = run_python(
        """
        import sys
        before = set(sys.modules)
        import jobs
        print(sorted(set(sys.modules) - before))
        """
    )

    assert done.stdout.strip() == "['jobs']", done.stderr


def test_the_agent_attaches_where_django_cannot_be_imported() -> None:
    done = run_python(
        """
        import sys

        class Refuse:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {"django", "psycopg", "console"}:
                    raise ModuleNotFoundError(f"{name} is not installed", name=name)

        sys.meta_path.insert(0, Refuse())
        from celery import Celery
        from jobs.agent import attach
        app = Celery("elsewhere", broker="memory://")
        attach(app)
        print(sorted({name.partition(".")[0] for name in sys.modules} & {"django", "psycopg", "console"}))
        """
    )

    assert done.stdout.strip() == "[]", done.stderr
