"""A real RabbitMQ on free loopback ports, stopped by its own pid: one's own, or a part of the one that all share."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import amqp

from tests.servers import free_port, living_in_group, wait_until
from tests.shared import find, made_once

SERVERS = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "/usr/sbin/rabbitmq-server")


class RabbitServer:
    """One broker with its data, Erlang cookie and port mapper in a directory and on ports of its own."""

    def __init__(self) -> None:
        self.port, self.distribution_port = free_port(), free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="jobs-rabbit-"))
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def start(self) -> RabbitServer:
        command = next((path for path in SERVERS if Path(path).exists()), None)
        if command is None:
            raise RuntimeError(
                "RabbitMQ is not installed, and these tests run on the real one. "
                "Install Debian's package rabbitmq-server (make test does, as root)."
            )
        mapper_port = free_port()
        config = self.directory / "rabbitmq.conf"
        config.write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            "disk_free_limit.absolute = 10MB\n"
            "loopback_users = none\n"
            "log.console = false\n"
        )
        name = f"jobs{self.port}@localhost"
        env = {
            **os.environ,
            "HOME": str(self.directory),
            "RABBITMQ_BASE": str(self.directory),
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_MNESIA_BASE": str(self.directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.directory / "log"),
            "RABBITMQ_PID_FILE": str(self.directory / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "plugins"),
            "RABBITMQ_NODENAME": name,
            "RABBITMQ_DIST_PORT": str(self.distribution_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 -start_epmd true",
            "ERL_EPMD_PORT": str(mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        with (self.directory / "out.log").open("ab") as output:
            self.process = subprocess.Popen(
                [command], env=env, stdout=output, stderr=output, start_new_session=True
            )
        wait_until(self.is_up, seconds=90, what=f"RabbitMQ to answer (see {self.directory}/out.log)")
        return self

    def is_up(self) -> bool:
        if self.process is not None and self.process.poll() is not None:
            raise RuntimeError(f"RabbitMQ ended at once: {(self.directory / 'out.log').read_text()[-2000:]}")
        with contextlib.suppress(OSError, amqp.exceptions.AMQPError):
            connection = amqp.Connection(f"127.0.0.1:{self.port}", connect_timeout=2)
            connection.connect()
            connection.close()
            return True
        return False

    def evaluate(self, command: str) -> None:
        """Carry out an Erlang expression that results in ``ok``."""
        _evaluate(command, directory=self.directory, distribution_port=self.distribution_port)

    def remove(self) -> None:
        if self.process is not None:
            _kill(self.process.pid)
            self.process.wait(timeout=20)
        _remove_data(self.directory)


def _kill(group: int) -> None:
    """Kill all processes of the node; return when none is left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    wait_until(lambda: not living_in_group(group), seconds=20, what="RabbitMQ to be gone")


def _remove_data(directory: Path) -> None:
    """Remove the directory of a node that has ended, and end the epmd that it started and left.

    That is the one whose environment names the directory.
    """
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if (entry / "comm").read_text().strip() == "epmd" and str(directory).encode() in (
                entry / "environ"
            ).read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
    shutil.rmtree(directory, ignore_errors=True)


def _evaluate(command: str, *, directory: Path, distribution_port: int) -> None:
    cookie = (directory / ".erlang.cookie").read_text()
    # A node lets no two in at a time that have one name, and erl_call's own choice of it is the same for all.
    name = f"tests{uuid.uuid4().hex}"
    done = subprocess.run(
        ["erl_call", "-h", name, "-c", cookie, "-address", f"127.0.0.1:{distribution_port}", "-e"],
        input=f"{command}.\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.stdout != "{ok, ok}":
        raise RuntimeError(f"RabbitMQ did not carry out {command}: {done.stdout}{done.stderr}")


@contextlib.contextmanager
def rabbit_server() -> Iterator[RabbitServer]:
    """Start one, and remove it whatever happens."""
    server = RabbitServer()
    try:
        yield server.start()
    finally:
        server.remove()


@dataclass(frozen=True)
class VirtualHost:
    """A part of a broker with exchanges, queues and messages of its own."""

    url: str


@dataclass(frozen=True)
class _Shared:
    """What the processes of a test run know of the broker that they share."""

    group: int
    port: int
    distribution_port: int
    directory: str

    def add_virtual_host(self, name: str) -> VirtualHost:
        """Make it, and let the user guest do everything in it.

        For each of the two rabbitmqctl would start a virtual machine of its own.
        """
        everything = '<<".*">>, <<".*">>, <<".*">>'
        command = (
            f'ok = rabbit_vhost:add(<<"{name}">>, <<"tests">>), '
            "ok = rabbit_auth_backend_internal:set_permissions("
            f'<<"guest">>, <<"{name}">>, {everything}, <<"tests">>)'
        )
        _evaluate(command, directory=Path(self.directory), distribution_port=self.distribution_port)
        return VirtualHost(f"amqp://guest:guest@127.0.0.1:{self.port}/{name}")


def virtual_host() -> VirtualHost:
    """Return an empty virtual host of the broker that all tests share.

    A start takes five seconds of processor time. What stops the broker, or needs it as it is set up by
    default, starts one of its own.
    """
    return _shared().add_virtual_host(uuid.uuid4().hex)


# Kept, or Python would warn of a process that nobody waits for.
_started: list[RabbitServer] = []


@functools.cache
def _shared() -> _Shared:
    return _read(made_once("rabbitmq", _start_shared))


def _start_shared(directory: Path) -> None:
    server = RabbitServer()
    _started.append(server)
    try:
        server.start()
        assert server.process is not None
        known = (server.process.pid, server.port, server.distribution_port, str(server.directory))
        (directory / "server").write_text(json.dumps(known))
    except BaseException:
        server.remove()
        raise


def _read(directory: Path) -> _Shared:
    return _Shared(*json.loads((directory / "server").read_text()))


def remove_shared() -> None:
    """Remove the shared broker, whichever process has started it."""
    directory = find("rabbitmq")
    if directory is not None:
        server = _read(directory)
        _kill(server.group)
        _remove_data(Path(server.directory))
