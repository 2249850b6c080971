"""The Django application of the console."""

from django.apps import AppConfig


class ConsoleConfig(AppConfig):
    """The web UI over the job runtime."""

    name = "console"
    verbose_name = "Console"
