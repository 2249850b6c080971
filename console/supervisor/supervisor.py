"""Starts programs in phases, shows their output, and stops them all when one dies or a signal comes.

One thread and one selector: output pipes, and a socket into which Python writes the number of every
signal. The shape is gunicorn's arbiter (signals become bytes in a queue, children are collected in
the main loop) with honcho's prefixed lines; docs/decisions.md says why neither is used.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from console.supervisor.guard import Guard, signal_program
from console.supervisor.output import Output
from console.supervisor.program import Program
from console.supervisor.stopping import StopPlan

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TICK_SECONDS = 0.2
LAST_LINES = 40
SHOWN_LINES = 12
# EX_CONFIG of sysexits.h: the program says itself what it needs, and is given the room.
REFUSED_TO_START = 78
# A program that never ends its line is cut here, so that it cannot fill the memory.
LINE_LIMIT_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended: ``problem`` is one sentence, empty when a signal asked for the end."""

    problem: str = ""
    killed: tuple[str, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether it was asked for and nothing had to be killed."""
        return not self.problem and not self.killed


@dataclass(slots=True)
class Running:
    """A program that was started."""

    program: Program
    process: subprocess.Popen[bytes]
    output: int
    deadline: float
    restart_stamp: int
    is_ready: bool = False
    restart: StopPlan | None = None
    buffer: bytearray = field(default_factory=bytearray)
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))


class Supervisor:
    """Runs programs until a signal or a death ends all of them.

    ``guard_fds`` are inherited by the guard, see ``DataLock``. Must run in the main thread.
    """

    def __init__(self, output: Output, *, guard_fds: tuple[int, ...] = ()) -> None:
        self._output = output
        self._guard_fds = guard_fds
        self._running: dict[str, Running] = {}
        self._selector = selectors.DefaultSelector()
        self._stop_signals = 0
        self._problem = ""

    def run(self, phases: Sequence[Callable[[], Sequence[Program]]]) -> Ending:
        """Start phase after phase, each when all of the one before is ready; return when all are gone.

        A phase is a function, so that it can use what the one before it made. When it raises, all is
        stopped and the exception goes on.
        """
        with self._signals():
            guard = Guard(pass_fds=self._guard_fds)
            try:
                for phase in phases:
                    if self._must_stop():
                        break
                    for program in phase():
                        self._start(program, guard)
                    while not self._must_stop() and not self._all_ready():
                        self._turn(guard)
                while not self._must_stop():
                    self._turn(guard)
            finally:
                killed = self._stop_all(guard)
                guard.dismiss()
        return Ending(problem=self._problem, killed=tuple(killed))

    def _must_stop(self) -> bool:
        return bool(self._stop_signals or self._problem or self._output.is_broken)

    def _all_ready(self) -> bool:
        return all(running.is_ready for running in self._running.values())

    def _start(self, program: Program, guard: Guard) -> None:
        if self._must_stop():
            return
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        try:
            process = subprocess.Popen(  # noqa: S603 (the commands are the caller's own)
                program.command,
                stdin=subprocess.PIPE if program.input else subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                env=dict(program.environment),
                pass_fds=program.pass_fds,
                # A session of its own: the terminal's Ctrl-C reaches the supervisor alone.
                start_new_session=True,
            )
        except OSError as error:
            os.close(reading)
            self._problem = f"{program.name} cannot be started: {program.command[0]}: {error.strerror}."
            return
        finally:
            os.close(writing)
        guard.announce(program.name, process.pid, program.stop)
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError), process.stdin:
                process.stdin.write(program.input.encode())
        self._running[program.name] = Running(
            program=program,
            process=process,
            output=reading,
            deadline=time.monotonic() + program.ready_seconds,
            restart_stamp=program.restart_stamp,
            is_ready=program.is_ready is None and not program.once,
        )
        self._selector.register(reading, selectors.EVENT_READ, program.name)

    def _turn(self, guard: Guard) -> None:
        """Wait for output or a signal, at most a tick; then look after every program."""
        self._read_ready()
        if guard.is_lost:
            self._problem = "The guard, which stops everything if this process is killed, died itself."
        for running in list(self._running.values()):
            status = self._collect(running, guard)
            if status is None:
                self._look_after(running)
            elif running.restart is not None:
                self._start(running.program, guard)
            elif not (running.program.once and status == 0):
                self._problem = self._problem or died(running, status)

    def _look_after(self, running: Running) -> None:
        """Ask whether a program is ready; restart it when its file changed."""
        program, now = running.program, time.monotonic()
        if not running.is_ready:
            if program.is_ready is not None and program.is_ready():
                running.is_ready = True
            elif now > running.deadline:
                self._problem = self._problem or (
                    f"{program.name} was not ready within {program.ready_seconds:.0f} s."
                )
        if running.restart is None and program.restart_stamp != running.restart_stamp:
            self._output.say(f"Restarting {program.name}: {program.restart_on} changed.")
            running.restart = StopPlan([(program.name, program.stop)])
        if running.restart is not None:
            for _, number in running.restart.step(now, {program.name}):
                signal_program(running.process.pid, number)

    def _read_ready(self) -> None:
        for key, _ in self._selector.select(TICK_SECONDS):
            if isinstance(key.data, str):
                self._read(self._running[key.data])
            else:
                received = key.data.recv(4096)
                self._stop_signals += sum(number in STOP_SIGNALS for number in received)

    def _read(self, running: Running, *, at_end: bool = False) -> None:
        """Show what a program has written; at its end, until its pipe is empty."""
        while True:
            try:
                chunk = os.read(running.output, 65_536)
            except BlockingIOError:
                break
            running.buffer += chunk
            while (end := running.buffer.find(b"\n")) >= 0:
                self._show(running, bytes(running.buffer[:end]))
                del running.buffer[: end + 1]
            if len(running.buffer) > LINE_LIMIT_BYTES or (running.buffer and not chunk):
                self._show(running, bytes(running.buffer))
                running.buffer.clear()
            if not chunk:
                # Closed by the program, which may live on without output.
                with contextlib.suppress(KeyError):
                    self._selector.unregister(running.output)
                break
            if not at_end:
                break
        if at_end and running.buffer:
            self._show(running, bytes(running.buffer))

    def _show(self, running: Running, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip()
        running.last_lines.append(text)
        if not running.program.is_quiet:
            self._output.line(running.program.name, text)

    def _collect(self, running: Running, guard: Guard) -> int | None:
        """Return the exit status of a program that ended, after clearing up what it left."""
        pid = running.process.pid
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None
        # Before the pid is given back: children that outlived it, such as pool processes.
        signal_program(pid, signal.SIGKILL)
        status = running.process.wait()
        self._read(running, at_end=True)
        with contextlib.suppress(KeyError):
            self._selector.unregister(running.output)
        os.close(running.output)
        del self._running[running.program.name]
        guard.retract(running.program.name)
        return status

    def _stop_all(self, guard: Guard) -> list[str]:
        """Stop everything in order; a second Ctrl-C stops waiting for jobs. Return what was killed."""
        if self._problem:
            self._output.complain(self._problem)
        if self._running:
            self._output.say(f"Stopping {', '.join(self._running)}.")
        plan = StopPlan((name, running.program.stop) for name, running in self._running.items())
        asked = self._stop_signals
        while self._running:
            if self._stop_signals > max(asked, 1):
                plan.hurry(time.monotonic())
            for name, number in plan.step(time.monotonic(), self._running.keys()):
                signal_program(self._running[name].process.pid, number)
            self._read_ready()
            for running in list(self._running.values()):
                self._collect(running, guard)
        return plan.killed

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Turn signals into bytes that wake the selector."""
        reading, writing = socket.socketpair()
        reading.setblocking(False)
        writing.setblocking(False)
        # A handler in Python must exist for the wakeup socket to be written.
        before = {
            number: signal.signal(number, lambda *_: None) for number in (*STOP_SIGNALS, signal.SIGCHLD)
        }
        wakeup = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        self._selector.register(reading, selectors.EVENT_READ, reading)
        try:
            yield
        finally:
            self._selector.unregister(reading)
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            reading.close()
            writing.close()


def died(running: Running, status: int) -> str:
    """Say which program ended and how, with its last lines below the sentence."""
    if status < 0:
        # Real-time signals have no name.
        name = {number.value: f" ({number.name})" for number in signal.Signals}.get(-status, "")
        how = f"was killed by signal {-status}{name}"
    else:
        how = f"ended by itself with exit status {status}"
    shown = SHOWN_LINES
    if status == REFUSED_TO_START:
        how, shown = "refused to start", LAST_LINES
    text = f"{running.program.name} {how}; stopping the rest."
    if lines := [line for line in running.last_lines if line][-shown:]:
        text += " Its last lines:\n" + "\n".join(f"    {line}" for line in lines)
    return text
