"""The WSGI entry point."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")

application = get_wsgi_application()

# The admin lists the tasks of the current application and sends through it.
from console import celery  # noqa: E402, F401
