"""The supervisor with real programs, small ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from console.supervisor.output import Output
from console.supervisor.stopping import StopPlan, StopRule
from tests.servers import wait_until

ROOT = Path(__file__).resolve().parent.parent


class Scene:
    """A supervisor in a process of its own, running small Python programs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = directory / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, programs: str) -> Scene:
        """``programs`` is Python that fills ``phases``; ``program(name, code, **options)`` makes one."""
        script = self.directory / "scene.py"
        script.write_text(
            textwrap.dedent(
                """
                import os, sys
                from pathlib import Path
                from console.supervisor import Output, Program, Supervisor
                from console.supervisor.stopping import StopRule
                here = Path(sys.argv[1])
                def program(name, code, stage=0, kill=2.0, quit=None, **options):
                    preamble = "import os, signal, sys, time; from pathlib import Path; here = Path(sys.argv[1]); "
                    preamble += f"(here / '{name}.pid').write_text(str(os.getpid()))\\n"
                    return Program(name=name, command=(sys.executable, "-u", "-c", preamble + code, str(here)),
                        stop=StopRule(stage=stage, kill_after_seconds=kill, quit_after_seconds=quit),
                        environment=os.environ, **options)
                """
            )
            + textwrap.dedent(programs)
            + textwrap.dedent(
                """
                ending = Supervisor(Output(sys.stdout, colour=False)).run(phases)
                print("ENDING", ending.problem.splitlines()[:1], ending.killed, flush=True)
                sys.exit(0 if ending.is_clean else 1)
                """
            )
        )
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(script), str(self.directory)],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return self

    def pid(self, name: str) -> int:
        path, found = self.directory / f"{name}.pid", []

        def is_there() -> bool:
            # Read once: a program that starts again writes the file anew.
            found[:] = path.read_text().split() if path.exists() else []
            return bool(found)

        wait_until(is_there, seconds=20, what=f"{name} to start")
        return int(found[0])

    def text(self) -> str:
        return self.log.read_text()

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.text(), seconds=20, what=repr(text))

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(timeout=20)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    if scene.process is not None and scene.process.poll() is None:
        scene.process.kill()
        scene.process.wait()


def runs(pid: int) -> bool:
    """Say whether a process lives; one that nobody has collected yet does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


SLEEPER = "print('up', flush=True); time.sleep(60)"


def test_output_of_every_program_carries_its_name(scene: Scene) -> None:
    scene.start(
        f"phases = [lambda: [program('one', {SLEEPER!r}), program('two', \"print('hello'); time.sleep(60)\")]]"
    )

    scene.wait_for("one      | up")
    scene.wait_for("two      | hello")
    assert scene.end() == 0


def test_a_program_that_stops_on_sigterm_is_not_killed(scene: Scene) -> None:
    scene.start(f"phases = [lambda: [program('one', {SLEEPER!r})]]")
    pid = scene.pid("one")

    status = scene.end(signal.SIGTERM)

    assert status == 0
    assert not runs(pid)
    assert "ENDING [] ()" in scene.text()


def test_stages_stop_one_after_the_other(scene: Scene) -> None:
    goodbye = (
        "def stop(*_):\\n    time.sleep(0.3)\\n    print('bye', flush=True)\\n    os._exit(0)\\n"
        "signal.signal(signal.SIGTERM, stop)\\nprint('up', flush=True)\\ntime.sleep(60)"
    )
    scene.start(
        # The order is tested and not the time, which counts from the first of them.
        f"phases = [lambda: [program('last', '''{goodbye}''', stage=2, kill=20),"
        f" program('first', '''{goodbye}''', kill=20), program('middle', '''{goodbye}''', stage=1, kill=20)]]"
    )
    for name in ("first", "middle", "last"):
        scene.wait_for(f"{name:<8} | up")

    scene.end()

    byes = [line.split()[0] for line in scene.text().splitlines() if line.endswith("| bye")]
    assert byes == ["first", "middle", "last"]


def test_a_program_that_does_not_stop_is_killed_with_its_children(scene: Scene) -> None:
    stubborn = (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\\n"
        "child = os.fork()\\n"
        "if child: (here / 'child.pid').write_text(str(child)); print('up', flush=True)\\n"
        "time.sleep(60)"
    )
    scene.start(f"phases = [lambda: [program('one', '''{stubborn}''', kill=0.5)]]")
    scene.wait_for("| up")

    status = scene.end()

    assert status == 1
    assert "ENDING [] ('one',)" in scene.text()
    assert not runs(scene.pid("one"))
    # Killed as well, and nobody waits for it: on a busy machine it is gone a moment later.
    wait_until(lambda: not runs(scene.pid("child")), seconds=5, what="the child to go")


def test_sigquit_comes_between_sigterm_and_sigkill(scene: Scene) -> None:
    code = (
        "signal.signal(signal.SIGTERM, lambda *_: print('term', flush=True))\\n"
        "signal.signal(signal.SIGQUIT, lambda *_: (print('quit', flush=True), os._exit(0)))\\n"
        "print('up', flush=True)\\nwhile True: time.sleep(1)"
    )
    scene.start(f"phases = [lambda: [program('one', '''{code}''', quit=2, kill=20)]]")
    scene.wait_for("| up")

    status = scene.end()

    assert status == 0
    lines = [line.split()[-1] for line in scene.text().splitlines() if line.startswith("one")]
    assert lines == ["up", "term", "quit"]


def test_a_second_signal_stops_waiting(scene: Scene) -> None:
    stubborn = (
        "signal.signal(signal.SIGTERM, lambda *_: print('term', flush=True))\\n"
        "print('up', flush=True)\\nwhile True: time.sleep(1)"
    )
    scene.start(
        f"phases = [lambda: [program('one', '''{stubborn}''', kill=60), program('last', {SLEEPER!r}, stage=1)]]"
    )
    scene.wait_for("one      | up")
    scene.wait_for("last     | up")

    scene.process.send_signal(signal.SIGINT)
    scene.wait_for("| term")
    began = time.monotonic()
    status = scene.end()

    assert status == 1
    assert time.monotonic() - began < 5
    assert "ENDING [] ('one',)" in scene.text()


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("print('why'); sys.exit(3)", "two ended by itself with exit status 3; stopping the rest."),
        ("sys.exit(0)", "two ended by itself with exit status 0; stopping the rest."),
        ("print('why'); os.kill(os.getpid(), 9)", "two was killed by signal 9 (SIGKILL); stopping the rest."),
        ("os.kill(os.getpid(), 40)", "two was killed by signal 40; stopping the rest."),
    ],
)
def test_a_dead_program_is_named_and_the_rest_stops(scene: Scene, code: str, sentence: str) -> None:
    # Until it is written whole, or the end would come before "one" has told its pid.
    there = "(here / 'one.pid').exists() and (here / 'one.pid').read_text()"
    code = f"while not ({there}): time.sleep(0.01)\n{code}"
    scene.start(f"phases = [lambda: [program('one', {SLEEPER!r}), program('two', {code!r})]]")

    status = scene.process.wait(timeout=20)

    assert status == 1
    assert sentence in scene.text()
    assert not runs(scene.pid("one"))


def test_last_lines_of_a_dead_program_follow_the_sentence(scene: Scene) -> None:
    scene.start("phases = [lambda: [program('one', \"print('reason'); sys.exit(2)\")]]")

    scene.process.wait(timeout=20)

    assert "Its last lines:\n    reason\n" in scene.text()


def test_output_of_a_quiet_program_is_shown_only_when_it_dies(scene: Scene) -> None:
    code = "print('one'); (here / 'said').touch(); time.sleep(60)"
    scene.start(f"phases = [lambda: [program('quiet', {code!r}, is_quiet=True)]]")
    wait_until((scene.directory / "said").exists, seconds=20, what="the program to say it")

    os.kill(scene.pid("quiet"), signal.SIGKILL)

    assert scene.process.wait(timeout=20) == 1
    assert "quiet    | " not in scene.text()
    assert "Its last lines:\n    one\n" in scene.text()


def test_a_command_that_does_not_exist_is_named(scene: Scene) -> None:
    scene.start(
        "phases = [lambda: [Program(name='one', command=('/nowhere/one',), stop=StopRule(0, 1), environment={})]]"
    )

    assert scene.process.wait(timeout=20) == 1
    assert "one cannot be started: /nowhere/one: No such file or directory." in scene.text()


def test_a_phase_waits_for_the_one_before(scene: Scene) -> None:
    once = "time.sleep(0.5); (here / 'made').write_text('x')"
    scene.start(
        f"""
        phases = [
            lambda: [program('make', {once!r}, once=True),
                     program('one', {SLEEPER!r}, is_ready=lambda: (here / 'one.pid').exists())],
            lambda: [program('two', "print(sorted(p.name for p in here.glob('m*'))); time.sleep(60)")],
        ]
        """
    )

    scene.wait_for("two      | ['made', 'make.pid']")
    assert scene.end() == 0


def test_a_program_that_fails_its_only_task_stops_the_start(scene: Scene) -> None:
    scene.start(
        f"""
        phases = [
            lambda: [program('make', 'sys.exit(1)', once=True)],
            lambda: [program('two', {SLEEPER!r})],
        ]
        """
    )

    assert scene.process.wait(timeout=20) == 1
    assert "make ended by itself with exit status 1" in scene.text()
    assert not (scene.directory / "two.pid").exists()


def test_a_program_that_never_gets_ready_is_named(scene: Scene) -> None:
    scene.start(f"phases = [lambda: [program('one', {SLEEPER!r}, is_ready=lambda: False, ready_seconds=1)]]")

    assert scene.process.wait(timeout=20) == 1
    assert "one was not ready within 1 s." in scene.text()


def test_a_phase_that_raises_leaves_nothing_running(scene: Scene) -> None:
    scene.start(
        f"""
        def fail():
            raise LookupError("no such thing")
        phases = [lambda: [program('one', {SLEEPER!r})], fail]
        """
    )

    assert scene.process.wait(timeout=20) == 1
    assert "LookupError: no such thing" in scene.text()
    # Stopped before it could write its pid, or after.
    path = scene.directory / "one.pid"
    assert not (path.exists() and path.read_text() and runs(int(path.read_text())))


def test_nothing_lives_on_when_the_supervisor_is_killed(scene: Scene) -> None:
    goodbye = (
        "def stop(*_):\\n    (here / 'stopped').open('a').write('{name} ')\\n    os._exit(0)\\n"
        "signal.signal(signal.SIGTERM, stop)\\n"
        "child = os.fork()\\n"
        "if child: (here / '{name}-child.pid').write_text(str(child)); print('up', flush=True)\\n"
        "while True: time.sleep(1)"
    )
    scene.start(
        f"phases = [lambda: [program('last', '''{goodbye.format(name='last')}''', stage=1, kill=20),"
        f" program('first', '''{goodbye.format(name='first')}''', kill=20)]]"
    )
    scene.wait_for("last     | up")
    scene.wait_for("first    | up")

    scene.process.kill()
    scene.process.wait()

    pids = [scene.pid(name) for name in ("first", "last", "first-child", "last-child")]
    wait_until(lambda: not any(map(runs, pids)), seconds=30, what="the programs to go")
    assert (scene.directory / "stopped").read_text() == "first last "


def test_a_lost_guard_ends_the_supervisor(scene: Scene) -> None:
    scene.start(f"phases = [lambda: [program('one', {SLEEPER!r})]]")
    scene.wait_for("| up")
    children = psutil.Process(scene.process.pid).children()
    (guard,) = [child for child in children if "supervisor.guard" in " ".join(child.cmdline())]

    guard.kill()

    assert scene.process.wait(timeout=20) == 1
    assert "The guard, which stops everything if this process is killed, died itself." in scene.text()
    assert not runs(scene.pid("one"))


def test_a_program_restarts_when_its_file_changes(scene: Scene) -> None:
    scene.start(
        f"phases = [lambda: [program('one', {SLEEPER!r}, restart_on=here / 'version'), program('two', {SLEEPER!r})]]"
    )
    first, other = scene.pid("one"), scene.pid("two")
    scene.wait_for("one      | up")

    (scene.directory / "version").write_text("2")

    wait_until(lambda: scene.pid("one") != first, seconds=10, what="a new process")
    assert not runs(first)
    assert runs(other)
    assert scene.end() == 0


def test_a_reader_that_goes_away_ends_the_supervisor(scene: Scene) -> None:
    scene.start(
        f"""
        reading, writing = os.pipe()
        os.dup2(writing, 1)
        os.close(reading)
        phases = [lambda: [program('one', {SLEEPER!r})]]
        """
    )

    assert scene.process.wait(timeout=20) != 0
    path = scene.directory / "one.pid"
    assert not (path.exists() and path.read_text() and runs(int(path.read_text())))


def test_a_line_that_never_ends_is_cut(scene: Scene) -> None:
    code = "sys.stdout.write('x' * 300_000); (here / 'written').touch(); time.sleep(60)"
    scene.start(f"phases = [lambda: [program('one', {code!r})]]")

    wait_until(lambda: scene.text().count("x") >= 196_000, seconds=20, what="a part of the line")
    wait_until((scene.directory / "written").exists, seconds=20, what="the rest to be on its way")
    assert scene.end() == 0
    assert scene.text().count("x") == 300_000


def test_escape_sequences_of_a_program_do_not_reach_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with path.open("w") as stream:
        Output(stream, colour=False).line("one", "\x1b]0;owned\x07 tab\tkept \x9b31m é")

    assert path.read_text() == "one      | \\x1b]0;owned\\x07 tab\tkept \\x9b31m é\n"


def test_colour_only_when_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with path.open("w") as stream:
        Output(stream, colour=True).line("one", "text")

    assert path.read_text() == "\033[36mone      | \033[0mtext\n"


def test_plan_sends_each_signal_once() -> None:
    plan = StopPlan([("one", StopRule(stage=0, kill_after_seconds=2, quit_after_seconds=1))])

    sent = [plan.step(now / 10, {"one"}) for now in range(40)]

    assert [signals for signals in sent if signals] == [
        [("one", signal.SIGTERM)],
        [("one", signal.SIGQUIT)],
        [("one", signal.SIGKILL)],
    ]
    assert sent[10] == [("one", signal.SIGQUIT)]
    assert sent[20] == [("one", signal.SIGKILL)]
    assert plan.killed == ["one"]


def test_plan_asks_again_who_may_miss_it() -> None:
    """Celery's beat does: SIGTERM in the middle of a query ended in a log line, and it went on."""
    plan = StopPlan([("beat", StopRule(stage=0, kill_after_seconds=2, repeat_every_seconds=0.5))])

    steps = [plan.step(now, ["beat"]) for now in (0, 0.4, 0.6, 1.0, 1.2, 2.0)]

    term, kill = ("beat", signal.SIGTERM), ("beat", signal.SIGKILL)
    assert steps == [[term], [], [term], [], [term], [term, kill]]


def test_a_stage_may_use_the_time_that_the_one_before_left() -> None:
    plan = StopPlan([("one", StopRule(0, 2)), ("two", StopRule(1, 5))])
    plan.step(0, {"one", "two"})

    assert plan.step(1, {"two"}) == [("two", signal.SIGTERM)]
    assert plan.step(4.9, {"two"}) == []
    assert plan.step(5, {"two"}) == [("two", signal.SIGKILL)]


def test_hurry_spares_the_last_stage() -> None:
    plan = StopPlan([("one", StopRule(0, 5)), ("two", StopRule(1, 5)), ("redis", StopRule(2, 5))])
    plan.step(0, {"one", "two", "redis"})

    plan.hurry(1)

    assert plan.step(1, {"one", "two", "redis"}) == [("one", signal.SIGKILL), ("two", signal.SIGKILL)]
    assert plan.step(2, {"redis"}) == [("redis", signal.SIGTERM)]
