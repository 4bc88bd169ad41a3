"""The console as a run sees it: events in, text on the user's streams out."""

from __future__ import annotations

import io
import os
import pty
import struct
import termios
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from fcntl import ioctl
from typing import TYPE_CHECKING, Literal, TextIO

import pytest

from remoterun.console import Console
from remoterun.events import (
    Event,
    Logged,
    OutcomeReady,
    OutputArrived,
    Progressed,
    RecordArrived,
    RunFinished,
    RunStarted,
    TargetMoved,
)
from remoterun.model import (
    Captured,
    ExecWork,
    Job,
    Outcome,
    Phase,
    Plan,
    Status,
)
from tests.support.runs import captured, checkpoint, error, events_of, mixed_run, plan_of
from tests.support.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator


def started(plan: Plan) -> RunStarted:
    return RunStarted(plan=plan, started_at="2026-03-01T02:00:00.000Z")


def exec_plan(*targets: str) -> Plan:
    plan = plan_of(*targets, payload="exec")
    return plan_of(*targets, payload="exec", work=Job(target=plan.jobs[0].target, step=0, work=ExecWork(argv=(b"id",))))


def done(target: str = "kpro6/200", *, step: int = 0, noise: bytes = b"") -> OutcomeReady:
    outcome = Outcome(
        target=target,
        name=None,
        step=step,
        status=Status.OK,
        phase=Phase.COLLECT,
        timings_s={"total": 4.1},
        noise=captured(noise),
    )
    return OutcomeReady(outcome=outcome)


def output(data: bytes, target: str = "kpro6/200", stream: Literal["stdout", "stderr"] = "stdout") -> OutputArrived:
    return OutputArrived(target=target, step=0, stream=stream, data=data)


def moved(target: str, phase: Phase, *, waiting: bool = False) -> TargetMoved:
    return TargetMoved(target=target, step=0, phase=phase, waiting=waiting)


@dataclass
class Clock:
    """Tell a time that only the test moves."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def plain(*events: Event, verbosity: int = 0, programs: bool = True) -> tuple[str, bytes]:
    """Show events without a terminal; return what standard error and standard output got."""
    stderr, stdout = io.StringIO(), io.TextIOWrapper(io.BytesIO())
    with Console(stderr, output=stdout if programs else None, is_terminal=False, verbosity=verbosity) as console:
        for event in events:
            console(event)
            console.tick()
    buffer = stdout.buffer
    assert isinstance(buffer, io.BytesIO)
    return stderr.getvalue(), buffer.getvalue()


# --- no terminal -----------------------------------------------------------------------------------


def test_without_a_terminal_each_outcome_is_a_plain_line() -> None:
    text, _ = plain(*events_of(mixed_run()))
    assert text.splitlines() == [
        "check-ckpt: 6 targets, run 0195bc5e7a0c",
        "kpro6/200  findings  4 checkpoints, 2 bad, 34.1 s",
        "kpro6/201  failed  guest_stopped (enter): The guest is not running.",
        "kpro6/203  timeout  run_timeout (run): The payload ran longer than the limit `run` and was killed.",
        "kpro7/300  unreachable  connect_refused (connect): nothing listens on 10.1.2.7 port 22.",
        "kpro7/301  unreachable  connect_refused (connect): nothing listens on 10.1.2.7 port 22.",
        "kpro8/100  ok  1 checkpoint, 3.0 s",
    ]


@pytest.mark.parametrize(("targets", "lines"), [(("kpro6/200",), 0), (("kpro6/200", "kpro6/201"), 1)])
def test_the_line_of_the_only_target_is_left_to_a_result_that_follows(targets: tuple[str, ...], lines: int) -> None:
    stderr = io.StringIO()
    with Console(stderr, is_terminal=False, followed=True) as console:
        console(started(plan_of(*targets)))
        console(done())
    assert stderr.getvalue().count("kpro6/200  ok") == lines
    assert "kpro6/200  ok" in plain(started(plan_of("kpro6/200")), done(), programs=False)[0]


def test_quiet_says_nothing() -> None:
    assert plain(*events_of(mixed_run()), verbosity=-1) == ("", b"")


def test_verbose_tells_phases_and_logs_and_very_verbose_noise() -> None:
    events: list[Event] = [
        started(plan_of("kpro6/200")),
        moved("kpro6/200", Phase.CONNECT, waiting=True),
        moved("kpro6/200", Phase.CONNECT),
        Progressed(target="kpro6/200", step=0, done=1, total=2, unit="bytes", what="x"),
        RecordArrived(target="kpro6/200", step=0, record=checkpoint(1)),
        Logged(target="kpro6/200", step=0, text="reading \x1b[2J"),
        done(noise=b"motd\nmore\n"),
        RunFinished(run=mixed_run()),
    ]
    text, _ = plain(*events, verbosity=1)
    assert text.splitlines()[1:] == [
        "kpro6/200  queued for connect",
        "kpro6/200  connect",
        "kpro6/200  log  reading",
        "kpro6/200  ok  4.1 s",
    ]
    text, _ = plain(*events, verbosity=2)
    assert text.splitlines()[4:] == ["kpro6/200  noise  motd", "kpro6/200  noise  more", "kpro6/200  ok  4.1 s"]


def test_steps_of_a_target_are_told_apart() -> None:
    text, _ = plain(started(plan_of("kpro6/200", steps=2)), done(), done(step=1))
    assert text.splitlines()[1:] == ["kpro6/200  step 1  ok  4.1 s", "kpro6/200  step 2  ok  4.1 s"]


def test_interruptions_name_what_is_unconfirmed_even_when_quiet() -> None:
    stderr = io.StringIO()
    with Console(stderr, is_terminal=False, verbosity=-1) as console:
        console(started(plan_of("kpro6/200", "kpro6/201")))
        console.cancelling()
        console.left(("kpro6/200", "kpro6/201"))
        console.left(())
    assert stderr.getvalue().splitlines() == [
        "interrupted: cancelling, until every target has confirmed; Ctrl-C again leaves at once",
        "left; not confirmed as ended on 2 targets: kpro6/200, kpro6/201",
        "left; confirmed as ended on every target",
    ]


# --- programs --------------------------------------------------------------------------------------


def test_one_targets_output_goes_through_raw_and_apart() -> None:
    text, data = plain(
        started(exec_plan("kpro6/200")),
        output(b"\xff\x00part"),
        output(b"oops\n", stream="stderr"),
        output(b"ial"),
        done(),
    )
    assert data == b"\xff\x00partial"
    assert text == "oops\n"


def test_several_targets_output_comes_line_by_line() -> None:
    _, data = plain(
        started(exec_plan("kpro6/200", "kpro6/1")),
        output(b"one\ntw"),
        output(b"uno\n", "kpro6/1"),
        output(b"o"),
        done(),
    )
    assert data == b"kpro6/200 | one\nkpro6/1   | uno\nkpro6/200 | two\n"


def test_last_lines_without_an_outcome_are_shown_when_the_console_closes() -> None:
    _, data = plain(started(exec_plan("kpro6/200", "kpro6/201")), output(b"last words"))
    assert data == b"kpro6/200 | last words\n"


def test_where_standard_output_is_for_a_document_programs_are_not_shown() -> None:
    assert plain(started(exec_plan("kpro6/200")), output(b"data\n"), done(), programs=False) == ("", b"")


def test_programs_failures_are_left_to_the_summary() -> None:
    failure = Outcome(
        target="kpro6/200",
        name=None,
        step=0,
        status=Status.FAILED,
        phase=Phase.RUN,
        error=error("nonzero_exit", "exit status 3"),
        exit_status=3,
        stderr=Captured(head=b"no", total=2),
    )
    assert plain(started(exec_plan("kpro6/200", "kpro6/201")), OutcomeReady(outcome=failure))[0] == ""


# --- streams that break ------------------------------------------------------------------------------


def test_a_reader_of_the_output_who_leaves_is_told_once_and_nothing_is_raised() -> None:
    told: list[str] = []
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:
        stderr = io.StringIO()

        def closed(error: Exception) -> None:
            told.append(type(error).__name__)

        with Console(stderr, output=stdout, is_terminal=False, on_output_closed=closed) as console:
            console(started(exec_plan("kpro6/200")))
            for _ in range(3):
                console(output(b"data\n"))
            assert console.output_closed
    assert told == ["BrokenPipeError"]


def test_a_broken_standard_error_makes_the_console_silent() -> None:
    stderr, stdout = io.StringIO(), io.TextIOWrapper(io.BytesIO())
    stderr.close()
    with Console(stderr, output=stdout, is_terminal=False, verbosity=2) as console:
        for event in (started(exec_plan("kpro6/200")), output(b"data\n"), done()):
            console(event)
        console.cancelling()
        assert not console.output_closed
    assert stdout.buffer.getvalue() == b"data\n"


# --- a terminal --------------------------------------------------------------------------------------


@dataclass
class Tty:
    """Hold a pseudo-terminal: a stream for the program, and what arrived at the other end."""

    stream: TextIO
    descriptor: int
    _arrived: bytearray = field(default_factory=bytearray)

    def resize(self, columns: int, rows: int) -> None:
        ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def text(self) -> str:
        """Return everything that was written so far, once it has arrived."""
        mark = f"\x1b[{len(self._arrived)}m".encode()
        self.stream.flush()
        os.write(self.stream.fileno(), mark)
        while not self._arrived.endswith(mark):
            self._arrived += os.read(self.descriptor, 1 << 16)
        del self._arrived[-len(mark) :]
        return self._arrived.decode().replace("\r\n", "\n")


@contextmanager
def terminal(columns: int = 80, rows: int = 24) -> Iterator[Tty]:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as stream:
        tty = Tty(stream, ours)
        tty.resize(columns, rows)
        try:
            yield tty
        finally:
            os.close(ours)


def screen_of(tty: Tty, columns: int = 80) -> Terminal:
    seen = Terminal(columns)
    seen.feed(tty.text())
    return seen


def test_a_live_display_shows_the_present_and_scrolls_the_past() -> None:
    clock = Clock()
    with terminal() as tty, Console(tty.stream, is_terminal=True, clock=clock) as console:
        console(started(plan_of("kpro6/200", "kpro6/201", "kpro6/202")))
        console(moved("kpro6/200", Phase.RUN))
        console(moved("kpro6/201", Phase.CONNECT))
        console(done("kpro6/201"))
        for second in (1.0, 2.0):
            clock.now = second
            event = Progressed(
                target="kpro6/200", step=0, done=second * 1e9, total=4e9, unit="bytes", what="step_4001/checkpoint.pt"
            )
            console(event)
        assert screen_of(tty).rows == [
            "kpro6/201  ok  4.1 s",
            "kpro6/200  run      ━━━━━━───────  50%  1.0 GB/s    0:02 left   step_4001/ch...",
            "queued  kpro6/202",
            "check-ckpt  1 of 3 done  1 ok  0:02",
        ]
        clock.now = 65.0
        console.tick()
        assert screen_of(tty).rows[-1].endswith("1:05")
        console.close()
        assert screen_of(tty).rows == ["kpro6/201  ok  4.1 s"]


def test_a_target_whose_outcome_was_known_before_is_counted_and_waits_for_nothing() -> None:
    with terminal() as tty, Console(tty.stream, is_terminal=True, clock=Clock()) as console:
        console(started(plan_of("kpro6/200", "kpro6/201")))
        console.known(done("kpro6/201").outcome)
        console(moved("kpro6/200", Phase.CONNECT))
        console(done("kpro6/200"))
        assert screen_of(tty).rows == ["kpro6/200  ok  4.1 s", "check-ckpt  2 of 2 done  2 ok  0:00"]


def test_the_only_targets_outcome_is_left_to_the_result_that_follows() -> None:
    with terminal() as tty, Console(tty.stream, is_terminal=True, clock=Clock()) as console:
        console(started(plan_of("kpro6/200")))
        console(done())
        console.close()
        assert screen_of(tty).rows == []


def test_redraws_are_throttled_and_nothing_is_drawn_while_nothing_happens() -> None:
    clock = Clock()
    with terminal() as tty, Console(tty.stream, is_terminal=True, clock=clock) as console:
        console(started(plan_of("kpro6/200")))
        console(moved("kpro6/200", Phase.RUN))
        before = len(tty.text())
        for count in range(1000):
            clock.now = count / 10_000
            console(Progressed(target="kpro6/200", step=0, done=count, total=1000, unit="", what=""))
        assert len(tty.text()) == before
        clock.now = 0.15
        console.tick()
        drawn = len(tty.text())
        assert drawn > before
        assert len(tty.text()) == drawn


def test_while_somebody_else_has_the_terminal_nothing_is_drawn_and_nothing_is_lost() -> None:
    clock = Clock()
    with terminal() as tty, Console(tty.stream, is_terminal=True, clock=clock) as console:
        console(started(plan_of("one", "two")))
        with console.paused():
            assert screen_of(tty).rows == []
            before = len(tty.text())
            clock.now = 9.0
            console(done("one"))
            console.tick()
            assert len(tty.text()) == before
        assert screen_of(tty).rows == ["one  ok  4.1 s", "queued  two", "check-ckpt  1 of 2 done  1 ok  0:09"]


def test_a_resized_terminal_gets_lines_of_its_new_width() -> None:
    clock = Clock()
    with terminal(100, 24) as tty, Console(tty.stream, is_terminal=True, clock=clock) as console:
        console(started(plan_of(*(f"kpro6/{number}" for number in range(200, 240)))))
        for number in range(200, 210):
            console(moved(f"kpro6/{number}", Phase.CONNECT))
        before = len(tty.text())
        tty.resize(40, 8)
        clock.now = 1.0
        console.tick()
        frame = tty.text()[before:]
        lines = frame.split("\n")
        assert len(lines) - 1 == 6
        seen = Terminal(40)
        seen.feed(frame)
        assert seen.rows[-1] == "check-ckpt  0 of 40 done  0:01"


def test_several_programs_scroll_above_the_live_display_without_their_escapes() -> None:
    with terminal() as tty, Console(tty.stream, output=tty.stream, is_terminal=True, clock=Clock()) as console:
        console(started(exec_plan("kpro6/200", "kpro6/201")))
        console(moved("kpro6/200", Phase.RUN))
        console(output(b"one\n\x1b[2J\x1b]0;evil\x07two\npart"))
        console(output(b"err\n", "kpro6/201", "stderr"))
        assert screen_of(tty).rows[:3] == ["kpro6/200 | one", "kpro6/200 | two", "kpro6/201 | err"]
        assert screen_of(tty).rows[-1] == "exec  0 of 2 done  0:00"
        console(done())
        assert "kpro6/200 | part" in screen_of(tty).rows


def test_one_program_owns_the_terminal_from_its_first_byte_on() -> None:
    clock = Clock()
    with terminal() as tty, Console(tty.stream, output=tty.stream, is_terminal=True, clock=clock) as console:
        console(started(exec_plan("kpro6/200")))
        console(moved("kpro6/200", Phase.CONNECT))
        assert screen_of(tty).rows
        console(output(b"50%"))
        clock.now = 10.0
        console.tick()
        console(output(b"\r100%"))
        assert screen_of(tty).rows == ["100%"]
        console.cancelling()
        first, second, third = screen_of(tty).rows
        assert first == "100%"
        assert f"{second} {third.strip()}".endswith("Ctrl-C again leaves at once")


def test_output_into_a_file_leaves_the_live_display_alone() -> None:
    stdout = io.TextIOWrapper(io.BytesIO())
    with terminal() as tty, Console(tty.stream, output=stdout, is_terminal=True, clock=Clock()) as console:
        console(started(exec_plan("kpro6/200")))
        console(moved("kpro6/200", Phase.RUN))
        console(output(b"\x1b[2Jdata"))
        assert stdout.buffer.getvalue() == b"\x1b[2Jdata"
        assert screen_of(tty).rows[-1] == "exec  0 of 1 done  0:00"


def test_colours_appear_only_where_wanted() -> None:
    for color in (True, False):
        with terminal() as tty, Console(tty.stream, is_terminal=True, color=color, clock=Clock()) as console:
            for event in events_of(mixed_run()):
                console(event)
            assert ("\x1b[32m" in tty.text()) is color


def test_a_dumb_terminal_gets_plain_lines() -> None:
    with terminal() as tty, Console(tty.stream, is_terminal=False, clock=Clock()) as console:
        console(started(plan_of("kpro6/200")))
        console(moved("kpro6/200", Phase.RUN))
        console(done())
        assert tty.text() == "check-ckpt: 1 target, run 0195bc5e7a0c\nkpro6/200  ok  4.1 s\n"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_bars_use_what_the_terminal_can_show(encoding: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    with Console(stream, is_terminal=True, clock=Clock()) as console:
        console(started(plan_of("kpro6/200")))
        console(moved("kpro6/200", Phase.RUN))
        console(Progressed(target="kpro6/200", step=0, done=1, total=2, unit="", what=""))
        console.close()
    console_text = stream.buffer.getvalue().decode(encoding)
    assert "?" not in console_text.replace("\x1b[?", "")


def test_a_pager_that_pauses_does_not_hold_up_the_run() -> None:
    reader, writer = os.pipe()
    received: list[bytes] = []

    def read() -> None:
        data = bytearray()
        while chunk := os.read(reader, 1 << 16):
            data += chunk
        received.append(bytes(data))

    with os.fdopen(writer, "w") as stdout:
        with Console(io.StringIO(), output=stdout, is_terminal=False) as console:
            console(started(exec_plan("kpro6/200")))
            for _ in range(100):
                console(output(b"x" * 10_000))  # nobody reads yet, and a pipe holds 64 KiB
            thread = threading.Thread(target=read)
            thread.start()
            console(done())
        stdout.close()
        thread.join(60)
    os.close(reader)
    assert received == [b"x" * 1_000_000]
