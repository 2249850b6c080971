"""The command ``manage.py dead_letters``: what the pages do, for scripts."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction
from django.utils import timezone

from jobs import audit, conf, exporting, search
from jobs.checks import SETTINGS_TAG
from jobs.core.cleaning import clean_line, clean_name, clean_text, for_terminal
from jobs.core.masking import DEFAULT_KEYS
from jobs.core.query import parse
from jobs.core.words import LedgerState, OperationKind
from jobs.errors import JobsError
from jobs.idempotency import LedgerLine
from jobs.management.printing import escape_unknown
from jobs.models import DeadLetter, Operation
from jobs.operations import (
    Actor,
    Level,
    Preview,
    Progress,
    Selection,
    preview,
    start_purge,
    start_replay,
    start_restore,
)
from jobs.operations.starting import TYPED_ABOVE
from jobs.waiting import wait_for_end
from jobs.workers import known_parameters

LIST_LIMIT = 50
TRACEBACK_LIMIT = 20_000
_SIGNS = {Level.OK: "ok", Level.INFO: "note", Level.WARNING: "warning", Level.REFUSED: "refused"}


class Command(BaseCommand):
    """Lists, shows, replays, purges, restores, exports and imports dead letters."""

    help = (
        "Works on dead letters. Exit status 0 means that all that was asked happened; 1 that some did not;"
        " 2 that the command was not understood."
    )
    requires_system_checks = (SETTINGS_TAG,)

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare one sub-command an action."""
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        listing = actions.add_parser("list", help="list letters, newest first")
        _add_query(listing)
        listing.add_argument(
            "--limit", type=_whole, default=LIST_LIMIT, help=f"how many, 0 for all (default {LIST_LIMIT})"
        )
        _add_output(listing)
        showing = actions.add_parser("show", help="show one letter with its deaths")
        showing.add_argument("id", help="the letter's id, its beginning, or the id of its job")
        _add_output(showing)
        replaying = actions.add_parser("replay", help="send letters again")
        _add_selection(replaying)
        replaying.add_argument("--rate", type=float, metavar="N", help="letters a second (default: no limit)")
        replaying.add_argument(
            "--stages", type=_stages, default=(), metavar="1,10,100,all", help="wait for outcomes in between"
        )
        replaying.add_argument(
            "--stop-above",
            type=int,
            default=20,
            metavar="PERCENT",
            help="stop when more die again (default 20)",
        )
        replaying.add_argument("--queue", default="", help="another queue than before")
        replaying.add_argument("--same-id", action="store_true", help="keep the job's id")
        _add_operation(replaying)
        purging = actions.add_parser("purge", help="hide letters, and delete them after their time")
        _add_selection(purging)
        _add_operation(purging)
        restoring = actions.add_parser("restore", help="bring purged letters back")
        _add_selection(restoring)
        restoring.add_argument("--operation", type=int, metavar="N", help="all that this purge hid")
        _add_operation(restoring)
        writing = actions.add_parser("export", help="write letters with their whole messages, as JSON lines")
        _add_selection(writing)
        writing.add_argument("--output", metavar="FILE", help="a file instead of the standard output")
        reading = actions.add_parser("import", help="bring exported letters back")
        reading.add_argument("file", help="a file of exported lines, - for the standard input")
        reading.add_argument("--json", action="store_true", dest="is_json", help="print the counts as JSON")

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        """Run one action."""
        escape_unknown()
        run: dict[str, Callable[..., None]] = {
            "list": self._list,
            "show": self._show,
            "replay": self._replay,
            "purge": self._purge,
            "restore": self._restore,
            "export": self._export,
            "import": self._import,
        }
        try:
            run[action](**options)
            self.stdout.flush()
        except JobsError as error:
            raise CommandError(str(error)) from error
        except BrokenPipeError:
            _leave_quietly()

    def _tell(self, text: str, ending: str | None = None) -> None:
        """Write a note beside the output. Django paints what goes there as an error, which this is not."""
        self.stderr.write(text, style_func=str, ending=ending)

    # Reading

    def _list(self, *, query: str, limit: int, is_json: bool, reveal: bool, **_: Any) -> None:
        now = timezone.now()
        read = parse(query, now=now)
        found = search.letters(read).select_related("group").order_by("-died_at", "-pk")
        if reveal:
            self._audit_reveal(f"{read.text or 'all dead letters'} in a list", now)
        shown = 0
        found = found.defer(*search.HEAVY_COLUMNS)
        rows = found.select_related("group", "message") if is_json else found
        rows = rows if limit == 0 else rows[:limit]
        keys, known = _masked_keys(reveal), known_parameters()
        for letter, ledger in exporting.with_ledger(rows.iterator(chunk_size=exporting.BATCH)):
            if is_json:
                self._print_json(exporting.summary(letter, masked_keys=keys, known=known, ledger=ledger))
            else:
                if not shown:
                    self.stdout.write(_row("ID", "DIED", "REASON", "TASK", "QUEUE", "ERROR"))
                self.stdout.write(_letter_row(letter))
            shown += 1
        total = shown if limit == 0 or shown < limit else found.count()
        if total > shown:
            self._tell(f"{shown:,} of {_letters(total)}. --limit 0 prints all.")
        elif not is_json:
            self._tell(f"{_letters(total)}.")

    def _show(self, *, id: str, is_json: bool, reveal: bool, **_: Any) -> None:
        letter = _find(id)
        now = timezone.now()
        if reveal:
            self._audit_reveal(f"letter {letter.short_id}", now, letter=letter)
        ledger = next(exporting.with_ledger([letter]))[1]
        values = exporting.summary(
            letter, masked_keys=_masked_keys(reveal), known=known_parameters(), ledger=ledger
        )
        deaths = list(letter.death_set.order_by("-died_at", "-pk"))
        if is_json:
            history = [
                {
                    "reason": death.reason,
                    "error_type": death.error_type,
                    "error": death.error,
                    "worker": death.worker,
                    "task_id": death.task_id,
                    "attempt": death.attempt,
                    "died_at": death.died_at.isoformat(),
                    "traceback": death.traceback,
                }
                for death in deaths
            ]
            self._print_json({**values, "unreplayable": letter.unreplayable, "history": history})
            return
        values["ledger"] = _ledger_words(ledger, has_key=bool(letter.idempotency_key))
        for name, value in values.items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=True)
            self.stdout.write(f"{name:<16}{for_terminal(clean_name(text, limit=2_000))}")
        if letter.unreplayable:
            self.stdout.write(f"{'':<16}{letter.unreplayable}")
        for death in deaths:
            self.stdout.write(
                f"\nDied {_moment(death.died_at)} on {for_terminal(clean_name(death.worker))}: {death.reason}"
            )
            text = clean_text(death.traceback or death.error, limit=TRACEBACK_LIMIT)
            self.stdout.write(for_terminal(text))

    # Acting

    def _replay(self, **options: Any) -> None:
        now = timezone.now()
        selection = _selection(options, now)
        seen = preview(selection, kind=OperationKind.REPLAY, now=now)
        self._confirm(seen, OperationKind.REPLAY, options)
        operation = start_replay(
            selection=selection,
            actor=_actor(options),
            why=options["why"],
            now=now,
            rate_per_second=options["rate"],
            stages=options["stages"],
            stop_above_percent=options["stop_above"],
            target_queue=options["queue"],
            keeps_task_id=options["same_id"],
            expected_count=seen.selected,
        )
        self._follow(operation, options)

    def _purge(self, **options: Any) -> None:
        now = timezone.now()
        selection = _selection(options, now)
        seen = preview(selection, kind=OperationKind.PURGE, now=now)
        self._confirm(seen, OperationKind.PURGE, options)
        operation = start_purge(
            selection=selection,
            actor=_actor(options),
            why=options["why"],
            now=now,
            # The question above, or --yes, has stood for typing it.
            typed_count=seen.selected,
            expected_count=seen.selected,
        )
        self._follow(operation, options)

    def _restore(self, **options: Any) -> None:
        now = timezone.now()
        purge = None
        selection = None
        if options["operation"] is not None:
            if options["ids"] or options["query"] is not None:
                raise CommandError("Give either --operation or letters, not both.")
            purge = Operation.objects.filter(pk=options["operation"]).first()
            if purge is None:
                raise CommandError(
                    f"There is no operation {options['operation']}. Look at the page Operations."
                )
        else:
            selection = _selection(options, now)
        operation = start_restore(
            operation=purge, selection=selection, actor=_actor(options), why=options["why"], now=now
        )
        self._follow(operation, options)

    def _confirm(self, seen: Preview, kind: OperationKind, options: dict[str, Any]) -> None:
        """Say what would happen and ask, unless --yes; without a terminal nobody can be asked.

        Raises:
            CommandError: when the answer is not yes.
        """
        words = for_terminal(clean_line(seen.words, limit=2_000))
        self._tell(f"{words}: {seen.selected:,} selected, {seen.to_send:,} to {kind}.")
        for check in seen.checks:
            text = for_terminal(clean_line(f"{check.headline} {check.text}", limit=2_000))
            self._tell(f"  {_SIGNS[check.level]:<8}{text}")
        if options["yes"]:
            return
        if not sys.stdin.isatty():
            raise CommandError(
                f"Nothing was done: a {kind} of {_letters(seen.to_send)} needs --yes, or a terminal to ask in."
            )
        wanted = str(seen.to_send) if kind == OperationKind.PURGE and seen.to_send > TYPED_ABOVE else "yes"
        self._tell(f"Type {wanted} to {kind} {_letters(seen.to_send)}: ", ending="")
        self.stderr.flush()
        answer = sys.stdin.readline().strip()
        if answer != wanted:
            raise CommandError(f"Nothing was done: {answer!r} was typed, not {wanted!r}.")

    def _follow(self, operation: Operation, options: dict[str, Any]) -> None:
        """Print the operation's id, wait for its end, say how it ended, and exit 1 if not all happened."""
        is_json = options["is_json"]
        if options["no_wait"]:
            if is_json:
                self._print_json(
                    {"operation": operation.pk, "kind": operation.kind, "state": operation.state}
                )
            else:
                self.stdout.write(f"Operation {operation.pk} started.")
            return
        try:
            if not is_json:
                self.stdout.write(f"Operation {operation.pk} started.")
                self.stdout.flush()
            counts = wait_for_end(operation, tell=self._tell)
        except KeyboardInterrupt:
            self._tell(
                f"\nOperation {operation.pk} goes on without this command. Its page can pause or cancel it."
            )
            raise SystemExit(130) from None
        if is_json:
            self._print_json(_ended(operation, counts))
        else:
            self.stdout.write(
                f"Operation {operation.pk} {operation.get_state_display().lower()}. {operation.outcome}"
            )
        self.stdout.flush()
        if not counts.did_all:
            raise SystemExit(1)

    # Moving

    def _export(self, **options: Any) -> None:
        now = timezone.now()
        selection = _selection(options, now)
        selection.check_ids()
        letters = exporting.selected(selection)
        with transaction.atomic():
            audit.record(
                actor=_actor(options),
                action="export",
                text=f"exported dead letters with their messages: {selection.words}",
                why=options["why"],
                now=now,
            )
        count = 0
        with _output(options["output"], self.stdout) as write:
            for line in exporting.lines(letters, is_masked=False):
                write(line)
                count += 1
        self._tell(f"{_letters(count)} exported. Their messages hold masked values too: keep them safe.")

    def _import(self, *, file: str, is_json: bool, **options: Any) -> None:
        # Here, because it loads the collector, and with it the client of the broker: a tenth of what a list takes.
        from jobs.importing import import_lines

        now = timezone.now()
        try:
            with contextlib.ExitStack() as stack:
                source = sys.stdin.buffer if file == "-" else stack.enter_context(Path(file).open("rb"))
                result = import_lines(source, now=now)
        except OSError as error:
            raise CommandError(
                f"{file} cannot be read ({error.strerror}). Give a file that export wrote."
            ) from error
        with transaction.atomic():
            audit.record(
                actor=_actor(options),
                action="import",
                text=f"imported {result.letters:,} dead letters from {clean_name(file)}",
                details={"known": result.known, "damaged": len(result.damaged)},
                now=now,
            )
        for number, problem in result.damaged:
            self.stderr.write(f"Line {number} was not imported: {clean_line(problem, limit=400)}.")
        if is_json:
            self._print_json(
                {
                    "letters": result.letters,
                    "known": result.known,
                    "damaged": [number for number, _ in result.damaged],
                }
            )
        else:
            self.stdout.write(
                f"{_letters(result.letters)} imported, {result.known:,} already here,"
                f" {len(result.damaged):,} damaged line{'' if len(result.damaged) == 1 else 's'}."
            )
        if result.damaged:
            raise SystemExit(1)

    def _print_json(self, values: dict[str, Any]) -> None:
        # ASCII escapes keep lone surrogates, and control characters out of the terminal.
        self.stdout.write(json.dumps(values, ensure_ascii=True, separators=(",", ":")))

    def _audit_reveal(self, what: str, now: datetime, *, letter: DeadLetter | None = None) -> None:
        with transaction.atomic():
            audit.record(
                actor=_actor({}),
                action="reveal",
                text=f"revealed masked values of {what}",
                letter=letter,
                now=now,
            )


def _add_query(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--query", default="", help="a search as on the page, such as 'task:x since:2h'")


def _add_selection(parser: argparse.ArgumentParser) -> None:
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--query", help="a search as on the page, such as 'task:x since:2h'")
    chosen.add_argument("--ids", nargs="+", metavar="ID", help="letters by id, apart by blanks or commas")
    parser.add_argument("--why", default="", help="the reason, kept in the audit")
    parser.add_argument("--actor", default="", help="who acts, for the audit (default: the system's user)")


def _add_operation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--no-wait", action="store_true", help="return as soon as the operation is started")
    parser.add_argument("--json", action="store_true", dest="is_json", help="print one JSON object")


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", action="store_true", dest="is_json", help="one JSON object a letter and line"
    )
    parser.add_argument("--reveal", action="store_true", help="print masked arguments too; it is audited")


def _whole(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count. Write 0 or more.")
    return number


def _stages(text: str) -> tuple[int | None, ...]:
    try:
        return tuple(None if part.strip() in {"all", "*"} else int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} are not stages. Write sizes such as 1,10,100,all."
        ) from None


def _selection(options: dict[str, Any], now: datetime) -> Selection:
    if options["ids"]:
        wanted = [part for text in options["ids"] for part in text.split(",") if part.strip()]
        return Selection.of_ids([_find(text).uuid for text in wanted], now=now)
    if options["query"] is None:
        raise CommandError("Say which letters: --query 'task:x since:2h', --query '' for all, or --ids.")
    return Selection.of_query(options["query"], now=now)


def _find(text: str) -> DeadLetter:
    letter = search.find(text)
    if letter is None:
        raise CommandError(
            f"There is no dead letter {clean_name(text)!r}, or more than one begins so. Give its whole id."
        )
    return letter


def _actor(options: dict[str, Any]) -> Actor:
    name = options.get("actor") or ""
    if not name:
        try:
            name = getpass.getuser()
        except (OSError, KeyError):
            name = f"user {os.getuid()}"
    return Actor(name=f"{name} (command)")


def _masked_keys(reveal: bool) -> Iterable[str]:
    return () if reveal else (*DEFAULT_KEYS, *conf.current().masked_keys)


def _ended(operation: Operation, counts: Progress) -> dict[str, Any]:
    return {
        "operation": operation.pk,
        "kind": operation.kind,
        "state": operation.state,
        "total": counts.total,
        "done": counts.done,
        "already_done": counts.already_done,
        "died": counts.died,
        "skipped": counts.skipped,
        "refused": counts.refused,
        "unknown": counts.unknown,
        "waiting": counts.waiting,
        "not_sent": counts.not_sent,
        "outcome": operation.outcome,
    }


def _letters(count: int) -> str:
    return f"{count:,} letter{'' if count == 1 else 's'}"


def _ledger_words(ledger: LedgerLine | None, *, has_key: bool) -> str:
    """Say what a replay will do, as far as the ledger knows."""
    if not has_key:
        return "no idempotency key"
    if ledger is None:
        return "no run of this key is known: a replay runs it"
    if ledger.state == LedgerState.DONE:
        at = f" {_moment(ledger.completed_at)}" if ledger.completed_at else ""
        return f"done{at} by job {ledger.task_id}: a replay will do nothing"
    if ledger.state == LedgerState.RUNNING:
        return f"running on {ledger.holder} as job {ledger.task_id}: a replay waits for it or takes it over"
    return "no completed run of this key: a replay runs it"


def _letter_row(letter: DeadLetter) -> str:
    error = f"{letter.error_type.rpartition('.')[2]}: {letter.error}" if letter.error_type else letter.error
    return _row(letter.short_id, _moment(letter.died_at), letter.reason, letter.task, letter.queue, error)


def _row(*cells: str) -> str:
    widths = (8, 19, 17, 32, 12, 60)
    return "  ".join(
        f"{for_terminal(clean_line(cell, limit=width)):<{width}}"
        for cell, width in zip(cells, widths, strict=True)
    ).rstrip()


def _moment(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"


@contextlib.contextmanager
def _output(path: str | None, stdout: Any) -> Iterator[Callable[[bytes], object]]:
    """Give a function that writes bytes: to a file that appears whole, or to the standard output."""
    if path is None:
        yield lambda line: stdout.write(line.decode("ascii"), ending="")
        return
    target = Path(path)
    partial = target.with_name(f"{target.name}.partial")
    try:
        with partial.open("xb") as file:
            yield file.write
        partial.replace(target)
    except FileExistsError:
        raise CommandError(
            f"{partial} is there already: another export writes it, or one was cut off."
        ) from None
    except OSError as error:
        raise CommandError(f"{path} cannot be written ({error.strerror}). Choose another place.") from error
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _leave_quietly() -> NoReturn:
    """End like a program that a closed pipe stops: head has read enough."""
    # Python flushes at exit, and would complain once more.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(141)
