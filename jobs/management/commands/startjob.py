"""The command ``manage.py startjob``: a new job with its test, ready for review."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from jobs.errors import JobsError
from jobs.management.printing import escape_unknown
from jobs.startjob import Draft, choose_app, plan, write
from jobs.startjob.draft import QUEUES


class Command(BaseCommand):
    """Writes a job into an application's tasks, and its test beside."""

    help = (
        "Writes a new job with its test into one of your applications. Nothing is overwritten: a job is added to"
        " the application's tasks.py, or gets a module of its own in its tasks package."
    )
    # It must run while a project is being put together.
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the name and what the template leaves open."""
        parser.add_argument("name", metavar="NAME", help="shop.send_receipt, or send_receipt with --app shop")
        parser.add_argument("--app", metavar="APP", help="the application, by its label or its module")
        parser.add_argument(
            "--queue", choices=QUEUES, default="default", help="where it waits (default: default)"
        )
        parser.add_argument(
            "--key",
            metavar="TEMPLATE",
            help="the idempotency key over the job's arguments, for instance 'receipt:{order_id}'",
        )

    def handle(self, *args: Any, name: str, app: str | None, queue: str, key: str | None, **_: Any) -> None:
        """Write the files, and say what to do next."""
        escape_unknown()
        wanted, _dot, name = name.rpartition(".")
        # As the task will be called: shop.tasks.send_receipt.
        wanted = wanted.removesuffix(".tasks")
        try:
            if wanted and app and wanted != app:
                raise JobsError(
                    f"Cannot tell where to write {name}: the name says {wanted}, --app says {app}. Give one of them."
                )
            draft = Draft.make(name, key=key, queue=queue)
            config = choose_app(app or wanted or None, job=name)
            changes = plan(draft, config)
            write(changes)
        except JobsError as error:
            raise CommandError(str(error)) from error
        for change in changes:
            verb = "wrote" if change.is_new else "added to"
            self.stdout.write(f"{verb} {_shown(change.path)}, line {change.line}")
        test = _shown(changes[-1].path)
        self.stdout.write(
            f"Now put its work into _{draft.name}, and run its test:\n"
            f"  python manage.py test {config.name}\n"
            f"or, with pytest-django installed:\n"
            f"  pytest {test}"
        )


def _shown(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
