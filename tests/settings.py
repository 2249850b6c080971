"""The settings of the tests: those of the product, with a data directory of their own."""

import os
import tempfile

os.environ.setdefault("JOBS_DATA_DIR", tempfile.mkdtemp(prefix="jobs-tests-"))
os.environ.setdefault("SECRET_KEY", "only for tests")

from console.settings import *  # noqa: E402, F403

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
