"""The live display's lines: what runs, how fast, what waits, within the space there is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoterun.console.board import Board, Meter, clock
from remoterun.events import Progressed, TargetMoved
from remoterun.model import Phase
from remoterun.report.text import render, width_of
from tests.support.runs import mixed_run, plan_of, texts


def drawn(board: Board, now: float, width: int = 80, height: int = 22, *, unicode: bool = True) -> list[str]:
    return [render(line, color=False).rstrip() for line in board.draw(now, width, height, unicode=unicode)]


def moved(target: str, phase: Phase, *, waiting: bool = False, step: int = 0) -> TargetMoved:
    return TargetMoved(target=target, step=step, phase=phase, waiting=waiting)


def progress(done: float, total: float | None = 100e9, target: str = "kpro6/200", unit: str = "bytes") -> Progressed:
    return Progressed(target=target, step=0, done=done, total=total, unit=unit, what="step_4001")


def started(*targets: str, steps: int = 1) -> Board:
    board = Board()
    board.begin(plan_of(*targets, steps=steps), 0.0)
    return board


def test_a_target_at_work_shows_its_progress_rate_and_time_left() -> None:
    board = started("kpro6/200")
    board.moved(moved("kpro6/200", Phase.RUN), 0.0)
    for second in range(6):
        board.progressed(progress(second * 10e9), float(second))
    assert drawn(board, 5.0)[0] == "kpro6/200  run      ━━━━━━───────  50%  10.0 GB/s   0:05 left   step_4001"
    assert drawn(board, 5.0, unicode=False)[0].split()[2] == "======-------"


def test_the_rate_sinks_while_nothing_comes() -> None:
    meter = Meter(progress(0), 0.0)
    meter.add(progress(0), 0.0)
    meter.add(progress(10e9), 1.0)
    assert meter.rate(1.0) == pytest.approx(10e9)
    assert meter.rate(100.0) == pytest.approx(0.1e9)
    assert meter.left_s(100.0) == pytest.approx(900.0)


def test_the_rate_looks_at_the_last_seconds_and_starts_anew_with_the_next_file() -> None:
    meter = Meter(progress(0), 0.0)
    for second in range(30):
        meter.add(progress(second * 1e9), float(second))
    for second in range(30, 45):
        meter.add(progress(29e9 + (second - 29) * 5e9), float(second))
    assert meter.rate(44.0) == pytest.approx(5e9)
    meter.add(progress(0), 45.0)
    assert meter.rate(45.1) is None


def test_without_a_total_there_is_no_bar() -> None:
    board = started("kpro6/200")
    board.moved(moved("kpro6/200", Phase.RUN), 0.0)
    board.progressed(progress(3, None, unit="files"), 0.0)
    board.progressed(progress(6, None, unit="files"), 2.0)
    assert drawn(board, 2.0)[0].split() == ["kpro6/200", "run", "6", "files", "1.5", "files/s", "0:02", "step_4001"]


def test_before_the_payload_runs_the_phase_and_its_time_are_shown() -> None:
    board = started("kpro6/200")
    board.moved(moved("kpro6/200", Phase.ENTER), 1.0)
    assert drawn(board, 8.5)[0].split() == ["kpro6/200", "enter", "0:07"]
    board.moved(moved("kpro6/200", Phase.RUN), 9.0)
    board.recorded("kpro6/200", 0)
    assert drawn(board, 9.0)[0].split() == ["kpro6/200", "run", "0:00", "1", "record"]


def test_waiting_targets_are_named_as_far_as_there_is_room() -> None:
    board = started(*(f"kpro6/{number}" for number in range(200, 260)))
    board.moved(moved("kpro6/200", Phase.RUN), 0.0)
    board.moved(moved("kpro6/201", Phase.ENTER, waiting=True), 0.0)
    lines = drawn(board, 0.0)
    assert lines[1].startswith("queued  kpro6/201  kpro6/202")
    named = sum(line.count("kpro6/") for line in lines[1:4])
    assert lines[3].endswith(f"and {59 - named} more")
    assert lines[4] == "check-ckpt  0 of 60 done  0:00"


def test_more_targets_than_lines_are_counted() -> None:
    names = [f"kpro6/{number}" for number in range(200, 220)]
    board = started(*names, "kpro7/1")
    for name in names:
        board.moved(moved(name, Phase.RUN), 0.0)
    lines = drawn(board, 0.0, height=6)
    assert len(lines) == 6
    assert lines[3] == "... and 17 more"
    assert drawn(board, 0.0, height=3) == [lines[0], "... and 19 more (1 queued)", lines[-1]]


def test_finished_targets_leave_and_are_counted() -> None:
    run = mixed_run()
    board = started(*(outcome.target for outcome in run.outcomes))
    for outcome in run.outcomes:
        board.finished(outcome)
    assert drawn(board, 61.0, width=100) == [
        "check-ckpt  6 of 6 done  1 ok  1 findings  1 failed  1 timeout  2 unreachable  1:01"
    ]


def test_later_steps_of_a_busy_target_are_not_listed_as_waiting() -> None:
    board = started("kpro6/200", "kpro6/201", steps=2)
    board.moved(moved("kpro6/200", Phase.RUN), 0.0)
    assert drawn(board, 0.0)[1] == "queued  kpro6/201"


def test_a_cancellation_is_told() -> None:
    board = started("kpro6/200")
    board.moved(moved("kpro6/200", Phase.RUN), 0.0)
    assert "cancelling" not in drawn(board, 0.0)[-1]
    board.cancelling = True
    assert drawn(board, 0.0)[-1].endswith("cancelling, Ctrl-C again leaves at once")


def test_events_of_targets_that_nobody_planned_are_ignored() -> None:
    board = started("kpro6/200")
    board.moved(moved("other", Phase.RUN), 0.0)
    board.progressed(progress(1, target="other"), 0.0)
    board.recorded("other", 0)
    assert drawn(board, 0.0) == ["queued  kpro6/200", "check-ckpt  0 of 1 done  0:00"]


NUMBERS = st.one_of(st.floats(), st.integers(-(10**400), 10**400), st.sampled_from([0, 1, 10**400]))


@given(
    st.lists(texts(), min_size=1, max_size=8, unique=True),
    st.lists(st.tuples(NUMBERS, st.none() | NUMBERS, texts(), st.floats(0, 100)), max_size=5),
    st.integers(1, 120),
    st.integers(1, 30),
)
def test_whatever_targets_send_the_lines_keep_to_the_space(
    names: list[str], readings: list[tuple[float, float | None, str, float]], width: int, height: int
) -> None:
    board = Board()
    board.begin(plan_of(*names), 0.0)
    for name in names[::2]:
        board.moved(moved(name, Phase.RUN), 0.0)
    now = 0.0
    for done, total, what, later in readings:
        now += later
        event = Progressed(target=names[0], step=0, done=done, total=total, unit=what[:5], what=what)
        board.progressed(event, now)
        lines = board.draw(now, width, height, unicode=True)
        assert 1 <= len(lines) <= height
        assert all(width_of(line) < max(width, 1) or width == 1 for line in lines)


def test_clock() -> None:
    assert [clock(7), clock(750), clock(3723), clock(1e9), clock(-1)] == ["0:07", "12:30", "1:02:03", "days", "0:00"]


def test_a_friendly_name_is_shown_where_there_is_room() -> None:
    plan = plan_of("kpro6/200")
    job = plan.jobs[0]
    board = Board()
    board.begin(replace(plan, jobs=(replace(job, target=replace(job.target, name="train")),)), 0.0)
    assert drawn(board, 0.0, width=80)[0] == "queued  kpro6/200"
    assert drawn(board, 0.0, width=120)[0] == "queued  kpro6/200 train"


def test_guests_of_a_host_with_a_long_name_can_be_told_apart() -> None:
    names = [f"pve-node-07.cluster.example.org/{number}" for number in (200, 201)]
    board = Board()
    board.begin(plan_of(*names), 0.0)
    for name in names:
        board.moved(moved(name, Phase.RUN), 0.0)
    lines = drawn(board, 0.0, width=80)
    assert [line.split()[0] for line in lines[:2]] == ["...cluster.example.org/200", "...cluster.example.org/201"]
