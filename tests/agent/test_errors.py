"""Errors as text, and which ending they are."""

from __future__ import annotations

import io
import traceback
import urllib.error
from email.message import Message
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from billiard.exceptions import SoftTimeLimitExceeded, Terminated, TimeLimitExceeded, WorkerLostError
from celery.exceptions import Ignore, Reject, Retry
from celery.utils.serialization import UnpickleableExceptionWrapper

from jobs.agent import errors, reasons
from jobs.agent.endings import Attempt, judge
from jobs.core.words import Reason


class Hostile(Exception):
    def __str__(self) -> str:
        raise RuntimeError

    def __repr__(self) -> str:
        return "Hostile()"


class MoreHostile(Hostile):
    def __repr__(self) -> str:
        raise RuntimeError


def raised(error: BaseException) -> tuple[BaseException, str]:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 (SystemExit is one of the cases)
        return caught, traceback.format_exc()


CHAIN_SEPARATOR = "\nDuring handling of the above exception, another exception occurred:\n\n"


def block(error: str, *frames: tuple[str, str]) -> str:
    lines = [
        f'  File "{path}", line 7, in {function}\n    some_code()\n    ^^^^^^^^^^^'
        for path, function in frames
    ]
    return "\n".join(["Traceback (most recent call last):", *lines, error]) + "\n"


OWN = block(
    "ValueError: no such order\nsecond line",
    ("/x/site-packages/celery/app/trace.py", "trace_task"),
    ("/srv/shop/tasks.py", "ship"),
)
BACKEND = block(
    "redis.exceptions.ConnectionError: Error 111",
    ("/x/site-packages/celery/app/trace.py", "handle_failure"),
    ("/x/site-packages/celery/backends/base.py", "mark_as_failure"),
)
SOCKET = block("ConnectionRefusedError: [Errno 111]", ("/x/site-packages/redis/connection.py", "connect"))
RETRY = block(
    "celery.exceptions.Reject: (OperationalError(), False)",
    ("/srv/shop/tasks.py", "ship"),
    ("/x/site-packages/celery/app/task.py", "retry"),
)


def test_the_agents_reasons_are_those_of_the_console() -> None:
    only_elsewhere = {Reason.PUBLISH_FAILED, Reason.BROKER}

    assert {str(reason) for reason in Reason} == reasons.DEATHS | {str(reason) for reason in only_elsewhere}
    names = {getattr(reasons, name) for name in dir(reasons) if name.isupper() and name != "DEATHS"}
    assert names - reasons.DEATHS == {"done", "ignored", "revoked", "terminated"}


@pytest.mark.parametrize(("error", "text"), [(Hostile(), "Hostile()"), (MoreHostile(), "MoreHostile")])
def test_an_error_that_cannot_say_what_it_is(error: Exception, text: str) -> None:
    assert errors.describe(error).message == text


def test_an_error_is_cut_to_its_limit() -> None:
    assert len(errors.describe(ValueError("x" * 5000)).message) == errors.MESSAGE_LIMIT_CHARS


def test_an_error_that_could_not_travel_keeps_its_name() -> None:
    described = errors.describe(
        UnpickleableExceptionWrapper("shop.errors", "Refused", ("a",), "Refused('a')")
    )

    assert (described.type, described.message) == ("shop.errors.Refused", "Refused('a')")


def test_an_error_that_arrived_as_its_base_class_keeps_its_name_and_message() -> None:
    """Source: ``celery.utils.serialization.find_pickleable_exception``; urllib's HTTPError is one."""
    _, text = raised(urllib.error.HTTPError("http://pay", 503, "Unavailable", Message(), io.BytesIO()))

    ending = judge(OSError(), text, Attempt())

    assert ending is not None
    assert ending.error is not None
    assert (ending.error.type, ending.error.message) == (
        "urllib.error.HTTPError",
        "HTTP Error 503: Unavailable",
    )


def test_a_built_in_error_keeps_what_it_says() -> None:
    error, text = raised(KeyError("sku"))

    ending = judge(error, text, Attempt())

    assert ending is not None
    assert ending.error is not None
    assert (ending.error.type, ending.error.message) == ("builtins.KeyError", "'sku'")


@pytest.mark.parametrize("letter", ["a", "ä", "\ud800", "\U0001f600"])
def test_a_traceback_is_cut_in_its_middle(letter: str) -> None:
    text = "begin" + letter * 70_000 + "end"

    cut = errors.cut_traceback(text)

    assert cut.startswith("begin")
    assert cut.endswith("end")
    assert "bytes left out" in cut
    assert len(cut.encode("utf-8", "surrogatepass")) <= 64 * 1024


@pytest.mark.parametrize("text", ["short", "ä" * 20_000, ""])
def test_a_traceback_within_its_limit_is_whole(text: str) -> None:
    assert errors.cut_traceback(text) == text


def test_no_text_is_no_traceback() -> None:
    assert errors.cut_traceback(None) == ""
    assert errors.frames(None) == []
    assert errors.first_error(None) is None
    assert errors.ran_to_its_end(None) is False
    assert errors.is_from_retry(None) is False


def test_the_first_error_of_a_chain_is_the_jobs_own() -> None:
    found = errors.first_error(OWN + CHAIN_SEPARATOR + BACKEND)

    assert found is not None
    assert (found.type, found.message) == ("builtins.ValueError", "no such order\nsecond line")
    assert found.traceback == OWN


def test_an_error_with_a_module_and_without_a_message() -> None:
    own = block("shop.errors.Refused", ("/srv/shop/tasks.py", "ship"))

    found = errors.first_error(own + CHAIN_SEPARATOR + BACKEND)

    assert found is not None
    assert (found.type, found.message) == ("shop.errors.Refused", "")


@pytest.mark.parametrize(
    "chain",
    [
        OWN,  # no chain
        SOCKET + CHAIN_SEPARATOR + BACKEND,  # began in the plumbing
        "no frames" + "\n" + CHAIN_SEPARATOR + BACKEND,
        block("not an error!", ("/srv/shop/tasks.py", "ship")) + CHAIN_SEPARATOR + BACKEND,
        block("", ("/srv/shop/tasks.py", "ship")) + CHAIN_SEPARATOR + BACKEND,
    ],
)
def test_a_chain_that_does_not_begin_in_the_job_has_no_error_of_its_own(chain: str) -> None:
    assert errors.first_error(chain) is None


@pytest.mark.parametrize(
    ("error", "details"),
    [
        (WorkerLostError("Worker exited prematurely: signal 9 (SIGKILL) Job: 3."), {"signal": "SIGKILL"}),
        (WorkerLostError("Worker exited prematurely: signal 64."), {"signal": 64}),
        (WorkerLostError("Worker exited prematurely: exitcode 155 Job: 3."), {"exit_code": 155}),
        (WorkerLostError("gone"), {}),
        (SystemExit(), {"exit_code": 0}),
        (SystemExit(3), {"exit_code": 3}),
        (SystemExit("a message"), {"exit_code": 1}),
    ],
)
def test_how_a_process_ended(error: BaseException, details: dict[str, Any]) -> None:
    assert errors.exit_details(error) == details


@pytest.mark.parametrize(
    ("error", "attempt", "reason"),
    [
        (ValueError("x"), Attempt(), "failed"),
        (ValueError("x"), Attempt(retries=0, max_retries=0), "failed"),
        (ValueError("x"), Attempt(retries=2, max_retries=3), "failed"),
        (ValueError("x"), Attempt(retries=3, max_retries=3), "retries_exhausted"),
        (ValueError("x"), Attempt(retries=9, max_retries=None), "failed"),
        (SoftTimeLimitExceeded(), Attempt(retries=3, max_retries=3, soft_limit=2), "timed_out"),
        (SoftTimeLimitExceeded("given"), Attempt(soft_limit=2), "timed_out"),
        (TimeLimitExceeded(5), Attempt(), "timed_out"),
        (TimeLimitExceeded(), Attempt(hard_limit=7), "timed_out"),
        (WorkerLostError("x"), Attempt(), "worker_lost"),
        (SystemExit(3), Attempt(), "worker_lost"),
        (KeyboardInterrupt(), Attempt(), "worker_lost"),
        (MemoryError(), Attempt(), "worker_lost"),
        (Reject("x", requeue=False), Attempt(), "rejected"),
        (Reject(ValueError("x"), requeue=True), Attempt(), "rejected"),
        (Reject(None), Attempt(), "rejected"),
        (Ignore("x"), Attempt(), "ignored"),
    ],
)
def test_which_ending_an_error_is(error: BaseException, attempt: Attempt, reason: str) -> None:
    caught, text = raised(error)

    ending = judge(caught, text, attempt)

    assert ending is not None
    assert ending.reason == reason
    assert ending.is_death is (reason != "ignored")


@pytest.mark.parametrize("error", [Retry("x"), Terminated("x"), Ignore("Replaced by new task")])
def test_what_goes_on_elsewhere_is_no_ending(error: Exception) -> None:
    assert judge(error, "", Attempt()) is None


def test_an_error_that_billiard_wrapped_is_unwrapped() -> None:
    try:
        raise ValueError("inner")
    except ValueError:
        wrapped = ExceptionInfo()

    ending = judge(wrapped.exception, wrapped.traceback, Attempt())  # type: ignore[arg-type]

    assert ending is not None
    assert ending.error is not None
    assert (ending.error.type, ending.error.message) == ("builtins.ValueError", "inner")


def test_a_failure_while_the_backend_is_down_is_the_jobs_own() -> None:
    ending = judge(ConnectionError("Error 111"), OWN + CHAIN_SEPARATOR + BACKEND, Attempt(is_internal=True))

    assert ending is not None
    assert ending.reason == "failed"
    assert ending.error is not None
    assert ending.error.type == "builtins.ValueError"
    assert ending.details == {"bookkeeping_error": "redis.exceptions.ConnectionError: Error 111"}


def test_a_chain_of_the_jobs_own_is_left_alone() -> None:
    ending = judge(ValueError("second"), OWN + CHAIN_SEPARATOR + OWN, Attempt(is_internal=False))

    assert ending is not None
    assert ending.error is not None
    assert ending.error.message == "second"


@pytest.mark.parametrize(
    ("path", "function"),
    [
        ("/x/site-packages/celery/backends/base.py", "mark_as_done"),
        ("/x/site-packages/celery/app/trace.py", "_dispatch_callbacks_and_chain"),
        ("C:\\x\\celery\\backends\\base.py", "mark_as_done"),
    ],
)
def test_an_error_after_the_job_had_returned(path: str, function: str) -> None:
    text = block("ConnectionError: Error 111", ("/x/celery/app/trace.py", "trace_task"), (path, function))

    ending = judge(ConnectionError("Error 111"), text, Attempt(is_internal=True))

    assert ending is not None
    assert ending.reason == "result_not_stored"


def test_a_retry_that_was_not_sent_has_the_error_it_was_to_be_retried_for() -> None:
    text = OWN + CHAIN_SEPARATOR + SOCKET + CHAIN_SEPARATOR + RETRY

    ending = judge(Reject(ConnectionError("Error 111"), requeue=False), text, Attempt())

    assert ending is not None
    assert ending.reason == "retry_not_sent"
    assert ending.error is not None
    assert ending.error.message.startswith("no such order")
    assert ending.details == {"publish_error": "builtins.ConnectionError: Error 111"}


def test_a_retry_without_error_that_was_not_sent_has_the_brokers() -> None:
    ending = judge(
        Reject(ConnectionError("Error 111"), requeue=False), SOCKET + CHAIN_SEPARATOR + RETRY, Attempt()
    )

    assert ending is not None
    assert ending.reason == "retry_not_sent"
    assert ending.error is not None
    assert ending.error.message == "Error 111"
