"""The documentation says what the code does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
TOP_LEVEL = {
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "SECURITY.md", "pyproject.toml"),
    *("requirements.txt", "requirements-dev.txt", "Makefile", ".gitignore", "manage.py"),
    *("docs", "benchmarks", ".ci", "jobs", "console", "templates", "static", "tests"),
}


def read_by_code() -> set[str]:
    """Return the environment variables that the code reads."""
    settings = (ROOT / "console" / "settings.py").read_text()
    names = set(re.findall(r'\benv(?:_\w+)?\(\s*"([A-Z_]+)"', settings))
    for path in (ROOT / "jobs" / "agent").glob("*.py"):
        names |= set(re.findall(r'(?:environ\.get|_given|_switch)\(\s*"(JOBS_\w+)"', path.read_text()))
    return names


def documented() -> set[str]:
    """Return the variables in the tables of docs/settings.md."""
    return set(re.findall(r"^\| `([A-Z_]+)` \|", (ROOT / "docs" / "settings.md").read_text(), re.MULTILINE))


def test_every_variable_that_is_read_is_documented() -> None:
    assert read_by_code() - documented() == set()


def test_every_documented_variable_is_read() -> None:
    assert documented() - read_by_code() == set()


def test_every_setting_of_the_runtime_is_documented() -> None:
    names = set(re.findall(r'get\("([A-Z_]+)"', (ROOT / "jobs" / "conf.py").read_text()))
    text = (ROOT / "docs" / "settings.md").read_text()

    assert {name for name in names if f"`{name}`" not in text} == set()


def test_documented_defaults_are_those_of_the_code() -> None:
    text = (ROOT / "docs" / "settings.md").read_text()
    settings = (ROOT / "console" / "settings.py").read_text()
    for name, default in re.findall(r'env_float\("(\w+)", ([\d._]+)', settings):
        assert f"| `{name}` | `{default.replace('_', '')}` |" in text


def test_every_direct_dependency_has_its_reason() -> None:
    reasons = (ROOT / "docs" / "decisions.md").read_text()
    direct = (ROOT / "requirements.txt").read_text().partition("# What those need.")[0]
    direct += (ROOT / "requirements-dev.txt").read_text()
    names = re.findall(r"^([A-Za-z0-9_.-]+)(?:\[.*?\])?==", direct, re.MULTILINE)

    assert len(names) > 20
    assert [name for name in names if f"| {name} |" not in reasons] == []


def test_every_requirement_is_pinned_exactly() -> None:
    lines = [
        line
        for name in ("requirements.txt", "requirements-dev.txt")
        for line in (ROOT / name).read_text().splitlines()
        if line and not line.startswith(("#", "-r "))
    ]

    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_.-]+(\[\w+\])?==[\w.]+", line)] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text())
    missing = [
        target
        for target in targets
        if not target.startswith(("http://", "https://", "mailto:"))
        and not (document.parent / target).exists()
    ]

    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_paths_named_in_the_text_exist(document: Path) -> None:
    named = re.findall(
        r"`((?:jobs|console|tests|docs|templates|static|benchmarks)/[\w/.-]+)`", document.read_text()
    )

    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_named_in_the_text_exist(document: Path) -> None:
    text = document.read_text()
    commands = {path.stem for path in ROOT.glob("*/management/commands/*.py")}
    django = {
        "changepassword",
        "check",
        "createsuperuser",
        "makemigrations",
        "migrate",
        "shell",
        "startapp",
        "test",
    }
    make = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert set(re.findall(r"manage\.py ([a-z_]+)", text)) - commands - django == set()
    assert set(re.findall(r"`make ([a-z]+)`", text)) - make == set()


def test_options_of_up_and_demo_named_in_the_text_exist() -> None:
    text = "\n".join(document.read_text() for document in DOCUMENTS)
    for command in ("up", "demo"):
        used = set(re.findall(rf"manage\.py {command}((?: --?[\w-]+(?: \d+)?)+)", text))
        shown = subprocess.run(
            [sys.executable, "manage.py", command, "--help"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        options = {option for part in used for option in re.findall(r"--[\w-]+", part)}

        assert options
        assert {option for option in options if option not in shown} == set()


def test_nothing_else_lies_at_the_top() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = {line.partition("/")[0] for line in tracked.splitlines()}

    assert names - TOP_LEVEL == set()


def test_no_file_names_a_machine_or_a_registry() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    # Put together here, so that this file does not name them.
    forbidden = ["/" + "work/main", "/" + "root/", "files.python" + "hosted.org", "registry.npm" + "js.org"]
    found = []
    for name in tracked.splitlines():
        path = ROOT / name
        try:
            text = path.read_text()
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
        found += [f"{name}: {each}" for each in forbidden if each in text]

    assert found == []
