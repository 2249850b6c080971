"""The WSGI entry point."""

import gc
import os

from django.core.wsgi import get_wsgi_application
from django.urls import get_resolver

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")

application = get_wsgi_application()

# The admin lists the tasks of the current application and sends through it.
from console import celery  # noqa: E402, F401

# All pages now, not with the first request to each worker process, which would wait for them.
_ = get_resolver().url_patterns

# What is loaded by now stays. Looked through again and again by the collector of garbage it would cost one page
# in eight 80 ms.
gc.freeze()
