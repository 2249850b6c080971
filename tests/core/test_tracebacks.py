"""Tracebacks as text become frames."""

from __future__ import annotations

import sys
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.core.tracebacks import package_of, parse

PYTHON_311 = """Traceback (most recent call last):
  File "/usr/lib/python3.11/site-packages/celery/app/trace.py", line 453, in trace_task
    R = retval = fun(*args, **kwargs)
                 ^^^^^^^^^^^^^^^^^^^^
  File "/app/shop/tasks.py", line 118, in charge_card
    receipt = gateway.charge(order.total)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/app/shop/gateway.py", line 41, in _post
    response.raise_for_status()
requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: https://x
second line of the message
"""

CHAINED = f"""{PYTHON_311}
During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/app/shop/tasks.py", line 120, in charge_card
    raise ChargeFailed(order) from error
shop.errors.ChargeFailed: order 48213
"""

GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "/app/shop/tasks.py", line 5, in run
  |     raise ExceptionGroup("two", errors)
  | ExceptionGroup: two (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | ValueError: one
    +---------------- 2 ----------------
"""


def test_frames_are_read_outermost_first_without_carets():
    parsed = parse(PYTHON_311)

    assert [(f.path, f.line, f.function, f.code) for f in parsed.frames] == [
        (
            "/usr/lib/python3.11/site-packages/celery/app/trace.py",
            453,
            "trace_task",
            "R = retval = fun(*args, **kwargs)",
        ),
        ("/app/shop/tasks.py", 118, "charge_card", "receipt = gateway.charge(order.total)"),
        ("/app/shop/gateway.py", 41, "_post", "response.raise_for_status()"),
    ]
    assert [(f.is_application, f.package) for f in parsed.frames] == [
        (False, "celery"),
        (True, ""),
        (True, ""),
    ]
    assert parsed.error_line.startswith("requests.exceptions.HTTPError: 503 Server Error")


def test_of_a_chain_the_last_block_counts():
    parsed = parse(CHAINED)

    assert [frame.line for frame in parsed.frames] == [120]
    assert parsed.error_line == "shop.errors.ChargeFailed: order 48213"


def test_an_exception_group_is_read_through_its_tree():
    parsed = parse(GROUP)

    assert [(frame.path, frame.code) for frame in parsed.frames] == [
        ("/app/shop/tasks.py", 'raise ExceptionGroup("two", errors)')
    ]
    assert parsed.error_line == "ExceptionGroup: two (2 sub-exceptions)"


def test_repeated_lines_of_a_recursion_are_no_code():
    text = (
        "Traceback (most recent call last):\n"
        '  File "/app/a.py", line 1, in f\n    f()\n'
        "  [Previous line repeated 996 more times]\n"
        "RecursionError: maximum recursion depth exceeded\n"
    )

    parsed = parse(text)

    assert [frame.code for frame in parsed.frames] == ["f()"]
    assert parsed.error_line == "RecursionError: maximum recursion depth exceeded"


def test_a_frame_without_source_has_no_code():
    text = 'Traceback (most recent call last):\n  File "/app/a.pyc", line 7, in f\n  File "/app/b.py", line 8, in g\n    h()\nKeyError: 1\n'

    assert [frame.code for frame in parse(text).frames] == ["", "h()"]


def test_code_over_several_lines_keeps_its_shape():
    text = 'Traceback (most recent call last):\n  File "/app/a.py", line 7, in f\n    call(\n        1,\n    )\nKeyError: 1\n'

    assert parse(text).frames[0].code == "call(\n    1,\n)"


@pytest.mark.parametrize(
    ("path", "package"),
    [
        ("/app/shop/tasks.py", ""),
        ("C:\\app\\shop\\tasks.py", ""),
        ("/home/u/lib/tasks.py", ""),
        ("/srv/venv/lib/python3.11/site-packages/requests/models.py", "requests"),
        ("/usr/lib/python3/dist-packages/yaml/__init__.py", "yaml"),
        ("/x/site-packages/six.py", "six"),
        ("C:\\venv\\Lib\\site-packages\\requests\\api.py", "requests"),
        ("/usr/lib/python3.11/smtplib.py", "python"),
        ("/usr/lib64/python3.12/json/decoder.py", "python"),
        ("C:\\Python311\\Lib\\smtplib.py", "python"),
        ("<frozen importlib._bootstrap>", "python"),
        ("<string>", "python"),
        ("/src/celery/celery/app/trace.py", "celery"),
        ("/srv/office/jobs/agent/requests.py", "jobs"),
        ("/srv/shop/jobs/tasks.py", ""),
        ("", ""),
    ],
)
def test_whose_code_a_file_is(path, package):
    assert package_of(path) == package


@pytest.mark.parametrize(
    ("text", "error_line"),
    [("", ""), ("ValueError: x", "ValueError: x"), ("first\n\nlast\n", "last"), ("\n \n", "")],
)
def test_what_is_no_traceback_has_no_frames(text, error_line):
    parsed = parse(text)

    assert (parsed.frames, parsed.error_line) == ((), error_line)


def test_a_hostile_line_number_is_no_number():
    text = f'Traceback (most recent call last):\n  File "/a.py", line {"9" * 5_000}, in f\n    x\nE: y\n'

    assert parse(text).frames[0].line == 0


@given(st.text())
def test_any_text_is_read(text):
    parse(text)


@given(
    st.lists(st.sampled_from([*PYTHON_311.splitlines(), *GROUP.splitlines(), "", "    ^^^"])).map("\n".join)
)
def test_any_order_of_lines_is_read(text):
    parsed = parse(text)

    assert all(frame.path for frame in parsed.frames)


@given(st.integers(1, 30))
def test_what_python_writes_is_read_back(depth):
    def dive(level: int) -> None:
        if level == 0:
            raise KeyError("sku")
        dive(level - 1)

    try:
        dive(depth)
    except KeyError:
        text = traceback.format_exc()
        written = traceback.extract_tb(sys.exc_info()[2])

    read = parse(text)

    assert read.error_line == "KeyError: 'sku'"
    expected = [(f.filename, f.name, f.line) for f in written]
    assert [(f.path, f.function, f.code) for f in read.frames][:3] == expected[:3]
