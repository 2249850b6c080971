"""A real RabbitMQ on free loopback ports, stopped by its own pid."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import amqp

from tests.servers import free_port, wait_until

SERVERS = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "/usr/sbin/rabbitmq-server")


class RabbitServer:
    """One broker with its data, Erlang cookie and port mapper in a directory and on ports of its own."""

    def __init__(self) -> None:
        self.port = free_port()
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
        distribution_port, mapper_port = free_port(), free_port()
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
            "RABBITMQ_DIST_PORT": str(distribution_port),
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

    def remove(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(timeout=20)
        self._stop_port_mapper()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _stop_port_mapper(self) -> None:
        """End the epmd that this node started: the one whose environment names our directory."""
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                if (entry / "comm").read_text().strip() == "epmd" and str(self.directory).encode() in (
                    entry / "environ"
                ).read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)


@contextlib.contextmanager
def rabbit_server() -> Iterator[RabbitServer]:
    """Start one, and remove it whatever happens."""
    server = RabbitServer()
    try:
        yield server.start()
    finally:
        server.remove()
