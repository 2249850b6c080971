"""A small shop whose jobs really fail, until its bugs are fixed."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from django.utils import timezone

from console import stack
from console.demo.programs import programs
from console.demo.releases import mark_release
from console.demo.state import Demo
from console.supervisor import AlreadyRunning, Output, Supervisor
from jobs.audit import Actor
from jobs.core.words import LetterState
from jobs.models import DeadLetter
from jobs.runops import StopRequest

AFTER_THE_FIX = (
    "The bugs are fixed. The shop's worker starts again with the mended code; then a replay succeeds.\n"
    "One kind stays dead: a message whose body was cut off. No code can read it, so purge it."
)
AFTER_THE_BREAK = "The bugs are back. The shop's worker starts again with them."


class Command(BaseCommand):
    """``manage.py demo``."""

    help = (
        "Runs a small shop next to `manage.py up`: real jobs, of which some succeed and some fail in every "
        "way a job can. --fix and --break mend its bugs and bring them back. Ctrl-C stops it."
    )

    # `manage.py up` has just checked the same; this saves the demo a second.
    requires_system_checks = ()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        choice = parser.add_mutually_exclusive_group()
        choice.add_argument(
            "--fix", action="store_true", help="fix the shop's bugs, so that a replay succeeds"
        )
        choice.add_argument("--break", action="store_true", dest="back", help="bring the bugs back")
        # The program that sends the jobs; started by the command itself and by `up --demo`.
        choice.add_argument("--traffic", action="store_true", help=argparse.SUPPRESS)

    def handle(self, *args: Any, **options: Any) -> None:
        """Switch the bugs, or run the shop."""
        demo = Demo.of(Path(settings.DATA_DIR))
        if options["fix"] or options["back"]:
            self._switch(demo, fixed=options["fix"])
        elif options["traffic"]:
            self._send(demo)
        else:
            self._run(demo)

    def _switch(self, demo: Demo, *, fixed: bool) -> None:
        if not demo.switch(fixed=fixed):
            self.stdout.write("The bugs are fixed already." if fixed else "The bugs are there already.")
        else:
            mark_release(fixed=fixed, actor=Actor(name="manage.py demo"), now=timezone.now())
            self.stdout.write(AFTER_THE_FIX if fixed else AFTER_THE_BREAK)
        if not demo.is_running:
            self.stdout.write(
                "The demo is not running now. Start it: manage.py demo, or manage.py up --demo."
            )

    def _run(self, demo: Demo) -> None:
        """Run the shop's worker and its traffic until Ctrl-C."""
        if demo.is_running:
            raise CommandError("The demo is already running, perhaps in `manage.py up --demo`.")
        stack.check_broker()
        output = Output(sys.stdout, colour=stack.wants_colour())
        environment = stack.environment(broker_url=str(settings.BROKER_URL))
        parts = programs(demo, environment, sender_stop=stack.SENDER_STOP, worker_stop=stack.WORKER_STOP)
        ending = Supervisor(output).run([lambda: parts])
        if not ending.is_clean:
            raise SystemExit(1)

    def _send(self, demo: Demo) -> None:
        """Send jobs until SIGTERM."""
        # It reads the shop's environment when it is imported, which only this program has.
        from console.demo.traffic import Traffic

        lock = demo.lock()
        try:
            lock.acquire()
        except AlreadyRunning as error:
            raise CommandError(str(error)) from error
        stop = StopRequest()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop.set)
        try:
            Traffic(demo, count_letters=count_letters).run(stop, say=self._say)
        finally:
            lock.release()

    def _say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()


def count_letters() -> tuple[int, int]:
    """Return how many letters of the shop are dead, and how many there are in any state."""
    letters = DeadLetter.objects.filter(task__startswith="shop.tasks.")
    counts = letters.filter(state=LetterState.DEAD).count(), letters.count()
    connection.close()
    return counts
