"""The settings of the tests: those of the product, with a data directory of their own."""

import os
import tempfile

os.environ.setdefault("JOBS_DATA_DIR", tempfile.mkdtemp(prefix="jobs-tests-"))
os.environ.setdefault("SECRET_KEY", "only for tests")
# Workers of tests use timeouts of a few seconds; tests/preflight starts its own without this.
os.environ.setdefault("JOBS_PREFLIGHT", "warn")
# Workers would load every page to check it, and throw the result away; one of tests/preflight does it all the same.
os.environ.setdefault("CELERY_SKIP_CHECKS", "true")
# pytest-playwright keeps a loop running in the main thread once a browser was asked for; Django
# would take every later test for an asynchronous view and refuse it the database.
os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "true")

from console.settings import *  # noqa: F403

if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":  # noqa: F405
    # In a file, as in production: threads that share a database in memory lock each other's tables.
    DATABASES["default"]["TEST"] = {"NAME": DATA_DIR / "test.sqlite3"}  # noqa: F405

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

# Each client of a test makes the middleware anew, which would look through all static files each time.
WHITENOISE_AUTOREFRESH = True
