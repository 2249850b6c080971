"""The Django application of the job runtime."""

from django.apps import AppConfig


class JobsConfig(AppConfig):
    """Registers the models, the roles and the system checks."""

    name = "jobs"
    label = "jobs"
    verbose_name = "Jobs"
    default_auto_field = "django.db.models.BigAutoField"
