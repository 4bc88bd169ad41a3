"""What a playbook says of single rules: what findings count for, what records and the summary say of it."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from remoterun.payloads.check_ckpt.model import Found
from remoterun.payloads.check_ckpt.rules.catalogue import MANY, RULES, Changes, bounded, settle, severity
from tests.unit.payloads.check_ckpt.support import Heard, audit, save, training_state, write

pytestmark = pytest.mark.torch

DATA = Path(__file__).resolve().parents[4] / "remoterun/lab/data/200"
NAN = float("nan")


def damaged(folder: Path) -> Path:
    """Save a checkpoint with NaN in two weights and in the optimizer's state."""
    state = training_state()
    state["model_state_dict"]["0.weight"][0, :3] = NAN
    state["model_state_dict"]["2.bias"][0] = NAN
    state["optimizer_state_dict"]["state"][0]["exp_avg"][0, 0] = NAN
    return save(state, folder / "step_2000" / "checkpoint.pt")


def ignoring(root: Path, *rules: str, later: float = 0, **params: object) -> Heard:
    return audit(root, later=later, rules={"ignore": [*rules]}, **params)


def changed(root: Path, **severities: str) -> Heard:
    return audit(root, rules={"severity": severities})


def test_ignored_findings_count_for_nothing_and_are_counted(tmp_path: Path) -> None:
    damaged(tmp_path)
    heard = ignoring(tmp_path, "CK001", "CK003")
    assert heard.record["verdict"] == "ok"
    assert heard.record["ignored"] == {"CK001": 2, "CK003": 1}
    assert heard.record["nan_weights"] == 4
    assert not {"CK001", "CK003"} & {*heard.rules(), *heard.record["findings"]}
    assert heard.summary["resume_from"] == "step_2000"
    heard = ignoring(tmp_path, "CK001")
    assert heard.record["verdict"] == "bad"
    assert heard.record["ignored"] == {"CK001": 2}
    assert heard.summary["resume_from"] is None


def test_nothing_is_said_where_nothing_is_ignored(tmp_path: Path) -> None:
    damaged(tmp_path)
    for rules in (None, {}, {"ignore": ["CK020"], "severity": {"CK001": "bad"}}):
        heard = audit(tmp_path, rules=rules)
        assert "ignored" not in heard.record
        assert "ignored" not in heard.summary
        assert not [each for each in heard.findings if "usual_severity" in each["data"]]


def test_a_changed_severity_changes_the_verdict_and_says_so(tmp_path: Path) -> None:
    damaged(tmp_path)
    heard = changed(tmp_path, CK001="info", CK003="suspect")
    assert heard.record["verdict"] == "suspect"
    assert (heard.of("CK001")["severity"], heard.of("CK001")["data"]["usual_severity"]) == ("info", "bad")
    assert (heard.of("CK003")["severity"], heard.of("CK003")["data"]["usual_severity"]) == ("suspect", "bad")
    assert {"CK001", "CK003"} <= {*heard.record["findings"]}


def test_a_severity_can_be_raised(tmp_path: Path) -> None:
    save(training_state(args=argparse.Namespace(lr=1)), tmp_path / "c.pt")
    assert audit(tmp_path).record["verdict"] == "ok"
    assert changed(tmp_path, CK120="bad").record["verdict"] == "bad"


# --- what can't be read stays unread ----------------------------------------------------------------------------------


@pytest.mark.parametrize("said", [{"ignore": ["CK020", "CK025"]}, {"severity": {"CK020": "info", "CK025": "info"}}])
@pytest.mark.parametrize("keep", [0.9, 0.3, 0.01])
def test_a_truncated_file_is_never_ok(tmp_path: Path, said: dict[str, Any], keep: float) -> None:
    whole = save(training_state(), tmp_path / "whole.pt").read_bytes()
    (tmp_path / "whole.pt").unlink()
    write(tmp_path / "c.pt", whole[: int(len(whole) * keep)])
    heard = audit(tmp_path, rules=said)
    assert heard.record["verdict"] == "unsupported"
    assert heard.record["bytes_checked"] < heard.record["bytes"]
    assert heard.summary["resume_from"] is None


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (b"", "CK021"),
        (b"version https://git-lfs.github.com/spec/v1\noid 1\n", "CK024"),
        (b"\x89HDF\r\n\x1a\n", "CK128"),
    ],
)
def test_what_holds_no_values_is_never_ok(tmp_path: Path, data: bytes, rule: str) -> None:
    write(tmp_path / "c.bin", data)
    assert ignoring(tmp_path, rule).record["verdict"] == "unsupported"
    assert changed(tmp_path, **{rule: "info"}).record["verdict"] == "unsupported"


def test_a_file_without_tensors_is_never_ok(tmp_path: Path) -> None:
    save({"epoch": 3}, tmp_path / "c.pt")
    assert ignoring(tmp_path, "CK009").record["verdict"] == "unsupported"


@pytest.mark.parametrize("rule", ["CK030", "CK022"])
def test_only_what_was_not_read_is_unsupported(rule: str) -> None:
    changes = Changes.of({"rules": {"ignore": [rule]}})
    found = [Found(rule, "m")]
    assert settle(found, changes, in_progress=False, failed=False, unread=False).verdict == "ok"
    assert settle(found, changes, in_progress=False, failed=False, unread=True).verdict == "unsupported"
    assert settle(found, changes, in_progress=False, failed=True, unread=True).verdict == "unsupported"
    assert settle(found, changes, in_progress=True, failed=False, unread=True).verdict == "in_progress"
    other = Changes.of({"rules": {"ignore": ["CK120"]}})
    assert settle([Found("CK120", "m")], other, in_progress=False, failed=False, unread=True).verdict == "ok"


# --- findings of no single file ---------------------------------------------------------------------------------------


def test_findings_of_a_series_and_of_all_are_counted_where_they_belong(tmp_path: Path) -> None:
    shutil.copytree(DATA, tmp_path / "run")
    plain = audit(tmp_path, cache=False)
    late = sum(each["rule"] == "CK085" for each in plain.findings)
    assert late
    assert "CK069" in plain.rules()
    heard = ignoring(tmp_path, "CK085", "CK069", cache=False)
    assert not {"CK085", "CK069"} & heard.rules()
    counted = sum(record.get("ignored", {}).get("CK085", 0) for record in heard.emitted)
    assert counted == late
    assert heard.summary["ignored"] == {"CK069": 1}


def test_what_is_ignored_of_companions_stands_in_the_summary(tmp_path: Path) -> None:
    save(training_state(), tmp_path / "step_1" / "model.pt")
    save({"args": argparse.Namespace(lr=1)}, tmp_path / "step_1" / "training_args.bin")
    assert "CK120" in audit(tmp_path).rules()
    heard = ignoring(tmp_path, "CK120")
    assert [record["name"] for record in heard.records] == ["step_1"]
    assert "CK120" not in heard.rules()
    assert heard.summary["ignored"] == {"CK120": 1}


def test_a_remembered_checkpoint_is_judged_by_todays_rules(tmp_path: Path) -> None:
    damaged(tmp_path)
    assert audit(tmp_path, later=60).record["verdict"] == "bad"
    heard = ignoring(tmp_path, "CK001", "CK003", later=120)
    assert (heard.record.get("cached"), heard.record["verdict"]) == (True, "ok")
    assert heard.record["ignored"] == {"CK001": 2, "CK003": 1}
    assert audit(tmp_path, later=180).record["verdict"] == "bad"


def test_what_is_summed_up_says_its_usual_severity_too() -> None:
    found, _ = Changes.of({"rules": {"severity": {"CK001": "info"}}}).apply([Found("CK001", "m")] * (MANY + 5))
    last = list(bounded(found))[-1]
    assert last.data is not None
    assert (severity(last), last.data["usual_severity"], last.data["more"]) == ("info", RULES["CK001"].severity, 5)


# --- the load test in a record ----------------------------------------------------------------------------------------


@pytest.fixture
def stand_in(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a `torch` on the path of children that refuses files with NaN-like names and takes all others."""
    folder = tmp_path_factory.mktemp("torch")
    (folder / "torch.py").write_text(
        "__version__ = '9.1'\n"
        "def load(path, **how):\n"
        "    if b'refuse' in open(path, 'rb').read(): raise ValueError('no. Really')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(folder))


LOAD: dict[str, Any] = {"load": True, "load_memory": 1 << 30, "load_time": 60.0}


@pytest.mark.usefixtures("stand_in")
def test_loaders_are_asked_only_when_they_are_to_be(tmp_path: Path) -> None:
    save(training_state(), tmp_path / "c.pt")
    assert "load" not in audit(tmp_path).record
    said = audit(tmp_path, **LOAD).record["load"]
    assert (said["accepted"], said["error"], said["torch"]) == (True, None, "9.1")


@pytest.mark.usefixtures("stand_in")
def test_what_loaders_say_changes_no_verdict(tmp_path: Path) -> None:
    damaged(tmp_path / "a")
    save(training_state(note="refuse"), tmp_path / "b" / "step_1" / "c.pt")
    bad, good = sorted(audit(tmp_path, **LOAD).records, key=lambda record: record["verdict"])
    assert (bad["verdict"], bad["load"]["accepted"]) == ("bad", True)
    assert (good["verdict"], good["load"]["accepted"]) == ("ok", False)
    assert good["load"]["error"] == "ValueError: no"


@pytest.mark.usefixtures("stand_in")
def test_what_may_run_code_is_given_to_no_loader(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return exec, ("pass",)

    save({"w": torch.zeros(3), "x": Evil()}, tmp_path / "c.pt")
    heard = audit(tmp_path, **LOAD)
    assert "CK101" in heard.rules()
    assert heard.record["load"]["accepted"] is None
    assert "CK101" in heard.record["load"]["error"]
    assert ignoring(tmp_path, "CK101", **LOAD).record["load"]["accepted"] is None


@pytest.mark.usefixtures("stand_in")
def test_what_is_not_finished_is_not_loaded(tmp_path: Path) -> None:
    save(training_state(), tmp_path / "c.pt.tmp")
    record = audit(tmp_path, **LOAD).record
    assert record["verdict"] == "in_progress"
    assert "load" not in record
