"""The spool, alone."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.agent.spool import Spool, SpoolFull, broker_directory


def record(number: int) -> bytes:
    return json.dumps({"number": number}).encode()


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "spool", "boot")


def drain(spool: Spool, **limits: float) -> list[int]:
    sent: list[int] = []
    spool.drain(
        lambda body: sent.append(json.loads(body)["number"]),
        limit=int(limits.get("limit", 100)),
        seconds=limits.get("seconds", 10),
    )
    return sent


def test_what_is_appended_is_sent_once_in_order_and_the_file_is_removed(spool: Spool) -> None:
    for number in range(3):
        spool.append(record(number))

    assert drain(spool) == [0, 1, 2]
    assert drain(spool) == []
    assert list(spool.directory.iterdir()) == []


def test_nobody_else_may_read_it(spool: Spool) -> None:
    spool.append(record(1))

    [file] = spool.files()
    assert stat.S_IMODE(spool.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_each_append_waits_for_the_disk(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bool] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(descriptor).st_mode))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    spool.append(record(1))
    spool.append(record(2))

    assert synced == [False, True, False]


def test_a_failure_in_between_sends_the_rest_later_and_nothing_again(spool: Spool) -> None:
    for number in range(4):
        spool.append(record(number))
    sent: list[int] = []

    def send(body: bytes) -> None:
        if len(sent) == 2:
            raise ConnectionError
        sent.append(json.loads(body)["number"])

    with pytest.raises(ConnectionError):
        spool.drain(send, limit=100, seconds=10)

    assert sent == [0, 1]
    assert drain(spool) == [2, 3]


def test_what_is_appended_after_half_was_sent_is_sent_too(spool: Spool) -> None:
    spool.append(record(0))
    spool.append(record(1))
    assert drain(spool, limit=1) == [0]

    spool.append(record(2))

    assert drain(spool) == [1, 2]


def test_the_time_is_bounded(spool: Spool) -> None:
    spool.append(record(0))

    assert drain(spool, seconds=0) == []
    assert drain(spool) == [0]


def test_another_process_sends_it_and_progress_is_kept_on_disk(spool: Spool) -> None:
    spool.append(record(0))
    spool.append(record(1))
    drain(spool, limit=1)

    other = Spool(spool.directory, "another boot")

    assert drain(other) == [1]


def test_a_file_that_is_being_sent_is_left_to_the_one_who_sends_it(spool: Spool) -> None:
    spool.append(record(0))
    [file] = spool.files()
    with file.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        assert drain(Spool(spool.directory, "other")) == []
        spool.append(record(1))  # does not wait either: it goes to a file of its own
        assert sorted(path.name for path in spool.files()) == ["boot-1.jsonl", "boot.jsonl"]

    assert sorted(drain(spool)) == [0, 1]


def test_when_every_file_is_being_sent_it_says_so(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.agent.spool._try_lock", lambda descriptor: False)

    with pytest.raises(SpoolFull, match="being sent"):
        spool.append(record(0))


@pytest.mark.parametrize(
    "torn", [b'{"number": 7', b"\x00\x00\x00", b"not a record\n", b"[1]\n", b"\xff\xfe\n"]
)
def test_a_torn_line_is_kept_aside_and_stops_nothing(spool: Spool, torn: bytes) -> None:
    spool.append(record(0))
    [file] = spool.files()
    with file.open("ab") as writing:
        writing.write(torn)

    assert drain(spool) == [0]
    assert [path.read_bytes() for path in spool.directory.iterdir()] == [torn.rstrip(b"\n") + b"\n"]
    assert drain(spool) == []


def test_a_torn_line_that_cannot_be_kept_aside_stays_where_it_is(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool.append(record(0))
    [file] = spool.files()
    file.write_bytes(b"torn")
    file.with_suffix(".torn").mkdir()

    with pytest.raises(SpoolFull, match="torn"):
        drain(spool)

    assert file.read_bytes() == b"torn"


def test_a_disk_that_takes_half_a_record_leaves_none_of_it(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool.append(record(0))
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:5]))

    with pytest.raises(SpoolFull, match="took 5 of"):
        spool.append(record(1))

    monkeypatch.undo()
    assert drain(spool) == [0]


def test_a_directory_that_cannot_be_made_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(SpoolFull):
        Spool(tmp_path / "file" / "spool", "boot").append(record(0))


def test_a_file_that_its_sender_has_just_removed_is_not_written_to(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([False, True])
    monkeypatch.setattr("jobs.agent.spool._is_still_at", lambda descriptor, path: next(answers))

    spool.append(record(0))

    monkeypatch.undo()
    assert drain(spool) == [0]


def test_a_file_that_vanishes_is_no_error(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = spool.directory / "gone.jsonl"
    monkeypatch.setattr(Spool, "files", lambda self: [gone])

    assert drain(spool) == []


def test_no_directory_is_an_empty_spool(spool: Spool) -> None:
    assert spool.files() == []
    assert drain(spool) == []


def test_a_damaged_progress_file_sends_all_again(spool: Spool) -> None:
    spool.append(record(0))
    [file] = spool.files()
    file.with_suffix(".sent").write_text("no number")

    assert drain(spool) == [0]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("redis://u:secret@host:6379/0", "redis://u:changed@host:6379/0", True),
        ("redis://host:6379/0", "redis://host:6379/1", False),
        ("redis://a:6379/0;redis://b:6379/0", "redis://a:6379/0", True),
        ("amqp://host//", "amqp://host/other", False),
    ],
)
def test_each_broker_has_a_directory_and_a_new_password_changes_nothing(
    tmp_path: Path, one: str, other: str, same: bool
) -> None:
    assert (broker_directory(tmp_path, one) == broker_directory(tmp_path, other)) is same


def test_two_processes_never_send_the_same_file(spool: Spool, tmp_path: Path) -> None:
    for number in range(50):
        spool.append(record(number))
    log = tmp_path / "sent"

    def send_to_log(body: bytes) -> None:
        with log.open("ab") as file:
            file.write(body + b"\n")

    children = [fork(lambda: spool.drain(send_to_log, limit=1000, seconds=10)) for _ in range(4)]
    for child in children:
        assert os.waitpid(child, 0)[1] == 0

    numbers = [json.loads(line)["number"] for line in log.read_bytes().splitlines()]
    assert sorted(numbers) == list(range(50))


def fork(work: Callable[[], object]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        work()
        os._exit(0)
    except BaseException:  # noqa: BLE001 (a forked child must end here)
        os._exit(1)
