"""Metrics: what the collectors' own parsers read is what the runs say, whatever targets call themselves."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as prometheus_families

from remoterun.model import Json, Run, Severity, Status
from remoterun.report.files import write_whole
from remoterun.report.metrics import openmetrics
from tests.support import runs as samples
from tests.support.audits import audited, nan, path_of, run, silent

NOW = 1_900_000_000.0


def _read(runs: list[Run], now: float = NOW) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Read metrics with the parsers of both formats, which agree."""
    text = openmetrics(runs, now).decode("utf-8")
    read = [
        {
            family.name: {tuple(sorted(sample.labels.items())): sample.value for sample in family.samples}
            for family in parse(text)
        }
        for parse in (openmetrics_families, prometheus_families)
    ]
    assert read[0] == read[1]
    families = list(openmetrics_families(text))  # type: ignore[no-untyped-call]
    assert all(family.type == "gauge" and family.documentation for family in families)
    return read[0]


def _labels(**labels: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({"playbook": "check-ckpt", **labels}.items()))


def test_a_run_is_told_in_numbers() -> None:
    one = audited("kpro6/200", [3, 2], nan(3), nan(3, "model.wpe"), nan(2, rule="CK070", severity=Severity.SUSPECT))
    day = run(0, one, audited("kpro6/201", [7]), silent("kpro7/300"))
    read = _read([day])
    assert read["remoterun_run_duration_seconds"] == {_labels(): 9.0}
    assert read["remoterun_run_exit_code"] == {_labels(): 3.0}
    status = read["remoterun_run_status"]
    assert {labels for labels, value in status.items() if value} == {_labels(status="incomplete")}
    outcomes = read["remoterun_outcomes"]
    assert {labels: value for labels, value in outcomes.items() if value} == {
        _labels(status="findings"): 1.0,
        _labels(status="ok"): 1.0,
        _labels(status="unreachable"): 1.0,
    }
    assert len(outcomes) == len(Status)
    assert read["remoterun_findings"] == {
        _labels(rule="CK001", severity="bad"): 2.0,
        _labels(rule="CK070", severity="suspect"): 1.0,
    }
    assert read["remoterun_target_up"] == {
        _labels(target="kpro6/200"): 1.0,
        _labels(target="kpro6/201"): 1.0,
        _labels(target="kpro7/300"): 0.0,
    }
    assert read["remoterun_newest_checkpoint_step"] == {
        _labels(target="kpro6/200"): 3.0,
        _labels(target="kpro6/201"): 7.0,
    }
    assert read["remoterun_checkpoints"][_labels(target="kpro6/200", verdict="bad")] == 1.0


def test_the_newest_checkpoint_has_an_age() -> None:
    records = tuple(
        samples.checkpoint(step, path=path_of(step), mtime=mtime)
        for step, mtime in ((3, "2030-03-17T17:45:40Z"), (9, "2030-03-17T17:46:00Z"), (5, "2031-01-01T00:00:00Z"))
    )
    read = _read([run(0, audited("a", [], records=records))])
    assert read["remoterun_newest_checkpoint_age_seconds"] == {_labels(target="a"): 40.0}
    assert read["remoterun_newest_checkpoint_timestamp_seconds"] == {_labels(target="a"): NOW - 40}
    assert read["remoterun_newest_checkpoint_step"] == {_labels(target="a"): 9.0}


@pytest.mark.parametrize("value", [None, True, "7", [7], float("nan"), 10**400, "not a time", "9999-12-31T23:59:59Z"])
def test_what_is_no_number_or_time_is_left_out(value: Json) -> None:
    record = {**samples.checkpoint(1), "step": value, "mtime": value}
    read = _read([run(0, audited("a", [], records=(record,)))])
    assert "remoterun_newest_checkpoint_step" not in read
    assert read["remoterun_checkpoints"][_labels(target="a", verdict="ok")] == 1.0


def test_of_several_runs_of_a_playbook_the_last_counts() -> None:
    days = [run(0, silent("a")), run(1, audited("a", [3])), run(2, silent("a"), playbook="probe")]
    up = _read(days)["remoterun_target_up"]
    assert up == {_labels(target="a"): 1.0, _labels(target="a", playbook="probe"): 0.0}


def test_rules_without_end_are_counted_as_one() -> None:
    found = [nan(1, rule=f"X{number:04}") for number in range(1000)]
    findings = _read([run(0, audited("a", [1], *found))])["remoterun_findings"]
    assert len(findings) == 201
    assert findings[_labels(rule="other", severity="bad")] == 800.0


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\\n", "a b", 'a{x="y"} 1', "日本語", "# EOF"])
def test_labels_are_read_as_they_are_called(name: str) -> None:
    assert _read([run(0, silent(name))])["remoterun_target_up"] == {_labels(target=name): 0.0}


@given(samples.runs())
def test_any_run_is_told_in_a_form_that_is_read(run: Run) -> None:
    text = openmetrics([run], NOW).decode("utf-8")
    assert all(line.isascii() or line.count('"') for line in text.splitlines())
    read = _read([run])
    assert sum(read["remoterun_outcomes"].values()) == len(run.outcomes)
    assert sum(read.get("remoterun_findings", {}).values()) == sum(len(each.findings) for each in run.outcomes)
    assert len(text.splitlines()) == len(text.split("\n")) - 1


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_file_is_written_whole_for_others_to_read(tmp_path: Path) -> None:
    path = tmp_path / "remoterun.prom"
    before = os.umask(0o022)
    try:
        write_whole(path, b"old\n")
        reader = path.open("rb")
        write_whole(path, b"new\n")
    finally:
        os.umask(before)
    with reader:
        assert reader.read() == b"old\n"
    assert path.read_bytes() == b"new\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link = tmp_path / "link.prom"
    link.symlink_to(tmp_path / "there/real.prom")
    write_whole(link, b"new\n")
    assert link.is_symlink()
    assert (tmp_path / "there/real.prom").read_bytes() == b"new\n"


def test_what_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_whole(tmp_path / "folder", b"new\n")
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "missing/file", b"new\n")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("name", ["\u4e2d" * 84, "x" * 255])
def test_a_name_may_be_as_long_as_names_can_be(tmp_path: Path, name: str) -> None:
    write_whole(tmp_path / name, b"new\n")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_what_is_no_file_is_never_replaced_by_one(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for place in (pipe, link):
        with pytest.raises(OSError, match="not a regular file"):
            write_whole(place, b"new\n")
    assert pipe.is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]


def test_links_that_lead_in_a_circle_are_an_error_like_others(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(link)
    with pytest.raises(OSError, match="symbolic links"):
        write_whole(link, b"new\n")
    assert link.is_symlink()
