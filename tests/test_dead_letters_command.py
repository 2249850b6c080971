"""``manage.py dead_letters`` as a script and as a person in a terminal use it."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from jobs.models import AuditEntry, DeadLetter, Death, IdempotencyRecord, Operation
from tests.factories import NOW, make_death, make_headers, make_letter
from tests.runops_place import ROOT, RunopsPlace, outcome, write_letters
from tests.servers import wait_until

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> tuple[str, str, int]:
    """Run the command in this process; return its two outputs and its exit status."""
    out, err = io.StringIO(), io.StringIO()
    status = 0
    try:
        call_command("dead_letters", *arguments, stdout=out, stderr=err, no_color=True)
    except SystemExit as end:
        status = int(end.code or 0)
    except CommandError as error:
        err.write(f"CommandError: {error}")
        status = error.returncode
    return out.getvalue(), err.getvalue(), status


def old_letter(**fields: Any) -> DeadLetter:
    """A letter that died before now, so that a freeze at the real time has it."""
    died_at = timezone.now() - timedelta(minutes=fields.pop("minutes", 5))
    return make_letter(died_at=died_at, **fields)


def test_nothing_that_a_job_wrote_controls_the_terminal() -> None:
    text = "a\x1b[31m\x9b2J\u202e\u2066\x07\r\u2028b"
    letter = old_letter(task=text, queue=text, worker=text, error=text, error_type=text, kwargs={text: text})
    make_death(letter, worker=text, traceback=text, error=text)

    printed = [
        run(*arguments)
        for arguments in (
            ["list"],
            ["list", "--json"],
            ["show", str(letter.uuid)],
            ["show", str(letter.uuid), "--json"],
            ["replay", "--query", "", "--yes", "--no-wait"],
        )
    ]

    # The names are stored clean; here they are not, so that the command is looked at alone.
    shown = "".join(out + err for out, err, _ in printed)
    assert {hex(ord(c)) for c in shown if not (c.isprintable() or c == "\n")} == set()


def test_list_prints_one_json_object_a_letter_newest_first_with_masked_arguments() -> None:
    old_letter(minutes=9, task="shop.tasks.a", kwargs={"order_id": 1, "card_number": "4242"})
    newest = old_letter(minutes=3, task="shop.tasks.b", queue="low")

    out, err, status = run("list", "--json")

    first, second = (json.loads(line) for line in out.splitlines())
    assert (status, err) == (0, "")
    assert first["id"] == str(newest.uuid)
    assert second["kwargs"] == {"order_id": 1, "card_number": "masked"}
    assert {
        *("id", "task_id", "task", "queue", "reason", "state", "error_type", "error"),
        *("deaths", "died_at", "group", "args", "kwargs", "replayable"),
    } <= first.keys()


def test_list_takes_a_query_and_a_limit_and_says_what_it_left_out() -> None:
    for _ in range(3):
        old_letter(queue="critical")
    old_letter(queue="low")

    out, err, _ = run("list", "--query", "queue:critical", "--limit", "2")

    assert len(out.splitlines()) == 1 + 2
    assert "2 of 3 letters" in err
    assert len(run("list", "--json", "--limit", "0")[0].splitlines()) == 4


def test_revealing_is_audited() -> None:
    old_letter(kwargs={"token": "abc"})

    out, _, _ = run("list", "--json", "--reveal")

    assert json.loads(out)["kwargs"] == {"token": "abc"}
    assert AuditEntry.objects.get().action == "reveal"


def test_a_query_that_cannot_be_read_says_what_was_meant() -> None:
    _, err, status = run("list", "--query", "sinc:2h")

    assert status == 1
    assert "since:" in err


def test_show_finds_by_the_beginning_of_an_id_and_by_the_jobs_id() -> None:
    letter = old_letter(error="line\x1b[31mred")

    out, _, _ = run("show", letter.short_id)
    values = json.loads(run("show", letter.task_id, "--json")[0])

    assert "ConnectionRefusedError" in out
    assert "\x1b" not in out
    assert values["id"] == str(letter.uuid)
    assert values["history"][0]["traceback"].startswith("Traceback")
    assert run("show", "nothing")[2] == 1


LEDGER = {"task": "shop.tasks.send_receipt", "key": "receipt:1", "task_id": "b04e6d1c", "holder": "web-2:81"}


@pytest.mark.parametrize(
    ("ledger", "words", "values"),
    [
        (None, "no run of this key is known: a replay runs it", None),
        (
            "done",
            "done 2026-11-12 03:12:00 by job b04e6d1c: a replay will do nothing",
            "2026-11-12T03:12:00Z",
        ),
        ("running", "running on web-2:81 as job b04e6d1c: a replay waits for it or takes it over", None),
        ("free", "no completed run of this key: a replay runs it", None),
    ],
)
def test_what_the_ledger_knows_of_a_letters_key_is_told(ledger, words, values) -> None:
    letter = old_letter(idempotency_key="receipt:1")
    if ledger is not None:
        IdempotencyRecord.objects.create(
            **LEDGER,
            state=ledger,
            created_at=NOW,
            started_at=NOW,
            updated_at=NOW,
            completed_at=NOW if ledger == "done" else None,
        )

    out, _, _ = run("show", letter.short_id)
    listed = json.loads(run("list", "--json")[0])
    exported = json.loads(run("export", "--query", "")[0])

    assert f"ledger          {words}" in out
    wanted = None if ledger is None else {"state": ledger, "task_id": "b04e6d1c", "completed_at": values}
    assert listed["ledger"] == exported["ledger"] == wanted
    assert listed["idempotency_key"] == exported["idempotency_key"] == "receipt:1"


def test_a_letter_without_a_key_says_so() -> None:
    letter = old_letter()

    assert "ledger          no idempotency key" in run("show", letter.short_id)[0]
    assert json.loads(run("list", "--json")[0])["ledger"] is None


@pytest.mark.parametrize("action", ["replay", "purge"])
def test_without_yes_and_without_a_terminal_nothing_is_done(action: str, monkeypatch) -> None:
    old_letter()
    monkeypatch.setattr(sys, "stdin", io.StringIO("yes\n"))

    _, err, status = run(action, "--query", "")

    assert status == 1
    assert "Nothing was done" in err
    assert "needs --yes" in err
    assert not Operation.objects.exists()


@pytest.mark.parametrize(("answer", "status"), [("yes", 0), ("", 1), ("y", 1)])
def test_in_a_terminal_it_asks(answer: str, status: int, monkeypatch) -> None:
    old_letter()

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal(f"{answer}\n"))

    _, err, got = run("purge", "--query", "", "--no-wait")

    assert got == status
    assert "Type yes to purge 1 letter:" in err
    assert Operation.objects.exists() == (status == 0)


def test_a_selection_must_be_said() -> None:
    _, err, status = run("purge", "--yes")

    assert status == 1
    assert "--query '' for all" in err
    assert run("replay", "--ids", "nothing", "--yes")[2] == 1


def test_no_wait_prints_the_operations_id_and_its_options_are_kept() -> None:
    letter = old_letter()

    out, _, status = run(
        *(
            "replay",
            "--ids",
            f"{letter.uuid},{letter.short_id}",
            "--yes",
            "--no-wait",
            "--json",
            "--rate",
            "5",
        ),
        *(
            "--stages",
            "1,10,all",
            "--stop-above",
            "7",
            "--queue",
            "slow",
            "--why",
            "fixed",
            "--actor",
            "cron",
        ),
    )

    operation = Operation.objects.get()
    assert status == 0
    assert json.loads(out) == {"operation": operation.pk, "kind": "replay", "state": "running"}
    assert (operation.rate_per_second, operation.stages, operation.stop_above_percent) == (
        5,
        [1, 10, None],
        7,
    )
    assert (operation.target_queue, operation.why, operation.actor) == ("slow", "fixed", "cron (command)")
    assert operation.selected_count == 1


def test_restore_of_something_that_is_no_purge_is_refused() -> None:
    assert "There is no operation 77" in run("restore", "--operation", "77")[1]


WHOLE = (
    *("uuid", "task", "task_id", "queue", "content_type", "reason", "died_at"),
    *("message__body", "message__headers", "message__properties"),
)


def test_an_export_brings_letters_back_whole_and_twice_adds_nothing(tmp_path: Path) -> None:
    letter = old_letter(
        headers={
            **make_headers(task="shop.tasks.a", task_id="é"),
            "text": "é\ud800\x00",
            "raw": {"__bytes__": "/w=="},
        },
        body=b"\x80\x04\xff pickled",
        content_type="application/x-python-serialize",
        priority=6,
    )
    make_death(letter, died_at=letter.died_at - timedelta(hours=1), attempt=1)
    before = DeadLetter.objects.values(*WHOLE).get()
    target = tmp_path / "letters.jsonl"

    assert run("export", "--query", "state:any", "--output", str(target))[2] == 0
    Death.objects.all().delete()
    DeadLetter.objects.all().delete()
    out, _, status = run("import", str(target))
    again, _, _ = run("import", str(target), "--json")

    after = DeadLetter.objects.values(*WHOLE).get()
    assert status == 0
    assert "1 letter imported" in out
    assert json.loads(again) == {"letters": 0, "known": 1, "damaged": []}
    assert after == before
    assert bytes(after["message__body"]) == b"\x80\x04\xff pickled"
    assert list(AuditEntry.objects.order_by("pk").values_list("action", flat=True)) == [
        "export",
        "import",
        "import",
    ]


def test_damaged_lines_are_named_and_the_others_imported(tmp_path: Path) -> None:
    old_letter()
    old_letter()
    target = tmp_path / "letters.jsonl"
    run("export", "--query", "", "--output", str(target))
    Death.objects.all().delete()
    DeadLetter.objects.all().delete()
    first, second = target.read_bytes().splitlines()
    lines = [first, b"{cut off", b"", b"[]", json.dumps({"format": 9}).encode(), second[:-30] + b'"}', second]
    target.write_bytes(b"\n".join(lines))

    out, err, status = run("import", str(target))

    assert status == 1
    assert "2 letters imported, 0 already here, 4 damaged lines" in out
    assert [line.split(" was")[0] for line in err.splitlines()] == ["Line 2", "Line 4", "Line 5", "Line 6"]
    assert "its format is 9, this version reads 1" in err


def test_an_export_never_overwrites_a_file_half(tmp_path: Path) -> None:
    old_letter()
    target = tmp_path / "letters.jsonl"
    (tmp_path / "letters.jsonl.partial").write_text("another")

    _, err, status = run("export", "--query", "", "--output", str(target))

    assert status == 1
    assert "another export writes it" in err
    assert not target.exists()


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    _, err, status = run("import", str(tmp_path / "none"))

    assert status == 1
    assert "cannot be read" in err


@pytest.fixture
def place(django_db_setup, django_db_blocker) -> Iterator[RunopsPlace]:
    with django_db_blocker.unblock(), RunopsPlace().entered() as entered:
        yield entered


def finish_jobs(place: RunopsPlace, reasons: list[str]) -> None:
    """Let the jobs of one replay end as told, in their order."""
    wait_until(lambda: place.queue_length() >= len(reasons), seconds=30, what="the jobs")
    place.report([outcome(message, reason) for message, reason in zip(place.queued(), reasons, strict=True)])


@pytest.mark.parametrize(("last", "status"), [("done", 0), ("revoked", 1)])
def test_a_replay_waits_for_its_end_and_exits_0_only_if_all_is_done(place, last: str, status: int) -> None:
    write_letters(2)
    place.start_runops()
    worker = threading.Thread(target=finish_jobs, args=(place, ["done", last]))
    worker.start()

    done = place.command("dead_letters", "replay", "--query", "", "--yes", "--json")
    worker.join()

    result = json.loads(done.stdout)
    assert done.returncode == status, done.stderr
    assert (result["state"], result["total"]) == ("finished", 2)
    assert result["done"] == (2 if status == 0 else 1)


def test_a_purge_and_its_restore_wait_and_say_what_happened(place) -> None:
    write_letters(3)
    place.start_runops()

    purge = place.command("dead_letters", "purge", "--query", "", "--yes", "--why", "noise")
    restore = place.command("dead_letters", "restore", "--operation", str(Operation.objects.get().pk))

    assert (purge.returncode, restore.returncode) == (0, 0), purge.stderr + restore.stderr
    assert "Of 3 letters: 3 purged" in purge.stdout
    assert "Of 3 letters: 3 restored" in restore.stdout
    assert DeadLetter.objects.filter(state="dead").count() == 3


def test_ctrl_c_ends_the_command_and_not_the_operation(place) -> None:
    write_letters(2)
    process = subprocess.Popen(
        [sys.executable, "manage.py", "dead_letters", "purge", "--query", "", "--yes"],
        env={**os.environ, **place.env},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that started the tests in the background lets them ignore Ctrl-C, and so their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_until(Operation.objects.exists, seconds=30, what="the operation")
    assert process.stdout is not None
    process.stdout.readline()

    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)

    assert process.returncode == 130
    assert "goes on without this command" in err
    assert Operation.objects.get().state == "running"


def test_a_reader_that_has_enough_ends_a_list_quietly(place) -> None:
    write_letters(3_000)

    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} manage.py dead_letters list --json --limit 0 | head -n 1"],
        env={**os.environ, **place.env},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_lacks_a_character_gets_an_escape_and_the_whole_list(place, encoding: str) -> None:
    write_letters(2)
    DeadLetter.objects.update(error="Straße → 日本")

    done = subprocess.run(
        [sys.executable, "manage.py", "dead_letters", "list"],
        env={**os.environ, **place.env, "PYTHONIOENCODING": encoding},
        cwd=ROOT,
        capture_output=True,
        encoding=encoding,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.count(r" \u2192 \u65e5\u672c") == 2


def test_what_is_said_beside_a_list_is_not_painted_as_an_error(place) -> None:
    write_letters(1)
    terminal, end = os.openpty()
    with os.fdopen(terminal, "rb", buffering=0) as shown, os.fdopen(end, "wb") as output:
        subprocess.run(
            [sys.executable, "manage.py", "dead_letters", "list"],
            env={**os.environ, **place.env, "TERM": "xterm"},
            cwd=ROOT,
            stdout=output,
            stderr=output,
            timeout=60,
            check=True,
        )

        assert shown.read(2_000).endswith(b"\r\n1 letter.\r\n")
