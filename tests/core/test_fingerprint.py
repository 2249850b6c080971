"""The same bug is one group; two bugs are two."""

from __future__ import annotations

import itertools
import re
import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jobs.core.fingerprint import fingerprint, normal_message, normal_path, split_variable, title

TRACEBACK = """Traceback (most recent call last):
  File "/usr/lib/python3.11/site-packages/celery/app/trace.py", line 453, in trace_task
    R = retval = fun(*args, **kwargs)
  File "/app/shop/tasks.py", line 118, in charge_card
    receipt = gateway.charge(order.total)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/app/shop/gateway.py", line 41, in _post
    response.raise_for_status()
  File "/usr/lib/python3.11/site-packages/requests/models.py", line 1021, in raise_for_status
    raise HTTPError(message, response=self)
requests.exceptions.HTTPError: 503 Server Error for url: https://pay.example/orders/48213
"""
BUG = {
    "task": "shop.tasks.charge_card",
    "reason": "failed",
    "error_type": "requests.exceptions.HTTPError",
    "error": "503 Server Error for url: https://pay.example/orders/48213",
    "traceback": TRACEBACK,
}


def of(**changes: str) -> str:
    return fingerprint(**{**BUG, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"error": "503 Server Error for url: https://pay.example/orders/7"},
        {"error": "anything else"},
        {"reason": "retries_exhausted"},
        {"traceback": TRACEBACK.replace("line 118", "line 9")},
        {"traceback": TRACEBACK.replace("/app/", "/srv/app/releases/20261101/")},
        {"traceback": TRACEBACK.replace("/app/", "/home/deploy/shop-3.2.1/src/")},
        {"traceback": TRACEBACK.replace("/app/", "C:\\app\\").replace("shop/", "shop\\")},
        {"traceback": TRACEBACK.replace("python3.11", "python3.12")},
        {"traceback": TRACEBACK.replace("line 1021", "line 1030").replace("self)", "self, request=request)")},
        {"traceback": re.sub(r"^ +\^+\n", "", TRACEBACK, flags=re.MULTILINE)},
        {"traceback": TRACEBACK.replace("48213", "9").replace("503", "500")},
    ],
    ids=[
        "other id in the message", "other message", "retries used up", "line moved", "release directory",
        "other root", "windows", "other python", "library changed", "older python", "other last line",
    ],
)  # fmt: skip
def test_the_same_bug_is_one_group(changes):
    assert of(**changes) == of()


@pytest.mark.parametrize(
    "changes",
    [
        {"task": "shop.tasks.other"},
        {"error_type": "builtins.KeyError"},
        {"traceback": TRACEBACK.replace("response.raise_for_status()", "response.json()")},
        {"traceback": TRACEBACK.replace("in _post", "in _get")},
        {"traceback": TRACEBACK.replace("shop/gateway.py", "shop/other.py")},
        {"traceback": TRACEBACK.replace("in charge_card", "in refund")},
        {"reason": "worker_lost"},
        {"traceback": ""},
    ],
    ids=["task", "type", "line of code", "function", "file", "caller", "reason", "no traceback"],
)
def test_two_bugs_are_two_groups(changes):
    assert of(**changes) != of()


def test_two_bugs_of_one_type_in_one_function_are_two():
    first = TRACEBACK.replace("response.raise_for_status()", 'row["sku"]')
    second = TRACEBACK.replace("response.raise_for_status()", 'row["price"]')

    assert of(error_type="KeyError", traceback=first) != of(error_type="KeyError", traceback=second)


def test_without_a_line_of_code_the_message_tells_bugs_apart():
    bare = re.sub(r"^    .*\n", "", TRACEBACK, flags=re.MULTILINE)

    assert of(traceback=bare, error="no sku 1") == of(traceback=bare, error="no sku 2")
    assert of(traceback=bare, error="no sku 1") != of(traceback=bare, error="no price 1")


def test_the_depth_of_a_recursion_makes_no_difference():
    line = '  File "/app/shop/tree.py", line 3, in walk\n    walk(node.parent)\n'
    shallow, deep = (f"Traceback (most recent call last):\n{line * n}RecursionError: x\n" for n in (2, 40))

    assert of(traceback=shallow) == of(traceback=deep)


@pytest.mark.parametrize(
    "reason", ["worker_lost", "timed_out", "expired", "unregistered", "malformed", "broker"]
)
def test_what_strikes_anywhere_is_one_group_a_task_and_message(reason):
    first = of(reason=reason, error="Job 15 was lost: signal 9 (SIGKILL)")

    assert of(reason=reason, error="Job 16 was lost: signal 9 (SIGKILL)", traceback="") == first
    assert of(reason=reason, error="Job 15 was lost: signal 11 (SIGSEGV)") != first
    assert of(reason=reason, error="Job 15 was lost: signal 9 (SIGKILL)", task="other") != first


IDS = st.one_of(
    st.uuids().map(str),
    st.integers(0, 10**12).map(str),
    st.integers(16**8, 16**15).map(hex),
    st.integers(16**15, 16**16).map(lambda n: f"{n:x}").filter(lambda text: re.search("[0-9]", text)),
    st.ip_addresses(v=4).map(str),
    st.datetimes().map(lambda moment: moment.isoformat()),
    st.text(string.ascii_letters, min_size=1).map(lambda name: f"'{name}'"),
    st.text(string.ascii_lowercase, min_size=1, max_size=20).map(lambda name: f"{name}@example.org"),
    st.text(string.ascii_letters, min_size=1, max_size=20).map(
        lambda name: f"https://example.org/{name}?a=1"
    ),
    st.text(string.ascii_letters, min_size=1, max_size=20).map(lambda name: f"/tmp/{name}/x.csv"),
    st.decimals(0, 10**9, places=2).map(str),
)


@given(IDS, IDS, st.integers(1, 10**6), st.integers(1, 10**6))
def test_ids_and_line_numbers_make_no_difference(first, second, line, other_line):
    def one(value: str, number: int) -> str:
        text = f"order {value} is gone"
        moved = re.sub(r"line \d+", f"line {number}", TRACEBACK).replace("48213", value)
        return of(error=text, traceback=moved)

    assert one(first, line) == one(second, other_line)


@given(IDS, IDS)
@example("1000.00", "12345678.90")
@example("7", "1000.00")
def test_ids_in_a_message_without_traceback_make_no_difference(first, second):
    texts = (f"order {value} is gone, see {value}" for value in (first, second))

    assert len({of(reason="worker_lost", error=text, traceback="") for text in texts}) == 1


@given(st.text(), st.text(), st.text(), st.text())
def test_any_text_has_a_fingerprint(task, error_type, error, traceback):
    assert re.fullmatch(
        "[0-9a-f]{40}", of(task=task, error_type=error_type, error=error, traceback=traceback)
    )


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/srv/app/releases/20261101/shop/tasks.py", "shop/tasks.py"),
        ("/app/shop/tasks.py", "shop/tasks.py"),
        ("/app/tasks.py", "tasks.py"),
        ("/usr/src/app/tasks.py", "tasks.py"),
        ("C:\\app\\shop\\tasks.py", "shop/tasks.py"),
        ("shop/tasks.py", "shop/tasks.py"),
        ("./tasks.py", "tasks.py"),
        ("tasks.py", "tasks.py"),
        ("/deploy/8f3c2a9/shop/tasks.py", "shop/tasks.py"),
        ("/opt/shop-web/current/shop/payments/gateway.py", "payments/gateway.py"),
        ("C:\\tasks.py", "tasks.py"),
        ("", ""),
        ("///", ""),
    ],
)
def test_a_path_is_the_same_wherever_it_is_installed(path, expected):
    assert normal_path(path) == expected


@given(
    st.lists(
        st.sampled_from(["srv", "app", "releases", "20261101", "v1.2.3", "8f3c2a9e", "home"]), max_size=5
    ),
    st.sampled_from(["shop/tasks.py", "payments/gateway.py"]),
)
def test_any_release_directory_is_left_out(directories, module):
    assert normal_path("/" + "/".join([*directories, module])) == module


@pytest.mark.parametrize(
    ("text", "variable"),
    [
        ("[Errno 111] Connection refused", []),
        ("503 Server Error for url: https://pay.example/a?b=1", ["https://pay.example/a?b=1"]),
        ("'sku'", ["'sku'"]),
        ("can't find it", []),
        ("no order 48213 for mara@example.org", ["48213", "mara@example.org"]),
        ("<Order object at 0x7f12ab>", ["0x7f12ab"]),
        ("at 2026-11-12T03:04:05.123Z", ["2026-11-12T03:04:05.123Z"]),
        ("at 2026-11-12 03:04:05", ["2026-11-12 03:04:05"]),
        ("from 10.0.0.7:5432", ["10.0.0.7:5432"]),
        ("from fe80::1:2:3", ["fe80::1:2:3"]),
        ("job 8f3c2a91-0000-4000-8000-00000000000a", ["8f3c2a91-0000-4000-8000-00000000000a"]),
        ("utf8 v2 sha256 http2 and/or N/A", []),
        ("timed out after 300s, 3.5 %", ["300", "3.5"]),
        ("open /var/data/in.csv", ["/var/data/in.csv"]),
        ("open C:\\data\\in.csv", ["C:\\data\\in.csv"]),
        ("worker exited: signal 9 (SIGKILL)", []),
        ("-5 + 1e9", ["-5", "1e9"]),
        ("", []),
    ],
)
def test_the_variable_parts_of_a_message(text, variable):
    assert [part for part, is_variable in split_variable(text) if is_variable] == variable


@given(st.text() | st.lists(IDS | st.sampled_from([" ", "order", "'", '"', "/", "@"])).map("".join))
def test_the_parts_are_the_text_and_take_turns(text):
    parts = split_variable(text)

    assert "".join(part for part, _ in parts) == text
    assert all(part for part, _ in parts)
    assert all(first[1] != second[1] for first, second in itertools.pairwise(parts))


@given(st.text())
def test_a_normal_message_is_one_line(text):
    normal = normal_message(text)

    assert normal == " ".join(normal.split())


@pytest.mark.parametrize(
    ("error_type", "error", "expected"),
    [
        ("builtins.KeyError", "'sku'", "KeyError: 'sku'"),
        (
            "requests.exceptions.HTTPError",
            "503 Server Error: Service Unavailable for url: https://x/1",
            "HTTPError: 503 Server Error: Service Unavailable for url",
        ),
        ("ConnectionRefusedError", "[Errno 111] Connection refused", "ConnectionRefusedError: [Errno 111] Connection refused"),
        ("TimeLimitExceeded", "TimeLimitExceeded(300,)", "TimeLimitExceeded: TimeLimitExceeded(300,)"),
        ("E", "job 8f3c2a91-0000-4000-8000-00000000000a is gone", "E: job … is gone"),
        ("E", "first line\nsecond line", "E: first line"),
        ("E", "\n\n  third\n", "E: third"),
        ("E", "", "E"),
        ("", "only words", "only words"),
        ("", "", ""),
        ("E", "x" * 5_000, "E: " + "x" * 251 + "…"),
    ],
)  # fmt: skip
def test_a_title(error_type, error, expected):
    assert title(error_type, error) == expected


@given(st.text(st.characters()), st.text(st.characters()))
def test_any_title_fits(error_type, error):
    text = title(error_type, error)

    assert len(text) <= 255
    text.encode("utf-8")
