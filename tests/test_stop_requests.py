"""A signal that asks a process to stop is heard, whatever line it interrupts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.test_starts import python

# Sends SIGTERM at the first line that a wait comes to, then at the second, and so on, beyond the whole of a round.
EACH_LINE = """
import signal, sys
import django; django.setup()
{what}

def wait_until_line(number):
    "Wait, with the signal at that line."
    seen = 0

    def count(frame, event, argument):
        nonlocal seen
        if event == "line":
            seen += 1
            if seen == number:
                signal.raise_signal(signal.SIGTERM)
        return count

    wait(lambda: sys.settrace(count))
    sys.settrace(None)
    assert seen >= number

for number in range(1, 11):
    wait_until_line(number)
print("heard")
"""
# The environment of the shop, which the demo's traffic reads when it is imported.
SHOP = {"SHOP_DIRECTORY": ".", "SHOP_MAIL_PORT": "1", "SHOP_PAYMENTS_PORT": "1"}
RUNOPS = """
from jobs.runops import Runops

class Traced(Runops):
    def start(self):
        super().start()
        self.trace()

def wait(trace):
    runops = Traced(duties=())
    runops.trace = trace
    assert runops.run()
"""
DEMO = """
from django.conf import settings
from console.demo import traffic
from console.demo.state import Demo
from console.management.commands.demo import Command

class Traffic:
    "Waits as the shop's traffic does, and sends nothing."
    def __init__(self, demo, *, count_letters):
        pass
    def run(self, stop, *, say):
        self.trace()
        while not stop.wait(traffic.STEADY_SECONDS):
            pass

traffic.Traffic = Traffic

def wait(trace):
    Traffic.trace = staticmethod(trace)
    Command()._send(Demo.of(settings.DATA_DIR))
"""


@pytest.mark.parametrize("what", [RUNOPS, DEMO], ids=["runops", "demo"])
def test_sigterm_is_heard_at_whatever_line_it_comes(tmp_path: Path, what: str) -> None:
    """threading.Event is not enough: its lock is held by the thread whose handler then waits for it, for ever."""
    try:
        said = python(EACH_LINE.format(what=what), tmp_path, **SHOP)
    except subprocess.TimeoutExpired:
        pytest.fail("it did not hear the signal")

    assert said == "heard\n"
