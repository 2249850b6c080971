"""What the Content-Security-Policy and the style guide ask of every template."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.staticfiles import finders
from django.test import Client

from console.states import MARKS, REASON_MARKS
from tests.web.people import admin

ROOT = Path(settings.BASE_DIR)
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
SCRIPTS = sorted((ROOT / "static" / "console" / "js").glob("*.js"))
ICONS = set(re.findall(r'<symbol id="([\w-]+)"', (ROOT / "static" / "console/icons.svg").read_text()))


def _names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


@pytest.mark.parametrize("path", TEMPLATES, ids=_names(TEMPLATES))
def test_no_template_has_an_inline_style_script_or_handler(path):
    text = path.read_text()

    assert re.findall(r"\sstyle\s*=", text) == []
    assert re.findall(r"<style\b", text) == []
    assert [tag for tag in re.findall(r"<script\b[^>]*>", text) if "src=" not in tag] == []
    assert re.findall(r"\son[a-z]+\s*=", text) == []
    assert re.findall(r"hx-on|javascript:|[\"']js:", text) == []


@pytest.mark.parametrize("path", TEMPLATES, ids=_names(TEMPLATES))
def test_whatever_htmx_gets_is_a_link_too(path):
    tags = re.findall(r"<[a-z]+\b[^<>]*\bhx-get=[^<>]*>", path.read_text())

    assert [tag for tag in tags if "href=" not in tag] == []


@pytest.mark.parametrize("path", TEMPLATES, ids=_names(TEMPLATES))
def test_whatever_htmx_posts_is_a_form_too(path):
    tags = re.findall(r"<[a-z]+\b[^<>]*\bhx-post=[^<>]*>", path.read_text())

    assert [tag for tag in tags if not (tag.startswith("<form") and 'method="post"' in tag)] == []


@pytest.mark.parametrize("path", TEMPLATES, ids=_names(TEMPLATES))
def test_every_form_that_posts_has_its_token(path):
    forms = re.findall(r"<form\b[^>]*method=\"post\".*?</form>", path.read_text(), re.DOTALL)

    assert [form[:80] for form in forms if "{% csrf_token %}" not in form] == []


@pytest.mark.parametrize("path", TEMPLATES, ids=_names(TEMPLATES))
def test_templates_stay_short_and_partials_extend_nothing(path):
    text = path.read_text()
    is_partial = path.name.startswith("_")

    assert len(text.splitlines()) <= (60 if is_partial else 150)
    assert [line for line in text.splitlines() if len(line) > 140] == []
    assert not (is_partial and "{% extends" in text)


@pytest.mark.parametrize("path", TEMPLATES, ids=_names(TEMPLATES))
def test_every_icon_of_a_template_is_in_the_sprite(path):
    used = set(re.findall(r'{% icon "([\w-]+)"', path.read_text()))
    used |= set(re.findall(r'\bicon="([\w-]+)"', path.read_text()))

    assert used - ICONS == set()


def test_every_icon_of_a_state_is_in_the_sprite():
    marks = [mark for marks in (*MARKS.values(), REASON_MARKS) for mark in marks.values()]

    assert {mark.icon for mark in marks} - ICONS == set()


@pytest.mark.parametrize("path", SCRIPTS, ids=_names(SCRIPTS))
def test_no_script_evaluates_text_or_writes_html(path):
    text = path.read_text()

    assert (
        re.findall(
            r"\beval\(|new Function\(|innerHTML|outerHTML\s*=|insertAdjacentHTML|document\.write", text
        )
        == []
    )


@pytest.mark.django_db
@pytest.mark.parametrize(
    "address", ["/", "/dead-letters/", "/groups/", "/outbox/", "/audit/", "/admin/", "/nothing/", "/login/"]
)
def test_the_policy_is_on_every_page(address):
    response = admin().get(address)

    policy = dict(part.split(" ", 1) for part in response.headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["object-src"] == "'none'"


@pytest.mark.django_db
def test_htmx_is_configured_as_the_style_guide_says():
    html = admin().get("/").content.decode()

    for setting in (
        '"historyRestoreAsHxRequest": false',
        '"allowEval": false',
        '"includeIndicatorStyles": false',
        '{"code": "(409|422)", "swap": true, "error": false}',
    ):
        assert setting in html
    assert 'hx-headers=\'{"x-csrftoken": "' in html


def test_of_plotly_one_file_is_served_and_nothing_else():
    listed = [
        path
        for finder in finders.get_finders()
        for path, _ in finder.list([])
        if "plotly" in type(finder).__name__.lower()
    ]

    assert listed == ["plotly.min.js"]
    assert finders.find("plotly/plotly.min.js")
    assert not finders.find("plotly/widgetbundle.js")


@pytest.mark.django_db  # the end of a request closes old connections
def test_browsers_are_told_not_to_ask_for_the_rest_of_a_file_that_somebody_left():
    # Chromium would, and the answer to that is a warning in the log: 416, range not satisfiable.
    answer = Client().get("/static/plotly/plotly.min.js")
    answer.close()

    assert (answer.status_code, answer.headers["Accept-Ranges"]) == (200, "none")


def test_the_styles_that_plotly_would_inject_have_a_stand_in():
    bundle = Path(finders.find("plotly/plotly.min.js")).read_text()
    head = (ROOT / "templates" / "console/_charts.html").read_text() + (
        ROOT / "templates" / "console/_styles.html"
    ).read_text()
    injected = set(re.findall(r'getElementById\("([0-9a-f]{64})"\)', bundle)) | {"plotly.js-style-global"}

    assert "no-inline-styles" in bundle
    assert {each for each in injected if f'id="{each}"' not in head} == set()


@pytest.mark.django_db
def test_without_a_login_a_missing_page_tells_nothing():
    response = Client().get("/nothing/")

    assert response.status_code == 404
    assert "Dead letters" not in response.content.decode()
