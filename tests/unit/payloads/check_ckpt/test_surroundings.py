"""What lies around checkpoints: pointers and links, markers, siblings of another size, left-over files."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from remoterun.payloads.check_ckpt.find.discover import discover
from tests.unit.payloads.check_ckpt.layouts import sharded, trainer, weights
from tests.unit.payloads.check_ckpt.support import LONG_AGO, audit, save, training_state, write

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    """Lay out four good checkpoints."""
    for step in (10, 20, 30, 40):
        save(training_state(step) | {"global_step": step}, tmp_path / f"step_{step}" / "c.pt")
    return tmp_path


# --- links and pointers ----------------------------------------------------------------------------------------------


def test_a_link_is_no_second_checkpoint(steps: Path) -> None:
    (steps / "latest").symlink_to("step_40")
    (steps / "best.pt").symlink_to("step_20/c.pt")
    (steps / "copy").mkdir()
    (steps / "copy" / "c.pt").symlink_to("../step_10/c.pt")
    heard = audit(steps)
    assert heard.rules() == set()
    assert [record["name"] for record in heard.records] == ["step_40", "step_30", "step_20", "step_10"]


def test_a_folder_of_links_to_another_storage_is_one(tmp_path: Path) -> None:
    """As the hub's cache lays out its snapshots."""
    sharded(tmp_path / "blobs")
    snapshot = tmp_path / "root" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for path in (tmp_path / "blobs").iterdir():
        (snapshot / path.name).symlink_to(path)
    heard = audit(tmp_path / "root")
    assert (heard.record["name"], heard.record["verdict"], heard.record["format"]) == ("abc", "ok", "hf-model")
    assert heard.record["bytes_checked"] == heard.record["bytes"]


@pytest.mark.parametrize("name", ["latest", "last.ckpt", "newest", "best.pt"])
def test_a_link_that_leads_nowhere(steps: Path, name: str) -> None:
    (steps / name).symlink_to("step_50")
    heard = audit(steps)
    finding = heard.of("CK065")
    assert (finding["subject"], finding["severity"]) == (name, "bad")
    assert "step_50" in finding["message"]
    assert heard.summary["resume_from"] == "step_40"


def test_a_link_to_what_is_damaged_or_not_finished(steps: Path) -> None:
    (steps / "latest").symlink_to("step_40")
    path = steps / "step_40" / "c.pt"
    write(path, path.read_bytes()[:9000])
    assert audit(steps).of("CK065")["severity"] == "suspect"
    os.rename(path, steps / "step_40" / "c.pt.tmp")  # noqa: PTH104 - as trainers do
    finding = audit(steps).of("CK065")
    assert finding["severity"] == "info"
    assert "not finished" in finding["message"]


POINTERS = {
    "latest": "step_40",
    "latest_universal": "step_40",
    "latest_checkpointed_iteration.txt": "40",
    "latest.txt": "step_40/c.pt",
    "last_checkpoint": "/somewhere/else/step_40",
}


@pytest.mark.parametrize("name", POINTERS)
def test_pointers_are_held_against_what_is_there(steps: Path, name: str) -> None:
    write(steps / name, POINTERS[name].encode() + b"\n")
    assert audit(steps).rules() == set()
    (steps / "step_40" / "c.pt").rename(steps / "moved.pt")
    (steps / "step_40").rmdir()
    finding = audit(steps).of("CK065")
    assert (finding["severity"], finding["subject"]) == ("bad", name)
    assert finding["data"]["names"] == POINTERS[name]


@pytest.mark.parametrize("says", ["../step_40", "/etc/passwd", "step_40/../../x"])
def test_a_pointer_never_leads_out_of_its_folder(steps: Path, says: str) -> None:
    write(steps / "latest", says.encode())
    heard = audit(steps)
    assert heard.of("CK104")["severity"] == "bad"
    assert heard.of("CK104")["data"]["names"] == says


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"two words", b"x" * 5000, b"\x1b[31m", b"9" * 400])
def test_files_of_that_name_which_are_no_pointers(steps: Path, data: bytes) -> None:
    write(steps / "latest", data)
    heard = audit(steps)
    assert heard.rules() <= {"CK065"}
    assert len(heard.records) == 4


# --- markers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("marker", ["step_40-unfinished", "step_40-unfinished/.keep"])
def test_a_marker_says_that_a_save_never_ended(steps: Path, marker: str) -> None:
    write(steps / marker, b"")
    heard = audit(steps)
    finding = heard.of("CK066")
    assert (finding["subject"], finding["severity"]) == ("step_40", "bad")
    assert heard.summary["resume_from"] == "step_30"
    os.utime(steps / "step_40" / "c.pt")
    assert audit(steps).of("CK026")["subject"] == "step_40"


def test_a_marker_beside_a_file(tmp_path: Path) -> None:
    save(training_state(), tmp_path / "model--step=20.ckpt")
    write(tmp_path / "model--step=20-unfinished", b"")
    assert audit(tmp_path).of("CK066")["severity"] == "bad"


@pytest.mark.parametrize("marker", ["_SUCCESS", "STABLE", "commit_success.txt"])
def test_the_marker_of_success_is_missing_in_one(steps: Path, marker: str) -> None:
    for step in (10, 20, 30):
        write(steps / f"step_{step}" / marker, b"")
    heard = audit(steps)
    finding = heard.of("CK066")
    assert (finding["subject"], finding["severity"]) == ("step_40", "suspect")
    assert marker in finding["message"]
    assert heard.summary["resume_from"] == "step_30"
    write(steps / "step_40" / marker, b"")
    assert audit(steps).rules() == set()
    (steps / "step_10" / marker).unlink()
    (steps / "step_20" / marker).unlink()
    assert audit(steps).rules() == set(), "half of them have it"


# --- sizes and left-over files ---------------------------------------------------------------------------------------


def test_one_checkpoint_is_much_smaller_than_its_siblings(steps: Path) -> None:
    save({"model": {"w": weights()["0.bias"]}}, steps / "step_40" / "c.pt")
    heard = audit(steps)
    finding = heard.of("CK068")
    assert (finding["subject"], finding["severity"]) == ("step_40", "suspect")
    assert finding["evidence"]["bytes"] < finding["evidence"]["usual"] / 20
    assert heard.summary["resume_from"] == "step_30"
    (steps / "step_10" / "c.pt").unlink()
    assert "CK068" not in audit(steps).rules(), "two others are too few"


def test_weights_alone_are_only_told(steps: Path) -> None:
    """The last save of a run is often without the optimizer."""
    state = training_state(40)
    save({"model_state_dict": state["model_state_dict"], "global_step": 40}, steps / "step_40" / "c.pt")
    heard = audit(steps)
    assert heard.of("CK068")["severity"] == "info"
    assert heard.rules(above_info=True) == set()


def test_damage_explains_a_small_size(steps: Path) -> None:
    path = steps / "step_40" / "c.pt"
    write(path, path.read_bytes()[:3000])
    heard = audit(steps)
    assert "CK068" not in heard.rules()
    assert heard.record_of("step_40")["verdict"] == "bad"


def test_left_over_files_are_told(steps: Path) -> None:
    write(steps / "old.pt.tmp", bytes(3000))
    write(steps / "step_40" / "optimizer.tmp", bytes(1000))
    write(steps / "tmp-checkpoint-50" / "model.safetensors", bytes(2000))
    heard = audit(steps)
    assert {each["severity"] for each in heard.findings} == {"info"}
    told = {each["subject"]: each for each in heard.findings if each["rule"] == "CK067"}
    assert set(told) == {"step_40", "old.pt.tmp", "tmp-checkpoint-50"}
    assert told["step_40"]["evidence"] == {"bytes": 1000, "count": 1}
    assert heard.summary["resume_from"] == "step_40"


def test_what_is_written_right_now_is_not_left_over(steps: Path) -> None:
    write(steps / "step_50.tmp" / "c.pt", bytes(3000))
    os.utime(steps / "step_50.tmp" / "c.pt")
    assert audit(steps).rules() == {"CK026", "CK069"}


def test_the_one_to_resume_from_is_named_when_the_newest_is_not(steps: Path) -> None:
    assert audit(steps).rules() == set()
    for step in (30, 40):
        path = steps / f"step_{step}" / "c.pt"
        write(path, path.read_bytes()[:9000])
    heard = audit(steps)
    finding = heard.of("CK069")
    assert (finding["subject"], finding["severity"]) == ("step_40", "info")
    assert finding["data"]["resume_from"] == heard.summary["resume_from"] == "step_20"
    path = steps / "step_10" / "c.pt"
    write(path, path.read_bytes()[:9000])
    assert sum(each["rule"] == "CK069" for each in audit(steps).findings) == 1
    for step in (10, 20):
        (steps / f"step_{step}" / "c.pt").unlink()
    assert "CK069" not in audit(steps).rules(), "there is nothing better"


# --- what is found at all --------------------------------------------------------------------------------------------


def test_a_checkpoint_that_the_depth_cuts_through_is_whole(tmp_path: Path) -> None:
    folder = trainer(tmp_path / "checkpoint-10", 10)
    (folder / "optimizer.pt").unlink()
    save({"module": weights(), "global_steps": 10}, folder / "global_step10" / "mp_rank_00_model_states.pt")
    heard = audit(tmp_path, depth=1)
    assert "global_step10/mp_rank_00_model_states.pt" in heard.record["files"]
    assert len(audit(folder, depth=0).records) == 1


def test_hundreds_of_checkpoints_are_found_at_once(tmp_path: Path) -> None:
    for step in range(300):
        for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json"):
            write(tmp_path / f"checkpoint-{step}" / name, b"x" * (100 + step % 7))
    started = time.process_time()
    units = discover(str(tmp_path), 6).units
    assert time.process_time() - started < 3
    assert len(units) == 300
    assert {unit.family for unit in units} == {"hf_trainer"}


def test_times_of_long_ago_are_told_in_days(steps: Path) -> None:
    write(steps / "step_50.tmp" / "c.pt", b"x")
    heard = audit(steps)
    assert " d ago" in heard.of("CK067")["message"]
    assert heard.of("CK026")["next_step"] == "", "nobody waits for it"
    assert LONG_AGO < 1_800_000_000
