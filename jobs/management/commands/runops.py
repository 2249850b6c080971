"""The command ``manage.py runops``."""

from __future__ import annotations

import os
from typing import Any

from django.core.management.base import BaseCommand
from django.db import connection

from jobs.broker import connect
from jobs.checks import SETTINGS_TAG
from jobs.duties import all_duties
from jobs.runops import Runops


class Command(BaseCommand):
    """Carries out what no web request and no worker does."""

    help = (
        "Collects dead letters, carries out replays, purges and restores, relays the outbox, keeps the list of"
        " workers and deletes what is past its time. Several may run: each duty is done by one of them."
    )
    requires_system_checks = (SETTINGS_TAG,)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run until SIGTERM or SIGINT; the batch on its way is finished first, within 5 s."""
        runops = Runops()
        duties = ", ".join(duty.name for duty in all_duties())
        database = connection.settings_dict
        self.stdout.write(
            f"{runops.holder} started. Broker {connect().as_uri()}, database {connection.vendor}"
            f" {database['NAME']}. Duties: {duties}."
        )
        self.stdout.flush()
        if not runops.run():
            self.stderr.write("A duty did not end in time; it is taken over when its lease runs out.")
            self.stderr.flush()
            # Threads that hang would keep the interpreter; all that counts is in the database.
            os._exit(1)
        self.stdout.write(f"{runops.holder} stopped.")
