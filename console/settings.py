"""Every setting comes from the environment and has a default that works from a checkout.

docs/settings.md describes each one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import tempfile
from email.utils import parseaddr
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import dj_database_url
from django.core.exceptions import ImproperlyConfigured

from console.email_url import email_settings

BASE_DIR = Path(__file__).resolve().parent.parent


def env(name: str, default: str = "") -> str:
    """Read ``name``, or the content of the file that ``name``_FILE points at, as secrets are given."""
    if path := os.environ.get(f"{name}_FILE"):
        try:
            return Path(path).read_text().strip()
        except OSError as error:
            raise ImproperlyConfigured(
                f"{name}_FILE={path!r} cannot be read ({error.strerror}). Point it at a readable file."
            ) from error
    return os.environ.get(name, default)


def env_bool(name: str, *, default: bool) -> bool:
    """Read a switch."""
    value = env(name, "true" if default else "false").strip().lower()
    if value in {"1", "true", "yes", "on"}:
        return True
    if value in {"0", "false", "no", "off", ""}:
        return False
    raise ImproperlyConfigured(f"{name}={value!r} is not a switch. Use true or false.")


def env_float(name: str, default: float, *, may_be_zero: bool = False) -> float:
    """Read a number above zero, or from zero on."""
    value = env(name, str(default))
    try:
        number = float(value)
    except ValueError:
        raise ImproperlyConfigured(
            f"{name}={value!r} is not a number. Write for instance {default}."
        ) from None
    if may_be_zero and number == 0:
        return 0
    if not 0 < number < float("inf"):
        raise ImproperlyConfigured(f"{name}={value!r} must be above zero. Write for instance {default}.")
    return number


def env_choice(name: str, choices: tuple[str, ...], default: str) -> str:
    """Read one of a few words."""
    value = env(name, default).strip().upper()
    if value not in choices:
        raise ImproperlyConfigured(f"{name}={value!r} is not known. Use one of {', '.join(choices)}.")
    return value


def env_list(name: str, default: str = "") -> list[str]:
    """Read a list separated by commas."""
    return [item.strip() for item in env(name, default).split(",") if item.strip()]


def env_object(name: str) -> dict[str, Any]:
    """Read an object written as JSON; what is in it is checked where it is used."""
    value = env(name).strip()
    if not value:
        return {}
    try:
        read = json.loads(value)
    except ValueError:
        read = None
    if not isinstance(read, dict):
        raise ImproperlyConfigured(
            f'{name}={value!r} is not an object in JSON. Write for instance {{"max_attempts": 3}}.'
        )
    return read


DATA_DIR = Path(env("JOBS_DATA_DIR", str(BASE_DIR / "data")))
DEBUG = env_bool("DEBUG", default=False)


def secret_key() -> str:
    """Return SECRET_KEY, or one made once and kept under the data directory."""
    if key := env("SECRET_KEY"):
        return key
    path = DATA_DIR / "secret-key"
    try:
        if not path.exists():
            DATA_DIR.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.NamedTemporaryFile("w", dir=DATA_DIR, prefix=".secret-key-") as file:
                file.write(secrets.token_urlsafe(50))
                file.flush()
                # Of several processes that start at once one makes the link, whole; the others read it.
                with contextlib.suppress(FileExistsError):
                    os.link(file.name, path)
        return path.read_text().strip()
    except OSError as error:
        raise ImproperlyConfigured(
            f"SECRET_KEY is not set and {path} cannot be used ({error.strerror}). "
            "Set SECRET_KEY, or point JOBS_DATA_DIR at a directory that can be written."
        ) from error


SECRET_KEY = secret_key()


def console_url() -> SplitResult:
    """Read where people reach the console."""
    value = env("CONSOLE_URL", "http://127.0.0.1:8000")
    parts = urlsplit(value.rstrip("/"))
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ImproperlyConfigured(
            f"CONSOLE_URL={value!r} is not the address of a page. Write for instance https://jobs.example."
        )
    return parts


_console = console_url()
CONSOLE_URL = _console.geturl()
CSRF_TRUSTED_ORIGINS = [f"{_console.scheme}://{_console.netloc}"]
_console_host = f"[{_console.hostname}]" if ":" in (_console.hostname or "") else str(_console.hostname)
ALLOWED_HOSTS = [*env_list("ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]"), _console_host]
ENVIRONMENT_NAME = env("JOBS_ENVIRONMENT", "local")


def mail_settings() -> dict[str, Any]:
    """Read EMAIL_URL."""
    try:
        return email_settings(env("EMAIL_URL"))
    except ValueError as error:
        raise ImproperlyConfigured(str(error)) from None


def mail_sender() -> str:
    """Read from whom mails come; an address of its own where CONSOLE_URL has the name of a host."""
    if sender := env("EMAIL_FROM"):
        if not parseaddr(sender)[1].count("@") == 1 or not sender.isprintable():
            raise ImproperlyConfigured(
                f"EMAIL_FROM={sender!r} is not an e-mail address. Write for instance Jobs <jobs@shop.example>."
            )
        return sender
    host = str(_console.hostname)
    # A bare address of a machine stands in brackets in mails, which many servers refuse.
    is_name = "." in host and ":" not in host and not host.rpartition(".")[2].isdigit()
    return f"Dead Letter Office <dead-letter-office@{host if is_name else 'localhost'}>"


# How alerts are mailed. Without EMAIL_URL nobody is, and the pages say so.
for _name, _value in mail_settings().items():
    globals()[_name] = _value
DEFAULT_FROM_EMAIL = mail_sender()


def alert_emails() -> list[str]:
    """Read who is told of alerts whose rule names nobody."""
    addresses = env_list("ALERT_EMAILS")
    for address in addresses:
        if address.count("@") != 1 or address.startswith("@") or address.endswith("@") or " " in address:
            raise ImproperlyConfigured(
                f"ALERT_EMAILS names {address!r}, which is not an e-mail address."
                " Write addresses separated by commas: oncall@shop.example, lead@shop.example."
            )
    return addresses


ALERT_EMAILS = alert_emails()
JOBS_ALERT_EVERY_SECONDS = env_float("JOBS_ALERT_EVERY_SECONDS", 5)


def own_apps() -> list[str]:
    """Read JOBS_APPS. A name that cannot be imported would stop every command with a traceback."""
    names = env_list("JOBS_APPS")
    for name in names:
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            raise ImproperlyConfigured(
                f"JOBS_APPS names {name!r}, which cannot be imported. Mend the name, or make the application "
                f"while JOBS_APPS is empty: python manage.py startapp {name}."
            )
    return names


INSTALLED_APPS = [
    "jobs",
    "console",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "django_celery_beat",
    "django_htmx",
    # A new project's own, whose tasks the worker then finds.
    *own_apps(),
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "console.security.ContentSecurityPolicyMiddleware",
    "console.static_files.StaticFilesMiddleware",
    # Below the static files, which are compressed once. docs/decisions.md says why compressed pages give nothing away.
    "django.middleware.gzip.GZipMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "console.security.LoginMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]

ROOT_URLCONF = "console.site_urls"
WSGI_APPLICATION = "console.wsgi.application"

TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        # console/templates is a link to templates/, so that another project finds them too.
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "console.shell.context",
                "console.demo.switch.context",
            ],
        },
    }
]


def database() -> dj_database_url.DBConfig:
    """Read DATABASE_URL. What is wrong is said without the value: it holds a password."""
    try:
        return dj_database_url.parse(
            env("DATABASE_URL") or f"sqlite:///{DATA_DIR / 'console.sqlite3'}", conn_max_age=60
        )
    except ValueError as error:
        raise ImproperlyConfigured(
            "DATABASE_URL cannot be read. Write for instance postgres://user:password@host:5432/name."
        ) from error


DATABASES = {"default": database()}
# One writer at a time: take the lock when the transaction begins, wait for it, and let readers go on.
SQLITE_OPTIONS = {
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA cache_size=-65536;"
    # Pages: a replay writes as many in a few batches, and each checkpoint waits for the disk twice.
    " PRAGMA wal_autocheckpoint=4000;",
}
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    DATABASES["default"]["OPTIONS"] = dict(SQLITE_OPTIONS)

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("MinimumLengthValidator", "CommonPasswordValidator", "NumericPasswordValidator")
]
AUTHENTICATION_BACKENDS = [
    # First, so that it can refuse before a password is looked at.
    "console.throttle.LoginThrottle",
    "django.contrib.auth.backends.ModelBackend",
]
LOGIN_URL = "console:login"
LOGIN_REDIRECT_URL = "console:overview"
LOGOUT_REDIRECT_URL = "console:login"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = CONSOLE_URL.startswith("https://")
X_FRAME_OPTIONS = "DENY"

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = False

STATIC_URL = "static/"
# The files are served where they lie, so there is nothing to collect.
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "console.static_files.VersionedStorage"},
}
STATICFILES_FINDERS = [
    "django.contrib.staticfiles.finders.FileSystemFinder",
    "django.contrib.staticfiles.finders.AppDirectoriesFinder",
    "console.static_files.PlotlyFinder",
]
WHITENOISE_USE_FINDERS = True


def whole_files(headers: Any, path: str, url: str) -> None:
    """Tell browsers not to ask for the rest of a file: the download that somebody left would be answered with 416."""
    headers["Accept-Ranges"] = "none"


WHITENOISE_ADD_HEADERS_FUNCTION = whole_files


def embedded_broker_url() -> str:
    """Return where `manage.py up` last ran its own Redis, so that commands beside it find it."""
    try:
        return (DATA_DIR / "broker-url").read_text().strip()
    except FileNotFoundError:
        return "redis://127.0.0.1:6390/0"


# Empty means that `manage.py up` runs a Redis of its own.
BROKER_IS_EMBEDDED = not env("BROKER_URL")
BROKER_URL = env("BROKER_URL") or embedded_broker_url()
# How long one read or write may take, in seconds. Without a bound a publish to a broker that accepts
# and never answers hangs for ever; a Redis that is busy with its disk may well take a few seconds.
BROKER_SOCKET_TIMEOUT_SECONDS = 10


def broker_transport_options(url: str) -> dict[str, Any]:
    """Return what a broker of this kind needs so that no message is lost and no call hangs."""
    # "sentinel://a;sentinel://b" and "redis+socket://" are Redis too.
    kind = url.partition(":")[0].partition("+")[0].lower()
    if kind in {"redis", "rediss", "sentinel"}:
        return {
            # Longer than the longest job: see docs/preflight.md.
            "visibility_timeout": env_float("JOBS_VISIBILITY_TIMEOUT_SECONDS", 3600),
            "socket_timeout": BROKER_SOCKET_TIMEOUT_SECONDS,
            "socket_connect_timeout": 5,
            # A connection that a firewall forgot is found out, also while nobody uses it.
            "socket_keepalive": True,
            "health_check_interval": 25,
        }
    if kind in {"amqp", "amqps", "pyamqp"}:
        return {
            # Without, a message that the broker does not take is lost in silence.
            "confirm_publish": True,
            "read_timeout": BROKER_SOCKET_TIMEOUT_SECONDS,
            "write_timeout": BROKER_SOCKET_TIMEOUT_SECONDS,
        }
    return {}


BROKER_TRANSPORT_OPTIONS = broker_transport_options(BROKER_URL)


def redis_url() -> str:
    """Read where rates and concurrencies are kept. What is wrong is said without the value: it may hold a password."""
    value = env("REDIS_URL")
    if value and not value.startswith(("redis://", "rediss://", "unix://")):
        raise ImproperlyConfigured(
            "REDIS_URL is not the address of a Redis. Write for instance redis://127.0.0.1:6379/1, "
            "or leave it out when BROKER_URL is a Redis."
        )
    return value


# Empty means the broker's, when that is a Redis.
REDIS_URL = redis_url()

JOBS_PURGE_DEADLINE_DAYS = env_float("JOBS_PURGE_DEADLINE_DAYS", 7)
JOBS_RESOLVED_RETENTION_DAYS = env_float("JOBS_RESOLVED_RETENTION_DAYS", 30)
JOBS_OUTCOME_TIMEOUT_HOURS = env_float("JOBS_OUTCOME_TIMEOUT_HOURS", 6)
JOBS_LEASE_SECONDS = env_float("JOBS_LEASE_SECONDS", 10)
JOBS_SOFT_SHUTDOWN_SECONDS = env_float("JOBS_SOFT_SHUTDOWN_SECONDS", 10, may_be_zero=True)
JOBS_MASKED_KEYS = env_list("JOBS_MASKED_KEYS")
JOBS_POLICIES = env_object("JOBS_POLICIES")
JOBS_PREFLIGHT = env_choice("JOBS_PREFLIGHT", ("REFUSE", "WARN", "OFF"), "REFUSE").lower()
JOBS_RABBITMQ_CONSUMER_TIMEOUT_SECONDS = env_float("JOBS_RABBITMQ_CONSUMER_TIMEOUT_SECONDS", 1800)

# The aliases of databases whose outbox is relayed.
JOBS_OUTBOX_DATABASES = env_list("JOBS_OUTBOX_DATABASES", "default")
JOBS_OUTBOX_MAX_ATTEMPTS = int(env_float("JOBS_OUTBOX_MAX_ATTEMPTS", 8))
JOBS_OUTBOX_TIMEOUT_SECONDS = env_float("JOBS_OUTBOX_TIMEOUT_SECONDS", 1)
JOBS_OUTBOX_GRACE_SECONDS = env_float("JOBS_OUTBOX_GRACE_SECONDS", 15)
JOBS_OUTBOX_RETENTION_HOURS = env_float("JOBS_OUTBOX_RETENTION_HOURS", 24)
JOBS_IDEMPOTENCY_RETENTION_DAYS = env_float("JOBS_IDEMPOTENCY_RETENTION_DAYS", 30)

# Finished attempts, each with its times; counts are kept apart and longer.
JOBS_RUN_RETENTION_HOURS = env_float("JOBS_RUN_RETENTION_HOURS", 24)
JOBS_RUN_CAP = int(env_float("JOBS_RUN_CAP", 1000000))


def metrics_token() -> str:
    """Read the token with which Prometheus may read /metrics; empty means that a login is needed."""
    token = env("METRICS_TOKEN").strip()
    if token and (len(token) < 16 or not token.isascii() or any(sign.isspace() for sign in token)):
        raise ImproperlyConfigured(
            "METRICS_TOKEN must be at least 16 characters, ASCII and without blanks. "
            'Make one: python -c "import secrets; print(secrets.token_urlsafe(32))".'
        )
    return token


METRICS_TOKEN = metrics_token()

CELERY_BEAT_SCHEDULER = "django_celery_beat.schedulers:DatabaseScheduler"
DJANGO_CELERY_BEAT_TZ_AWARE = True

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "root": {"handlers": ["console"], "level": env_choice("JOBS_LOG_LEVEL", LOG_LEVELS, "INFO")},
}
