"""The console as a part of another Django site, with that site's settings and nothing of ours."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = """
from pathlib import Path
BASE_DIR = Path(__file__).resolve().parent
SECRET_KEY = "theirs, and long enough for Django not to complain about it 0123456789"
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = [
    "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes",
    "django.contrib.sessions", "django.contrib.messages", "django.contrib.staticfiles",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
ROOT_URLCONF = "site_urls"
TEMPLATES = [{
    "BACKEND": "django.template.backends.django.DjangoTemplates",
    "DIRS": [BASE_DIR / "site_templates"],
    "APP_DIRS": True,
    "OPTIONS": {"context_processors": [
        "django.template.context_processors.request",
        "django.contrib.auth.context_processors.auth",
        "django.contrib.messages.context_processors.messages",
    ]},
}]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "theirs.sqlite3"}}
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
"""
URLS = """
from django.contrib import admin
from django.urls import include, path
urlpatterns = [path("admin/", admin.site.urls)]
urlpatterns += [path("office/", include("console.urls"))]
"""


def block(language: str, containing: str) -> str:
    """Return the code block of docs/attach.md that a reader would copy."""
    blocks = (ROOT / "docs" / "attach.md").read_text().split("```")[1::2]
    (found,) = [text for text in blocks if text.startswith(language) and containing in text]
    return found.removeprefix(language)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Another site, with what the documentation says added to its settings."""
    (tmp_path / "site_settings.py").write_text(SETTINGS + block("python", "INSTALLED_APPS +="))
    (tmp_path / "site_urls.py").write_text(URLS)
    return tmp_path


def run(site: Path, code: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", "import django; django.setup()\n" + textwrap.dedent(code)],
        cwd=site,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(site),
            "DJANGO_SETTINGS_MODULE": "site_settings",
            "PYTHONPATH": f"{site}:{ROOT}",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if check:
        assert done.returncode == 0, done.stderr
    return done


VISIT = """
import json
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.test import Client
call_command("check", fail_level="WARNING", verbosity=0)
call_command("migrate", verbosity=0)
user = User.objects.create_user("vera")
user.groups.add(Group.objects.get(name="Viewer"))
seen = {}
for name, client in (("anonymous", Client()), ("viewer", Client())):
    if name == "viewer":
        client.force_login(user)
    for page in ("", "dead-letters/", "groups/", "operations/", "audit/"):
        answer = client.get(f"/office/{page}")
        seen[f"{name} {page}"] = [answer.status_code, answer.headers.get("Location", "")]
print(json.dumps(seen))
"""


def test_pages_work_in_another_site_and_want_its_login(site: Path) -> None:
    seen = json.loads(run(site, VISIT).stdout.splitlines()[-1])

    pages = ("", "dead-letters/", "groups/", "operations/", "audit/")
    assert seen == {
        **{f"anonymous {page}": [302, f"/accounts/login/?next=/office/{page}"] for page in pages},
        **{f"viewer {page}": [200, ""] for page in pages},
    }


def test_templates_of_the_other_site_do_not_stand_in_for_ours(site: Path) -> None:
    (site / "site_templates").mkdir()
    for name in ("base.html", "404.html", "_nav.html"):
        (site / "site_templates" / name).write_text("theirs")
    code = """
    from django.contrib.auth.models import Group, User
    from django.core.management import call_command
    from django.test import Client
    call_command("migrate", verbosity=0)
    user = User.objects.create_user("vera")
    user.groups.add(Group.objects.get(name="Viewer"))
    client = Client()
    client.force_login(user)
    page = client.get("/office/dead-letters/").text
    print("theirs" in page, "Dead Letter Office" in page)
    """

    assert run(site, code).stdout.strip() == "False True"


def test_static_files_are_found(site: Path) -> None:
    code = """
    import re
    from django.contrib.staticfiles import finders
    from django.template.loader import get_template
    from django.test import RequestFactory
    found = [path for finder in finders.get_finders() for path, _ in finder.list([])]
    print(sum(path.endswith("base.css") for path in found) > 0, finders.find("plotly/plotly.min.js") is not None)
    """

    assert run(site, code).stdout.strip() == "True True"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('"django_htmx", ', "console.E001) The console needs 'django_htmx'"),
        (
            'MIDDLEWARE += ["django_htmx.middleware.HtmxMiddleware"]',
            "console.E002) The console needs the middleware",
        ),
        (
            'TEMPLATES[0]["OPTIONS"]["context_processors"] += ["console.shell.context"]',
            "console.E003) The pages of the console need its context processor.",
        ),
        (
            '    "console.static_files.PlotlyFinder",\n',
            "console.E004) The charts of the console need plotly.js",
        ),
        ('BROKER_URL = "redis://localhost:6379/0"', "console.E005) The console needs the broker"),
    ],
)
def test_a_missing_part_is_named_with_the_line_that_adds_it(site: Path, line: str, message: str) -> None:
    settings = (site / "site_settings.py").read_text()
    assert line in settings
    (site / "site_settings.py").write_text(settings.replace(line, ""))

    done = run(site, "from django.core.management import call_command; call_command('check')", check=False)

    assert done.returncode == 1
    assert message in done.stderr
    assert "HINT: " in done.stderr
