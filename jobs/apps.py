"""The Django application of the job runtime."""

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class JobsConfig(AppConfig):
    """Registers the models, the roles and the system checks."""

    name = "jobs"
    label = "jobs"
    verbose_name = "Jobs"
    default_auto_field = "django.db.models.BigAutoField"
    # manage.py startjob writes into applications of the project only.
    takes_jobs = False

    def ready(self) -> None:
        """Make the roles whenever migrate has run."""
        from jobs.roles import create_roles

        post_migrate.connect(create_roles, dispatch_uid="jobs.roles")
