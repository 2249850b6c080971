"""The command ``manage.py queue_health``."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import DatabaseError, InterfaceError
from django.utils import timezone

from jobs.checks import SETTINGS_TAG
from jobs.core.cleaning import clean_line, clean_name
from jobs.core.spans import duration
from jobs.management.printing import escape_unknown
from jobs.queue_report import LOOK_BACK, PERCENTILE, QueueHealth, QueueReport, queue_report

UNKNOWN = 2
_COLUMNS = ("queue", "waiting", "oldest", "consumers", f"latency p{PERCENTILE}", "attempts", "failed")
_NAME_WIDTH = 40


class Command(BaseCommand):
    """Says how the queues are, and ends with 0, 1 or 2 for healthy, degraded or unknown."""

    help = (
        "Tells depth, oldest age, consumers, latency and failures of each queue, dead letters, the outbox, the "
        "collector and the workers. Exit status 0 when all is well, 1 when it is degraded (an enabled alert rule "
        "fires or is about to, or a queue is not consumed), 2 when that cannot be known."
    )
    requires_system_checks = (SETTINGS_TAG,)

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("--json", action="store_true", dest="is_json", help="print JSON for scripts")
        parser.add_argument("--queue", default="", metavar="NAME", help="look at this queue only")

    def handle(self, *args: Any, is_json: bool, queue: str, **options: Any) -> None:
        """Read, print, and set the exit status."""
        escape_unknown()
        try:
            report = queue_report(queue=clean_name(queue.strip()), now=timezone.now())
        except (DatabaseError, InterfaceError) as error:
            self._print_unreachable(error, is_json=is_json)
            raise SystemExit(UNKNOWN) from None
        self.stdout.write(json.dumps(report.as_json(), indent=2) if is_json else _text(report))
        self.stdout.flush()
        if report.exit_status:
            raise SystemExit(report.exit_status)

    def _print_unreachable(self, error: Exception, *, is_json: bool) -> None:
        # The error's own text may hold the address of the database.
        reason = f"The database cannot be read ({type(error).__name__}): check DATABASE_URL, and migrate."
        if is_json:
            self.stdout.write(json.dumps({"status": "unknown", "reasons": [], "unknown": [reason]}, indent=2))
        else:
            self.stderr.write(f"UNKNOWN: {reason}")
        self.stdout.flush()


def _text(report: QueueReport) -> str:
    """Write the verdict first, as Nagios shows the first line alone, then why, then the numbers."""
    verdict = ("HEALTHY", "DEGRADED", "UNKNOWN")[report.exit_status]
    lines = [f"{verdict}: {_first(report)}"]
    lines += [f"- {clean_line(reason, limit=500)}" for reason in report.reasons[1:]]
    lines += [f"? {clean_line(reason, limit=500)}" for reason in report.unknown[0 if report.reasons else 1 :]]
    if report.queues:
        lines += ["", *_table([_COLUMNS, *map(_row, report.queues)])]
    lost = f", lost: {', '.join(clean_line(name, limit=80) for name in report.workers_lost)}"
    lag = report.collector_lag_seconds
    lines += [
        "",
        f"dead letters   {report.dead_letters:,}, {report.died_in_last_hour:,} died in the last hour",
        f"outbox lag     {duration(report.outbox_lag_seconds)}",
        f"collector lag  {'not known' if lag is None else duration(lag)}",
        f"workers        {report.workers_online:,} online{lost if report.workers_lost else ''}",
        "",
        f"Latency and failures are of the attempts that ended in the last {LOOK_BACK.seconds // 60} minutes; "
        "- is not known.",
    ]
    return "\n".join(lines)


def _first(report: QueueReport) -> str:
    for reasons in (report.reasons, report.unknown):
        if reasons:
            return clean_line(reasons[0], limit=500)
    queues = "1 queue" if len(report.queues) == 1 else f"{len(report.queues):,} queues"
    letters = "1 dead letter" if report.dead_letters == 1 else f"{report.dead_letters:,} dead letters"
    return f"{queues}, {letters}, no alert."


def _row(queue: QueueHealth) -> tuple[str, ...]:
    name = clean_line(queue.queue, limit=_NAME_WIDTH)
    return (
        f"{name} (paused)" if queue.is_paused else name,
        _number(queue.depth),
        _seconds(queue.oldest_age_seconds),
        _number(queue.consumers),
        _seconds(queue.latency_p95_seconds),
        f"{queue.attempts:,}",
        "-" if queue.failure_rate is None else f"{queue.failure_rate * 100:.1f} %",
    )


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[index]) for row in rows) for index in range(len(_COLUMNS))]
    return [
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else duration(value)
