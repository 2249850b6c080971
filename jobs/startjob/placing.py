"""Where a new job and its test go: into which application, which file, and where in that file."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from django.apps import AppConfig, apps

import jobs
from jobs.errors import JobsError
from jobs.startjob.draft import Draft

_JOB_IMPORTS = {"celery": ("shared_task",), "jobs": ("Job", "PermanentError", "TransientError")}


@dataclass(frozen=True, slots=True)
class Change:
    """One file as it will be. ``line`` is where the new part begins, counted from 1."""

    path: Path
    text: str
    is_new: bool
    line: int = 1


def own_apps() -> list[AppConfig]:
    """Return the applications of the project: those that are not installed packages, and take jobs."""
    return [
        config
        for config in apps.get_app_configs()
        if getattr(config, "takes_jobs", True) and not _is_installed(config)
    ]


def choose_app(wanted: str | None, *, job: str) -> AppConfig:
    """Return the application that is named by its label or its module.

    Raises:
        JobsError: when there is none, with those that there are and how to make one.
    """
    own = own_apps()
    names = ", ".join(sorted(config.label for config in own))
    if wanted is None:
        if not own:
            raise JobsError(
                f"Cannot write the job {job}: no application of yours is installed. {_make('shop')}"
            )
        raise JobsError(
            f"Cannot write the job {job}: which application is it for? Give one of {names}: {names.split(',')[0]}.{job}."
        )
    for config in own:
        if wanted in (config.label, config.name):
            return config
    if any(wanted in (config.label, config.name) for config in apps.get_app_configs()):
        raise JobsError(
            f"Cannot write a job into {wanted}: it is not code of this project. "
            + (f"Use one of {names}." if own else _make("shop"))
        )
    there = _is_module(wanted)
    raise JobsError(
        f"Cannot write a job into {wanted!r}: no application of this name is installed. "
        + (f"Yours are {names}. " if own else "")
        + (f"{wanted} can be imported, so add it: {_add(wanted)}" if there else _make(wanted))
    )


def plan(draft: Draft, config: AppConfig) -> list[Change]:
    """Return every file to write or to change; nothing is written yet.

    Raises:
        JobsError: when a name is taken, a file is in the way, or one cannot be read as Python.
    """
    root = Path(config.path)
    package = root / "tasks"
    if package.is_dir():
        if (root / "tasks.py").exists():
            raise JobsError(
                f"Cannot write the job {draft.name}: {_shown(root / 'tasks.py')} and the package "
                f"{_shown(package)} are both there, and Python sees only the package. Remove one of them."
            )
        module = f"{config.name}.tasks.{draft.name}"
        job_changes = [
            _new(package / f"{draft.name}.py", _module_text(draft, config)),
            _register(package / "__init__.py", draft),
        ]
    else:
        module = f"{config.name}.tasks"
        job_changes = [_job_in(root / "tasks.py", draft, config)]
    tests = root / "tests"
    folder = tests if tests.is_dir() else root
    test = draft.test_text(
        module=module,
        imports=_sorted_imports(
            [
                "from django.test import TestCase",
                "from jobs.testing import JobsMixin",
                f"from {module} import {draft.name}",
            ],
            config,
        ),
    )
    return [*job_changes, _new(folder / f"test_{draft.name}.py", test)]


def write(changes: Sequence[Change]) -> None:
    """Write the files: new ones first, and only where none is, so that a refusal leaves the others as they were.

    Raises:
        JobsError: when a file cannot be written; new ones that were written are removed again.
    """
    written: list[Path] = []
    try:
        for change in sorted(changes, key=lambda change: not change.is_new):
            # newline="" keeps the line ends that the file had.
            with change.path.open("x" if change.is_new else "w", encoding="utf-8", newline="") as file:
                file.write(change.text)
            if change.is_new:
                written.append(change.path)
    except OSError as error:
        for path in written:
            path.unlink()
        raise JobsError(
            f"Cannot write {_shown(change.path)}: {error.strerror}. Nothing was written. "
            "Make it writable for this user, or remove what is in the way."
        ) from error


def _is_installed(config: AppConfig) -> bool:
    places = {sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")}
    path = Path(config.path).resolve()
    return any(path.is_relative_to(Path(place).resolve()) for place in places)


def _is_module(name: str) -> bool:
    with contextlib.suppress(ImportError, ValueError):
        return importlib.util.find_spec(name) is not None
    return False


def _make(name: str) -> str:
    name = name.rpartition(".")[2]
    name = name if name.isidentifier() else "shop"
    return f"Make one with: python manage.py startapp {name}; then add it: {_add(name)}"


def _add(name: str) -> str:
    return (
        f'"{name}" in INSTALLED_APPS or, in a checkout of this product, JOBS_APPS={name} in the environment.'
    )


def _shown(path: Path) -> str:
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def _new(path: Path, text: str) -> Change:
    if path.exists() or path.is_symlink():
        raise JobsError(
            f"Cannot write {_shown(path)}: it is there already, and nothing is overwritten. "
            "Choose another name for the job, or move that file away."
        )
    return Change(path, text, is_new=True)


def _module_text(draft: Draft, config: AppConfig) -> str:
    imports = [f"from {module} import {', '.join(names)}" for module, names in _JOB_IMPORTS.items()]
    # In a package a module holds one job; in tasks.py there may be many.
    return (
        f'"""Jobs of {config.name}."""\n\nfrom __future__ import annotations\n\nimport logging\n\n'
        f"{_sorted_imports(imports, config)}\n\nlogger = logging.getLogger(__name__)\n\n\n{draft.job_text()}"
    )


def _register(path: Path, draft: Draft) -> Change:
    """Let the package import the module: Celery imports only the package."""
    text, tree = _read(path) if path.exists() else ("", ast.Module(body=[], type_ignores=[]))
    if draft.name in _bound(tree):
        raise JobsError(_taken(draft.name, path))
    newline = _newline(text)
    text = _ended(text, newline)
    line = text.count("\n") + 1
    added = f"from . import {draft.name} as {draft.name}{newline}"
    return Change(path, text + added, is_new=not path.exists(), line=line)


def _job_in(path: Path, draft: Draft, config: AppConfig) -> Change:
    if not path.exists():
        return _new(path, _module_text(draft, config))
    text, tree = _read(path)
    if not tree.body:
        kept = _ended(text, "\n")
        return Change(path, kept + _module_text(draft, config), is_new=False, line=kept.count("\n") + 1)
    bound = _bound(tree)
    for name in draft.private_names():
        if name in bound:
            raise JobsError(_taken(name, path))
    lines = text.splitlines(keepends=True)
    newline = _newline(text)
    wanted = []
    for module, names in _JOB_IMPORTS.items():
        for name in names:
            if name in bound and not _is_import_of(tree, module, name):
                raise JobsError(
                    f"Cannot write the job {draft.name} into {_shown(path)}: {name} means something else there. "
                    f"Rename it, or write the job into another application."
                )
        missing = [name for name in names if name not in bound]
        if missing:
            wanted.append(f"from {module} import {', '.join(missing)}")
    before_job = ""
    if "logger" not in bound:
        before_job = f"{newline}{newline}logger = logging.getLogger(__name__){newline}"
        if "logging" not in bound:
            wanted.append("import logging")
    for statement in wanted:
        _insert_import(lines, statement, config, newline)
    text = _ended("".join(lines), newline) + before_job
    line = text.count("\n") + 3
    return Change(path, text + newline * 2 + draft.job_text().replace("\n", newline), is_new=False, line=line)


def _read(path: Path) -> tuple[str, ast.Module]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            text = file.read()
        return text, ast.parse(text)
    except OSError as error:
        raise JobsError(f"Cannot read {_shown(path)}: {error.strerror}. Make it readable.") from error
    except SyntaxError as error:
        raise JobsError(
            f"Cannot add a job to {_shown(path)}: line {error.lineno} is not Python ({error.msg}). Mend it first."
        ) from error
    except ValueError as error:
        raise JobsError(
            f"Cannot add a job to {_shown(path)}: it is not text in UTF-8 ({error}). Save it as UTF-8."
        ) from error


def _taken(name: str, path: Path) -> str:
    return (
        f"Cannot write the job into {_shown(path)}: {name} is there already. Choose another name for the job."
    )


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _ended(text: str, newline: str) -> str:
    return text if not text or text.endswith(("\n", "\r")) else text + newline


def _bound(tree: ast.Module) -> set[str]:
    """Return every name that the module binds outside its functions and classes."""
    names: set[str] = set()
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        waiting += ast.iter_child_nodes(node)
    return names


def _is_import_of(tree: ast.Module, module: str, name: str) -> bool:
    return any(
        isinstance(node, ast.ImportFrom)
        and (node.module or "").partition(".")[0] == module
        and any(alias.name == name and alias.asname in (None, name) for alias in node.names)
        for node in ast.walk(tree)
    )


def _header_imports(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports at the top; a docstring may stand before them."""
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            return


def _insert_import(lines: list[str], statement: str, config: AppConfig, newline: str) -> None:
    """Put one import where a sorted list of imports has it, and touch no other line."""
    tree = ast.parse("".join(lines))
    own = _sort_key(ast.parse(statement).body[0], config)
    header = list(_header_imports(tree))
    before = [node for node in header if _sort_key(node, config) < own]
    after = [node for node in header if _sort_key(node, config) > own]
    if before:
        # As many lines down as the statement has: a long one stands in brackets.
        at = before[-1].end_lineno or before[-1].lineno
        gap_before = _sort_key(before[-1], config)[0] != own[0]
    elif header:
        at, gap_before = header[0].lineno - 1, False
    else:
        docstring = ast.get_docstring(tree, clean=False) is not None
        at = (tree.body[0].end_lineno or 1) if docstring else _first_line(tree.body[0]) - 1
        gap_before = docstring
    added = [newline] if gap_before else []
    added.append(statement + newline)
    follows = lines[at].strip() if at < len(lines) else ""
    if follows and not (after and after[0].lineno - 1 == at and _sort_key(after[0], config)[0] == own[0]):
        added.append(newline)
    if at and not lines[at - 1].endswith(("\n", "\r")):
        lines[at - 1] += newline
    lines[at:at] = added


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])


def _sort_key(node: ast.stmt, config: AppConfig) -> tuple[int, bool, str]:
    """Order imports as isort does: future, standard library, others, this project; ``import`` before ``from``."""
    if isinstance(node, ast.ImportFrom):
        module, is_from, level = node.module or "", True, node.level
    elif isinstance(node, ast.Import):
        module, is_from, level = node.names[0].name, False, 0
    else:
        raise TypeError(f"{node!r} is no import")
    top = module.partition(".")[0]
    if top == "__future__":
        section = 0
    elif level:
        section = 4
    elif top in sys.stdlib_module_names:
        section = 1
    elif _is_of_project(top, config):
        section = 3
    else:
        section = 2
    return section, is_from, module


def _is_of_project(top: str, config: AppConfig) -> bool:
    """Say whether a package lies beside the application's own."""
    root = Path(config.path).resolve().parents[config.name.count(".")]
    if top == "jobs":
        return Path(jobs.__file__).resolve().parents[1] == root
    return (root / top).is_dir() or (root / f"{top}.py").is_file()


def _sorted_imports(statements: list[str], config: AppConfig) -> str:
    keyed = sorted((_sort_key(ast.parse(each).body[0], config), each) for each in statements)
    text = ""
    section = keyed[0][0][0]
    for key, statement in keyed:
        text += "\n" if key[0] != section else ""
        text += statement + "\n"
        section = key[0]
    return text.rstrip("\n")
