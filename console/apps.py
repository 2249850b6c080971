"""The Django application of the console."""

from django.apps import AppConfig
from django.core import checks


class ConsoleConfig(AppConfig):
    """The web UI over the job runtime."""

    name = "console"
    verbose_name = "Console"
    # manage.py startjob writes into applications of the project only.
    takes_jobs = False

    def ready(self) -> None:
        """Write logins to the audit, and check what the site around it has set."""
        from console import sign_ins
        from console.checks import check_site

        sign_ins.connect()
        checks.register(check_site)
