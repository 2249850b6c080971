"""The Django application of the console."""

import importlib

from django.apps import AppConfig
from django.conf import settings
from django.core import checks


class ConsoleConfig(AppConfig):
    """The web UI over the job runtime."""

    name = "console"
    verbose_name = "Console"
    # manage.py startjob writes into applications of the project only.
    takes_jobs = False

    def ready(self) -> None:
        """Write logins to the audit, check what the site around it has set, and be the project of a checkout."""
        from console import sign_ins
        from console.checks import check_site

        sign_ins.connect()
        checks.register(check_site)
        if getattr(settings, "SETTINGS_MODULE", "") == "console.settings":
            # Elsewhere the site has a Celery application of its own. In a checkout jobs have this one, and a
            # command or a shell has to send through it too, or Celery looks for a RabbitMQ on this machine.
            importlib.import_module("console.celery")
