"""``python -m benchmarks``: every benchmark with its peer, one table, exit status 1 when a target is missed.

A figure is worth nothing without its peer in the same run, so ratios are what counts. ``--quick`` takes
small sizes: it shows that all of it works, and its ratios are rough.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import Any

import django

NAMES = (
    "agent",
    "collector",
    "recording",
    "replay",
    "purge",
    "limits",
    "outbox",
    "enqueue",
    "idempotency",
    "overview",
)


def main(arguments: list[str]) -> int:
    """Run the benchmarks that were asked for and print their table; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.split("\n")[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which of {', '.join(NAMES)}; all when none"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes")
    asked = parser.parse_args(arguments)
    if unknown := sorted(set(asked.names) - set(NAMES)):
        parser.error(f"there is no benchmark {unknown[0]}; there are {', '.join(NAMES)}")
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    rows: list[dict[str, Any]] = []
    for name in asked.names or NAMES:
        print(f"{name} …", file=sys.stderr, flush=True)
        rows += importlib.import_module(f"benchmarks.{name}").run(asked.quick)
    print(table(rows))
    missed = sum(not is_met(row) for row in rows)
    if missed:
        print(f"\n{missed} of {len(rows)} targets missed.")
    return 1 if missed else 0


def is_met(row: dict[str, Any]) -> bool:
    """Say whether a row meets its target: its own verdict, or its ratio against the target."""
    if "is_met" in row:
        return bool(row["is_met"])
    return bool(row["ratio"] >= row["target"])


def table(rows: list[dict[str, Any]]) -> str:
    """Lay the rows out in columns."""
    head = ("benchmark", "ours", "peer", "unit", "ratio", "target", "")
    lines = [head, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in (0, 3, 5, 6) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    target = row["target"]
    return (
        row["name"],
        _number(row["ours"]),
        _number(row["peer"]),
        row["unit"],
        "" if row["ratio"] is None else f"{row['ratio']:.2f}",
        target if isinstance(target, str) else f">= {target:g} x peer",
        "met" if is_met(row) else "MISSED",
    )


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
