"""The table: what people see, line by line."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remoterun.errors import TargetError
from remoterun.model import (
    Captured,
    ErrorInfo,
    Finding,
    Json,
    Outcome,
    PayloadRef,
    Phase,
    Run,
    RunStatus,
    Severity,
    Status,
)
from remoterun.report import short_summary, table
from remoterun.report.text import cells
from tests.support.runs import CHECK_CKPT, GOLDEN, captured, checkpoint, error, golden_files, mixed_run, run_of, runs

SGR = re.compile(r"\x1b\[[0-9;]+m")


def ok(target: str = "kpro6/200", *records: Mapping[str, Json], step: int = 0, **changes: object) -> Outcome:
    outcome = Outcome(
        target=target,
        name=None,
        step=step,
        status=Status.OK,
        phase=Phase.COLLECT,
        payload=CHECK_CKPT,
        timings_s={"total": 4.1},
        records=records,
    )
    return replace(outcome, **changes)  # type: ignore[arg-type]


def failed(code: str, message: str, target: str = "kpro6/201", **changes: object) -> Outcome:
    outcome = Outcome(
        target=target, name=None, step=0, status=Status.FAILED, phase=Phase.RUN, error=error(code, message), survivors=0
    )
    return replace(outcome, **changes)  # type: ignore[arg-type]


def lines_of(*outcomes: Outcome, width: int = 100, verbose: int = 0) -> list[str]:
    return lines_of_run(run_of(*outcomes), width=width, verbose=verbose)


def lines_of_run(run: Run, *, width: int = 100, verbose: int = 0) -> list[str]:
    return table(run, width=width, color=False, verbose=verbose).splitlines()


@pytest.mark.parametrize("name", ["table-80.txt", "table-140.txt", "table-80-verbose.txt"])
def test_golden_tables(name: str) -> None:
    assert golden_files()[name].decode() == (GOLDEN / name).read_text()


@settings(deadline=None)
@given(runs(), st.integers(20, 160), st.integers(0, 2))
def test_nothing_of_a_run_reaches_the_terminals_controls(run: Run, width: int, verbose: int) -> None:
    for text in (table(run, width=width, color=True, verbose=verbose), short_summary(run, width=width, color=True)):
        plain = SGR.sub("", text)
        forbidden = [
            char for char in plain if char != "\n" and unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
        ]
        assert not forbidden
        assert all(cells(line) <= max(width, 40) for line in plain.splitlines())
    assert "\x1b" not in table(run, width=width, color=False, verbose=verbose)


@settings(deadline=None)
@given(runs(), st.integers(0, 2))
def test_every_target_is_named_and_colour_changes_no_word(run: Run, verbose: int) -> None:
    named = replace(run, outcomes=tuple(replace(item, target=f"host{i}/{i}") for i, item in enumerate(run.outcomes)))
    text = table(named, width=160, color=False, verbose=verbose)
    assert all(re.search(rf"\b{outcome.target}\b", text) for outcome in named.outcomes)
    assert SGR.sub("", table(named, width=160, color=True, verbose=verbose)) == text


def test_a_checkpoint_is_the_line_people_know() -> None:
    lines = lines_of(ok("kpro6/200", checkpoint(2000)))
    assert lines[1] == "  step_2000: step=2000 epoch=0 params=5518.2M nan_w=0 inf_w=0 opt_nan=0  ok"


def test_what_was_not_counted_is_not_shown_as_zero() -> None:
    unread = checkpoint(7, nan_weights=None, params=None, verdict="bad", bytes=100, bytes_checked=37)
    lines = lines_of(ok("kpro6/200", unread))
    assert "nan_w=- " in lines[1]
    assert "params=- " in lines[1]
    assert lines[2] == "    only 37 B of 100 B checked"


def test_a_zero_of_a_checkpoint_read_in_part_is_no_assurance() -> None:
    lines = lines_of(ok("kpro6/200", checkpoint(7, nan_weights=3, verdict="bad", bytes=100, bytes_checked=37)))
    assert "nan_w=3 inf_w=0? opt_nan=0?  bad" in lines[1]


def test_infinities_of_the_optimizer_get_a_column_when_there_are_some() -> None:
    lines = lines_of(ok("kpro6/200", checkpoint(1), checkpoint(2, inf_optimizer=3)))
    assert lines[1].endswith("opt_nan=0 opt_inf=0  ok")
    assert lines[2].endswith("opt_nan=0 opt_inf=3  ok")


def test_columns_line_up_over_all_targets_where_the_width_allows() -> None:
    outcomes = ok("kpro6/200", checkpoint(2000)), ok("kpro6/201", checkpoint(12_000, nan_weights=152))
    rows = [line for line in lines_of(*outcomes) if "step=" in line]
    assert len({line.index("opt_nan=") for line in rows}) == 1


def test_of_many_targets_those_that_are_well_are_told_in_brief() -> None:
    summary: dict[str, Json] = {"kind": "summary", "resume_from": "step_2000"}
    well = [ok(f"kpro6/{number}", checkpoint(2000), checkpoint(1000), summary) for number in range(200, 220)]
    assert len(lines_of(*well)) == 20 * 4 + 19 + 2
    finding = Finding(rule="CK001", severity=Severity.BAD, subject="step_1", message="NaN")
    bad = replace(ok("kpro7/100", checkpoint(1, verdict="bad")), status=Status.FINDINGS, findings=(finding,))
    lines = lines_of(*well, bad)
    assert [line.split()[0] for line in lines[:4]] == ["kpro6/200", "resume", "kpro6/201", "resume"]
    at = lines.index("")
    assert (at, lines[at + 1].split()[0], lines[at + 2].split()[0]) == (40, "kpro7/100", "step_1:")
    assert "the checkpoints of 20 targets without findings are left out; -v shows them" in lines
    assert sum("step=" in line for line in lines_of(*well, bad, verbose=1)) == 41


def test_in_brief_it_is_told_what_was_ignored_and_remembered() -> None:
    record = checkpoint(1, ignored={"CK054": 1}, cached=True, checked_at="2026-07-30T01:02:03Z")
    lines = lines_of(*(ok(f"kpro6/{number}", record) for number in range(200, 221)))
    assert lines[1:3] == [
        "  ignored  1 finding of CK054",
        "  cached   1 of 1 checkpoint, checked 2026-07-30T01:02:03Z",
    ]
    assert sum("ignored" in line for line in lines) == 21


def test_targets_and_not_their_steps_are_many() -> None:
    steps = [ok(f"kpro6/{number}", checkpoint(1), step=step) for number in range(200, 221) for step in (0, 1)]
    assert "the checkpoints of 21 targets without findings are left out; -v shows them" in lines_of(*steps)
    assert not any("left out" in line for line in lines_of(*steps[:40]))


def test_a_row_too_long_for_the_width_is_broken_at_blanks() -> None:
    lines = lines_of(ok("kpro6/200", checkpoint(2000, name="an-uncommonly-long-name-" * 2)), width=60)
    assert all(len(line) <= 60 for line in lines)
    assert " ".join(line.strip() for line in lines[1:4]).endswith("opt_nan=0  ok")


def test_findings_stand_below_their_checkpoint_worst_first() -> None:
    findings = (
        Finding(rule="CK099", severity=Severity.INFO, subject="step_1", message="saved by an old version"),
        Finding(rule="CK010", severity=Severity.BAD, subject="step_1", message="NaN", next_step="Go back."),
        Finding(rule="CK069", severity=Severity.SUSPECT, subject="/workspace", message="the newest is not complete"),
    )
    outcome = ok("kpro6/200", checkpoint(1), checkpoint(2), status=Status.FINDINGS, findings=findings)
    lines = lines_of(outcome)
    assert lines[0] == "kpro6/200  findings  2 checkpoints, 1 bad, 1 suspect, 4.1 s"
    assert lines[2:5] == [
        "    bad   CK010  NaN",
        "                 next: Go back.",
        "    info  CK099  saved by an old version",
    ]
    # What is of no checkpoint stands by itself, and not below the last one, which is sound.
    assert lines[6] == "  suspect  CK069  /workspace: the newest is not complete"


def test_findings_that_say_the_same_of_several_tensors_are_one_entry() -> None:
    def torn(tensor: str, **more: Json) -> Finding:
        data: dict[str, Json] = {"tensors": [tensor], **more}
        message = f"{tensor} has another CRC-32"
        return Finding(
            rule="CK022", severity=Severity.BAD, subject="step_1", message=message, next_step="Go back.", data=data
        )

    torn_ones = tuple(torn(f"layer.{index}.weight") for index in range(20))
    nan = Finding(rule="CK001", severity=Severity.BAD, subject="step_1", message="w: 3 NaN", data={"tensor": "w"})
    inf = replace(nan, message="v: 1 NaN", data={"tensor": "v"})
    others = (
        torn("mild", usual_severity="info"),
        Finding(rule="CK050", severity=Severity.INFO, subject="step_1", message="no optimizer"),
        Finding(rule="CK050", severity=Severity.INFO, subject="step_1", message="no scheduler"),
    )
    outcome = ok("kpro6/200", checkpoint(1), findings=(*torn_ones, nan, inf, *others))
    assert lines_of(outcome)[2:-2] == [
        "    bad   CK022  layer.0.weight has another CRC-32",
        "                 and 19 more: layer.1.weight, layer.2.weight, layer.3.weight, ...; -v shows them",
        "                 next: Go back.",
        "    bad   CK001  w: 3 NaN",
        "                 and 1 more: v",
        "    bad   CK022  mild has another CRC-32 (usually info)",
        "                 next: Go back.",
        "    info  CK050  no optimizer",
        "    info  CK050  no scheduler",
    ]
    assert sum(" has another CRC-32" in line for line in lines_of(outcome, verbose=1)) == 21


def test_many_findings_and_rows_are_bounded_and_say_so() -> None:
    findings = tuple(Finding(rule="R", severity=Severity.BAD, subject="step_0", message=f"no {i}") for i in range(30))
    records = [checkpoint(step) for step in range(300)] + [checkpoint(999, verdict="bad")]
    outcome = ok("kpro6/200", *records, findings=findings)
    lines = lines_of(outcome)
    assert "    ... and 20 more; -v shows them" in lines
    assert "  ... and 100 more checkpoints that are ok; -v shows all" in lines
    assert any(line.startswith("  step_999:") and line.endswith("bad") for line in lines)
    assert sum(" step=" in line for line in lines_of(outcome, verbose=1)) == 301


def test_objects_without_keys_are_no_table() -> None:
    record: dict[str, Json] = {"kind": "facts", "disks": [{}, {}], "free": "x" * 300}
    assert any(line.split()[:1] == ["disks"] for line in lines_of(ok("kpro6/200", record)))


def test_a_list_of_all_kinds_is_told_whatever_stands_where() -> None:
    lines = lines_of(ok("here", {"kind": "mix", "parts": [*range(16), {"name": "last"}]}))
    assert [line.split()[-1] for line in lines if line.startswith("  ")][-2:] == ["15", "all"]


def test_the_summary_says_where_to_resume() -> None:
    best: dict[str, Json] = {"kind": "summary", "resume_from": "step_4001"}
    none: dict[str, Json] = {"kind": "summary", "resume_from": None}
    assert "  resume from step_4001" in lines_of(ok("kpro6/200", checkpoint(1), best))
    assert "  resume from: none of these checkpoints" in lines_of(ok("kpro6/200", none))


def test_what_a_summary_says_was_not_checked_is_shown() -> None:
    skipped: list[Json] = [{"path": f"/w/{number}.pt", "reason": "no permission"} for number in range(7)]
    record: dict[str, Json] = {"kind": "summary", "resume_from": "step_1", "skipped": skipped}
    lines = lines_of(ok("kpro6/200", record))
    assert lines[2] == "  not checked  /w/0.pt  no permission"
    assert "  ... and 2 more not checked; -v shows them" in lines
    assert "  not checked  /w/6.pt  no permission" in lines_of(ok("kpro6/200", record), verbose=1)
    assert lines_of(ok("kpro6/200", {**record, "root": "/w"}))[2] == "  not checked  0.pt  no permission"
    assert lines_of(ok("kpro6/200", {**record, "root": "/w/0.pt"}))[2] == "  not checked  /w/0.pt  no permission"


def test_a_failure_is_one_line_and_what_to_do() -> None:
    lines = lines_of(failed("guest_stopped", "The guest is not running.", phase=Phase.ENTER))
    assert lines[:2] == [
        "kpro6/201  failed  guest_stopped (enter): The guest is not running.",
        "  fix: Start it (`pct start ID`, `lxc-start -n ID`), then run again.",
    ]


def test_the_limit_that_ended_it_is_named_with_its_key() -> None:
    cause = error("connect_timeout", "no answer", limit=("connect", 0.5, "defaults.limits.connect"))
    lines = lines_of(failed("connect_timeout", "", status=Status.UNREACHABLE, error=cause))
    assert "  limit: connect 500ms (defaults.limits.connect)" in lines


@pytest.mark.parametrize(
    ("set_by", "told"), [({"run": "--limit run"}, "limits.run; set by --limit run"), ({}, "limits.run; default")]
)
def test_the_limit_that_ended_it_is_named_with_its_place(set_by: dict[str, str], told: str) -> None:
    cause = ErrorInfo.of(TargetError("run_timeout", "too long", limit=("run", 60.0, "limits.run")), set_by)
    lines = lines_of(failed("run_timeout", "", status=Status.TIMEOUT, error=cause))
    assert f"  limit: run 1m ({told})" in lines


def test_a_message_of_several_lines_keeps_them() -> None:
    lines = lines_of(failed("venv_missing", "no environment there; found:\n/root/a\n/root/b", phase=Phase.ENTER))
    assert lines[1:4] == ["  no environment there; found:", "  /root/a", "  /root/b"]


def test_equal_failures_are_told_once_with_every_target() -> None:
    outcomes = [
        failed("connect_refused", "kpro7: refused.", f"kpro7/{guest}", phase=Phase.CONNECT) for guest in range(300, 305)
    ]
    lines = lines_of(*outcomes)
    assert lines[:4] == [
        "5 targets  failed  connect_refused (connect)",
        "  kpro7: refused.",
        "  kpro7/300  kpro7/301  kpro7/302  kpro7/303  kpro7/304",
        "  fix: Check that sshd runs there and that `port` is right.",
    ]


def test_failures_alike_but_for_their_words_share_the_remedy() -> None:
    outcomes = [failed("connect_refused", f"kpro{n}: refused.", f"kpro{n}/1", phase=Phase.CONNECT) for n in (7, 8)]
    lines = lines_of(*outcomes)
    assert lines[1:3] == ["  kpro7/1  refused.", "  kpro8/1  refused."]


def test_a_crash_shows_the_end_of_its_traceback() -> None:
    trace = b"Traceback:\n" + b"".join(b"  frame %d\n" % index for index in range(20)) + b"KeyError: 'global_step'\n"
    lines = lines_of(
        failed("payload_crashed", "It ended with KeyError.", stderr=captured(trace), stdout=captured(b"out"))
    )
    assert "  stderr, last 8 of 22 lines:" in lines
    assert "  | KeyError: 'global_step'" in lines
    assert not [line for line in lines if "stdout" in line]
    more = lines_of(failed("payload_crashed", "It ended.", stderr=captured(trace), stdout=captured(b"out")), verbose=1)
    assert {"  | Traceback:", "  stdout:", "  | out"} <= set(more)


def test_what_the_host_printed_is_shown_when_nothing_started() -> None:
    outcome = failed(
        "interpreter_broken", "It did not start.", phase=Phase.ENTER, noise=captured(b"libssl.so.3: not found\n")
    )
    assert "  | libssl.so.3: not found" in lines_of(outcome)


def test_output_that_was_cut_says_so() -> None:
    stream = Captured(head=b"head\n", tail=b"tail\n", total=5_000_010)
    lines = lines_of(failed("nonzero_exit", "exit status 3", stderr=stream, exit_status=3))
    assert "  stderr, 5.0 MB left out:" in lines


def test_processes_that_may_be_left_are_told() -> None:
    left = failed("run_timeout", "killed", status=Status.TIMEOUT, survivors=2)
    unknown = failed("connection_lost", "gone", "kpro6/202", status=Status.LOST, survivors=None)
    lines = lines_of(left, unknown)
    assert "  2 processes of this run could not be killed" in lines
    assert "  nobody could look whether processes of this run are left" in lines


def test_partial_records_of_a_failure_are_shown_as_partial() -> None:
    lines = lines_of(failed("run_timeout", "killed", status=Status.TIMEOUT, records=(checkpoint(1),)))
    assert "  1 checkpoint had arrived:" in lines
    assert "  step_1: step=1 epoch=0 params=5518.2M nan_w=0 inf_w=0 opt_nan=0  ok" in lines


def test_targets_that_have_nothing_to_show_take_a_line_each() -> None:
    lines = lines_of(ok("kpro6/200"), ok("kpro6/2001", name="train"))
    assert lines[:2] == ["kpro6/200          ok  4.1 s", "kpro6/2001  train  ok  4.1 s"]


def test_steps_are_told_apart() -> None:
    probe = PayloadRef(name="probe", version="1.0.0", sha256="aa" * 32)
    later = failed("earlier_step", "Step 1 did not succeed.", step=1, status=Status.NOT_STARTED, phase=Phase.PLAN)
    lines = lines_of(ok("kpro6/201", payload=probe), later)
    assert lines[0] == "kpro6/201  step 1 probe  ok  4.1 s"
    assert lines[2].startswith("kpro6/201  step 2        not_started  earlier_step (plan)")
    assert lines[-1].startswith("1 target, 2 steps: 1 ok, 1 not started")


def test_records_of_any_payload_are_readable() -> None:
    facts: dict[str, Json] = {
        "kind": "facts",
        "hostname": "train",
        "torch": {"version": "2.3.0", "cuda": True, "deeper": {"a": 1}},
        "gpus": [{"index": n, "memory_bytes": 150_754_820_096} for n in range(2)],
        "mounts": [{"path": "/"}, {"other": 1}],
        "load": [0.1, 0.25],
        "nothing": [],
    }
    assert lines_of(ok("kpro6/200", facts))[1:12] == [
        "  facts",
        "  hostname  train",
        "  torch     version=2.3.0  cuda=yes  deeper={1}",
        "  gpus      index  memory_bytes",
        "            0      150.8 GB",
        "            1      150.8 GB",
        "  mounts    path=/",
        "            other=1",
        "  load      0.1, 0.25",
        "  nothing   none",
        "",
    ]
    whole = lines_of(ok("kpro6/200", facts), verbose=1)
    assert "    deeper:" in whole
    assert "      a: 1" in whole
    assert whole[whole.index("  gpus:") + 1 :][:2] == ["    - index: 0", "      memory_bytes: 150.8 GB"]


def test_a_probe_tells_what_matters_in_units_that_people_use() -> None:
    gpu: dict[str, Json] = {
        "name": "NVIDIA H200",
        "memory_total": 150_754_820_096,
        "memory_used": 0,
        "utilisation_pct": 3,
    }
    record: dict[str, Json] = {
        "kind": "probe",
        "system": {"hostname": "train", "kernel": "6.8.12-4-pve", "container": "lxc", "uptime_s": 7425.0},
        "python": {"version": "3.11.7", "executable": "/v/bin/python", "torch": {"version": "2.3.0", "cuda": "12.1"}},
        "cpu": {"model": "EPYC", "count": 192, "affinity": 64, "load": [0.5, 1, 2]},
        "memory": {"total": 100_000_000_000, "available": 83_000_000_000},
        "gpu": {"driver": "550.90", "nvidia_smi": "ok", "gpus": [{"number": n, **gpu} for n in range(2)]},
        "mounts": [{"point": "/", "fstype": "zfs", "total": 4e12, "available": 1e12, "read_only": True, "state": "ok"}],
        "unchecked": [],
    }
    assert lines_of(ok("kpro6/200", record))[1:-2] == [
        "  probe",
        "  system  train, kernel 6.8.12-4-pve, in lxc, up 2h 03m",
        "  python  3.11.7, /v/bin/python, torch 2.3.0, CUDA 12.1",
        "  cpu     EPYC, 64 cores, load 0.5 1 2",
        "  memory  83.0 GB of 100.0 GB available",
        "  gpu     driver 550.90",
        "  gpus    number  name  used  memory    busy",
        "          0       H200  0 B   150.8 GB  3 %",
        "          1       H200  0 B   150.8 GB  3 %",
        "  disks   point=/  type=zfs  free=1.0 TB  size=4.0 TB  notes=read-only",
    ]
    assert lines_of(ok("kpro6/200", {"kind": "probe", "gpu": 3}))[1] == "  probe"
    assert lines_of(ok("kpro6/200", {"kind": "probe", "python": {"torch": None}}))[1] == "  probe  python=no torch"
    whole = lines_of(ok("kpro6/200", record), verbose=1)
    for line in ("    hostname: train", "    total: 100.0 GB", "        memory_total: 150.8 GB", "      total: 4.0 TB"):
        assert line in whole


def test_what_is_the_matter_with_a_disk_is_wrapped_in_its_own_column() -> None:
    disk: dict[str, Json] = {"point": "/workspace/checkpoints", "fstype": "nfs4", "total": 9e12, "available": 1e12}
    hung: dict[str, Json] = {
        **disk,
        "point": "/mnt/old",
        "state": "no answer",
        "error": "ls: the server 10.1.2.9 is gone",
    }
    probe: dict[str, Json] = {"kind": "probe", "mounts": [{**disk, "state": "ok"}, {**hung, "available": None}]}
    assert lines_of(ok("kpro6/200", probe), width=74)[2:7] == [
        "  disks  point                   type  free    size    notes",
        "         /workspace/checkpoints  nfs4  1.0 TB  9.0 TB  -",
        "         /mnt/old                nfs4  -       9.0 TB  no answer, ls:",
        "                                                       the server",
        "                                                       10.1.2.9 is gone",
    ]
    # Where there is no room for that either, each is told by keys and values.
    assert "point=/mnt/old  type=nfs4" in "\n".join(lines_of(ok("kpro6/200", probe), width=50))
    long = {**hung, "error": "gone " * 40}
    told = lines_of(ok("kpro6/200", {**probe, "mounts": [disk, long]}))
    assert "".join(told).count("gone") < 12
    assert "".join(lines_of(ok("kpro6/200", {**probe, "mounts": [disk, long]}), verbose=1)).count("gone") == 40


def test_a_probe_of_many_disks_and_gpus_stands_in_columns_of_a_narrow_terminal() -> None:
    card: dict[str, Json] = {
        "name": "NVIDIA A100-SXM4-80GB",
        "memory_total": 85_899_345_920,
        "memory_used": 81_000_000_000,
        "utilisation_pct": 100,
        "temperature_c": 64,
        "processes": [{"pid": 3, "memory": 81_000_000_000}],
    }
    disk: dict[str, Json] = {
        "fstype": "fuse.lxcfs",
        "total": 270_553_174_016,
        "available": 50_427_592_704,
        "state": "ok",
    }
    record: dict[str, Json] = {
        "kind": "probe",
        "gpu": {"gpus": [{"number": n, **card} for n in range(8)]},
        "mounts": [{"point": "/mnt/storage/of/the/whole/lab/datasets", **disk}, {"point": "/", **disk}],
        "unchecked": ["/proc/1/environ: Permission denied"],
        "limits": {"memlock": {"soft": 8_388_608, "hard": "unlimited"}, "nofile": {"soft": 20_000, "hard": 20_000}},
    }
    shown = lines_of(ok("kpro6/200", record), width=80)
    assert "  gpus       number  name            used     memory   busy   heat  processes" in shown
    assert "             7       A100-SXM4-80GB  81.0 GB  85.9 GB  100 %  64 C  1" in shown
    assert "  disks      point                     type        free     size" in shown
    assert "             ...he/whole/lab/datasets  fuse.lxcfs  50.4 GB  270.6 GB" in shown
    whole = lines_of(ok("kpro6/200", record), width=80, verbose=1)
    for line in ("- point: /mnt/storage/of/the/whole/lab/datasets", "soft: 8.4 MB", "soft: 20000", "memory: 81.0 GB"):
        assert line in map(str.strip, whole)


def test_small_records_take_a_line_each_and_many_are_bounded() -> None:
    records: list[dict[str, Json]] = [{"kind": "layer", "index": index, "norm": 0.5} for index in range(60)]
    lines = lines_of(ok("kpro6/200", *records))
    assert lines[1] == "  layer  index=0  norm=0.5"
    assert "  ... and 10 more records; -v shows all" in lines


def test_verbose_shows_where_and_how_long_and_what_was_logged() -> None:
    outcome = ok(
        "kpro6/200",
        facts={"python": "3.11.7"},
        timings_s={"connect": 0.2, "upload": 0.0, "total": 4.1},
        log=("reading",),
    )
    assert lines_of(outcome, verbose=1)[1:5] == [
        "  check-ckpt 1.0.0 sha256 5c5c5c5c5c5c",
        "  connect 0.20 s, total 4.1 s",
        "  python=3.11.7",
        "  log  reading",
    ]


def test_totals_count_every_status_and_tell_the_time() -> None:
    run = run_of(ok("a"), ok("b"), failed("payload_failed", "no"), finished_at="2026-03-01T02:00:04.100Z")
    assert lines_of_run(run)[-1] == "3 targets: 2 ok, 1 failed in 4.1 s"


@pytest.mark.parametrize("status", [RunStatus.INTERRUPTED, RunStatus.TERMINATED])
def test_totals_tell_that_a_run_was_cut_short(status: RunStatus) -> None:
    run = run_of(ok("a"), ended_as=status)
    assert lines_of_run(run)[-1].endswith(f"; {status}")


def test_no_line_ends_in_blanks() -> None:
    text = table(mixed_run(), width=80, color=False, verbose=2)
    assert not [line for line in text.splitlines() if line != line.rstrip()]


def test_a_short_summary_is_silent_about_one_target_that_went_well() -> None:
    assert short_summary(run_of(ok())) == ""


def test_a_short_summary_tells_failures_and_totals() -> None:
    bad = failed("nonzero_exit", "The program ended with 3.", exit_status=3, stderr=captured(b"shown already"))
    assert short_summary(run_of(bad)).splitlines() == [
        "kpro6/201  failed  nonzero_exit (run): The program ended with 3.",
        "  fix: stderr and exit_status say more.",
    ]
    assert short_summary(run_of(ok(), bad)).splitlines()[-1] == "2 targets: 1 ok, 1 failed in 30m 02s"
