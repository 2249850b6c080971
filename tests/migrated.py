"""Databases with the product's tables, made once a test run; each test that needs one gets a copy."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.shared import made_once

ROOT = Path(__file__).resolve().parent.parent
# What would send the command to another database, or to settings of a test.
FOREIGN = ("JOBS_", "CELERY_", "DJANGO_", "BROKER_", "DATABASE_")


def migrated_database(path: Path) -> Path:
    """Write the file that ``manage.py migrate`` makes, in a fiftieth of its time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(made_once("migrated", _make) / "console.sqlite3", path)
    path.chmod(0o600)
    return path


def migrate(database_url: str) -> None:
    """Run ``manage.py migrate`` on an empty database."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    subprocess.run(
        [sys.executable, "manage.py", "migrate", "--verbosity", "0"],
        env={
            **kept,
            "DATABASE_URL": database_url,
            "JOBS_DATA_DIR": str(_directory()),
            "SECRET_KEY": "only for tests",
        },
        cwd=ROOT,
        check=True,
        timeout=120,
    )


def _make(directory: Path) -> None:
    path = directory / "console.sqlite3"
    migrate(f"sqlite:///{path}")
    # All is in the one file that is copied: the last connection that closes empties the log.
    assert not path.with_name(f"{path.name}-wal").exists()


@functools.cache
def _directory() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="jobs-migrated-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory
