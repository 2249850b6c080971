"""The Django application of the console."""

from django.apps import AppConfig


class ConsoleConfig(AppConfig):
    """The web UI over the job runtime."""

    name = "console"
    verbose_name = "Console"

    def ready(self) -> None:
        """Write logins to the audit."""
        from console import sign_ins

        sign_ins.connect()
