"""Starts everything on one machine: web, worker, beat, runops, and a Redis when there is none."""

from __future__ import annotations

import argparse
import errno
import os
import socket
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from console.first_login import USERNAME
from console.stack import Stack
from console.supervisor import AlreadyRunning, DataLock

# How long a killed predecessor's programs may take to go.
LOCK_WAIT_SECONDS = 12


class Command(BaseCommand):
    """``manage.py up``."""

    help = (
        "Starts the console, a worker, beat and runops, with an embedded Redis when BROKER_URL is unset "
        "and SQLite when DATABASE_URL is unset. Ctrl-C stops all of them within 10 seconds."
    )
    # The migrations run in a program of their own; a check of the database has to wait for them.
    requires_system_checks = ()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--host", default="127.0.0.1", help="address of the console (%(default)s)")
        parser.add_argument(
            "--port",
            type=port_number,
            default=8000,
            help="port of the console, 0 for a free one (%(default)s)",
        )
        parser.add_argument("--app", default="console", help="Celery application to run (%(default)s)")
        parser.add_argument(
            "--concurrency",
            type=int,
            default=max(2, min(os.cpu_count() or 2, 8)),
            help="jobs the worker runs at a time (%(default)s)",
        )
        parser.add_argument("--no-worker", action="store_true", help="start no worker")
        parser.add_argument("--no-beat", action="store_true", help="start no beat")
        parser.add_argument("--demo", action="store_true", help="start a small shop whose jobs really fail")
        parser.add_argument(
            "--first-login",
            action="store_true",
            help=f"create the user {USERNAME!r} and print its password, when there is no user yet",
        )

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Keep Django's colours out of it: each program's output has its own."""
        options["no_color"] = True
        return super().execute(*args, **options)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run until Ctrl-C, or until a program dies: exit status 0 or 1."""
        directory = Path(settings.DATA_DIR)
        lock = DataLock(directory / "up.lock")
        try:
            listener = listen(options["host"], options["port"])
            lock.acquire(wait_seconds=LOCK_WAIT_SECONDS)
        except AlreadyRunning as error:
            raise CommandError(str(error)) from error
        except OSError as error:
            raise CommandError(
                f"{directory} cannot be written: {error.strerror}. Set JOBS_DATA_DIR."
            ) from error
        try:
            ending = Stack(options, directory, listener, lock.fd).run()
        finally:
            lock.release()
            listener.close()
        if not ending:
            raise SystemExit(1)


def port_number(text: str) -> int:
    """Read a port."""
    if not text.isdigit() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port. Give a number from 0 to 65535.")
    return int(text)


def listen(host: str, port: int) -> socket.socket:
    """Open the console's socket, so that no other process can take the port in between."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        if port and error.errno == errno.EADDRINUSE:
            raise CommandError(
                f"Port {port} on {host} is taken by another process. Stop that one, or choose another port: "
                f"manage.py up --port {port + 1}."
            ) from error
        raise CommandError(f"Cannot listen on {host}, port {port}: {error.strerror}.") from error
