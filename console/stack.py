"""The programs of ``manage.py up``, and how they depend on each other."""

from __future__ import annotations

import os
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError
from django.db import connections
from kombu.utils.url import maybe_sanitize_url

from console import redis_server
from console.demo.programs import programs as demo_programs
from console.demo.state import Demo
from console.first_login import USERNAME, create_first_login
from console.supervisor import Output, Program, Supervisor
from console.supervisor.stopping import StopRule
from jobs.broker import connect

# All is over within 10 s. Beat first, so that nothing new is sent; then the workers, whose jobs get
# time to finish and go back to the broker when they do not; Redis last, it holds what the others wrote.
# On a busy machine the end of an interpreter takes a second by itself.
SENDER_STOP = StopRule(stage=0, kill_after_seconds=2.5)
BEAT_STOP = StopRule(stage=0, kill_after_seconds=2.5, repeat_every_seconds=0.7)
# Giving jobs back takes Celery 1 to 2 s by itself, and nearly 3 s where a dozen processes share each core. Killed
# amid that, it would leave them with the broker as taken, for an hour.
WORKER_STOP = StopRule(stage=1, quit_after_seconds=3.5, kill_after_seconds=7.4)
SERVICE_STOP = StopRule(stage=2, kill_after_seconds=8.8)
REDIS_STOP = StopRule(stage=3, kill_after_seconds=9.6)


class Stack:
    """The programs of one ``up`` and how they depend on each other."""

    def __init__(
        self, options: dict[str, Any], directory: Path, listener: socket.socket, lock_fd: int
    ) -> None:
        self._options = options
        self._directory = directory
        self._listener = listener
        self._address = console_address(listener)
        self._output = Output(sys.stdout, colour=wants_colour())
        self._supervisor = Supervisor(self._output, guard_fds=(lock_fd,))
        self._redis: redis_server.EmbeddedRedis | None = None
        self._password: str | None = None

    def run(self) -> bool:
        """Run all phases; return whether the end was asked for and nothing had to be killed."""
        ending = self._supervisor.run([self.start_storage, self.start_services, self.announce])
        if ending.killed:
            self._output.complain(f"Killed, because they did not stop in time: {', '.join(ending.killed)}.")
        if ending.is_clean:
            self._output.say("Everything stopped.")
        return ending.is_clean

    def start_storage(self) -> list[Program]:
        """Bring up Redis, and the tables."""
        programs = []
        if wants_redis():
            self._redis, notice = redis_server.prepare(self._directory)
            if notice:
                self._output.complain(notice)
            programs.append(self._redis_program(self._redis))
        else:
            check_broker()
        programs.append(self._program("migrate", django("migrate", "--no-input"), SERVICE_STOP, once=True))
        return programs

    def start_services(self) -> list[Program]:
        """Bring up everything that needs the tables and the broker."""
        if self._options["first_login"]:
            self._password = create_first_login()
            connections.close_all()
        programs = [
            self._web_program(),
            self._program("runops", django("runops"), SERVICE_STOP),
        ]
        celery = python("celery", "-A", self._options["app"])
        if not self._options["no_worker"]:
            worker = (
                *celery,
                "worker",
                "--loglevel=INFO",
                # Another application's worker on this machine may be called celery@….
                "--hostname=console@%h",
                f"--concurrency={self._options['concurrency']}",
            )
            programs.append(self._program("worker", worker, WORKER_STOP))
        if not self._options["no_beat"]:
            scheduler = "django_celery_beat.schedulers:DatabaseScheduler"
            beat = (*celery, "beat", "--loglevel=INFO", "--pidfile=", f"--scheduler={scheduler}")
            programs.append(self._program("beat", beat, BEAT_STOP))
        if self._options["demo"]:
            programs += demo_programs(
                Demo.of(self._directory), self._environment, sender_stop=SENDER_STOP, worker_stop=WORKER_STOP
            )
        return programs

    def announce(self) -> list[Program]:
        """Say where everything is."""
        # Its password is known to who set it, and has no place in a log or in a list of processes.
        url = broker_words(self._broker_url)
        lines = [
            "",
            f"The console answers at  {self._address}/",
            f"The broker is           {url}",
            "",
            "Any Celery application can attach to it. In the application:",
            "    from jobs.agent import attach; attach(app)",
            "and its worker:",
            f"    celery -A yourapp --broker {url} worker",
        ]
        if self._password is not None:
            lines += [
                "",
                f"Sign in as {USERNAME!r} with the password  {self._password}",
                f"It is shown only now. Change it with `manage.py changepassword {USERNAME}`.",
            ]
        lines += ["", "Ctrl-C stops everything.", ""]
        self._output.say("\n".join(lines))
        return []

    @property
    def _environment(self) -> dict[str, str]:
        return environment(broker_url=self._broker_url, console_url=self._address)

    @property
    def _broker_url(self) -> str:
        return self._redis.url if self._redis is not None else str(settings.BROKER_URL)

    def _program(self, name: str, command: tuple[str, ...], stop: StopRule, *, once: bool = False) -> Program:
        return Program(
            name=name,
            command=command,
            stop=stop,
            environment=self._environment,
            once=once,
            ready_seconds=3600 if once else 60,
        )

    def _redis_program(self, server: redis_server.EmbeddedRedis) -> Program:
        return Program(
            name="redis",
            command=server.command,
            stop=REDIS_STOP,
            environment=os.environ,
            input=server.configuration,
            is_ready=server.answers,
            # A large append-only file takes a while to load.
            ready_seconds=300,
        )

    def _web_program(self) -> Program:
        """Serve the project's WSGI application on the socket that is open already."""
        module, _, name = str(settings.WSGI_APPLICATION).rpartition(".")
        fd = self._listener.fileno()
        command = [
            *python("gunicorn", f"{module}:{name}", "--bind", f"fd://{fd}", "--worker-class", "gthread"),
            *("--workers", "2", "--threads", "4", "--timeout", "60", "--graceful-timeout", "1"),
            *("--no-control-socket", "--log-level", "warning"),
            # Loaded once and shared, not once a worker process; but what is shared cannot be loaded again.
            "--reload" if settings.DEBUG else "--preload",
        ]
        return Program(
            name="web",
            command=tuple(command),
            stop=SERVICE_STOP,
            environment=self._environment,
            pass_fds=(fd,),
            is_ready=lambda: answers(self._address),
        )


def python(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command that runs a module with this Python."""
    return (sys.executable, "-m", module, *arguments)


def django(command: str, *arguments: str) -> tuple[str, ...]:
    """Return the command that runs a Django command."""
    return python("django", command, *arguments)


def environment(*, broker_url: str, console_url: str | None = None) -> dict[str, str]:
    """Return what every program of the project gets."""
    values = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PYTHONUNBUFFERED": "1",
        "DJANGO_SETTINGS_MODULE": os.environ["DJANGO_SETTINGS_MODULE"],
        "BROKER_URL": broker_url,
    }
    # The stop rules say how long jobs may take; Celery's own pause would only add to it.
    values["JOBS_SOFT_SHUTDOWN_SECONDS"] = "0"
    # A worker throws the result of Django's checks away, for which it would load every page; migrate has told it.
    values["CELERY_SKIP_CHECKS"] = "true"
    # Where an agent keeps dead letters while the broker is away: with the other data.
    values.setdefault("JOBS_SPOOL_DIRECTORY", str((Path(settings.DATA_DIR) / "spool").resolve()))
    if console_url is not None:
        values.setdefault("CONSOLE_URL", console_url)
    # Celery would let these win over the settings.
    for name in ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL"):
        values.pop(name, None)
    return values


def broker_words(url: str) -> str:
    """Return a broker's URL as it may be shown: with stars for a password."""
    return ";".join(maybe_sanitize_url(each) if "@" in each else each for each in url.split(";"))


def wants_redis() -> bool:
    """Say whether no broker is given; a project with settings of its own gives one there."""
    return bool(getattr(settings, "BROKER_IS_EMBEDDED", not getattr(settings, "BROKER_URL", "")))


def wants_colour() -> bool:
    """Say whether standard output is a terminal whose user did not ask for plain text."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def console_address(listener: socket.socket) -> str:
    """Return the address to open in a browser."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)  # noqa: S104
    return f"http://[{host}]:{port}" if ":" in host and not host.startswith("[") else f"http://{host}:{port}"


def answers(address: str) -> bool:
    """Say whether the console answers, with whatever status."""
    try:
        with urllib.request.urlopen(f"{address}/healthz", timeout=1):  # noqa: S310 (our own address)
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def check_broker() -> None:
    """Refuse to start on a broker that does not answer."""
    connection = connect()
    try:
        connection.ensure_connection(max_retries=1, timeout=5)
    except Exception as error:
        raise CommandError(
            f"The broker {connection.as_uri()} does not answer: {error}. "
            "Start it, or unset BROKER_URL to use the embedded Redis."
        ) from error
    finally:
        connection.release()
