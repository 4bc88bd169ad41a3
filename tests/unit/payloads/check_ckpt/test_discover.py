"""Which files are checkpoints, what they are called, in which order; and what is passed over."""

from __future__ import annotations

import os
import pickle
import socket
from pathlib import Path

import pytest
import torch

from remoterun.payloads.check_ckpt.find.discover import discover
from remoterun.payloads.check_ckpt.find.names import step_in_name
from remoterun.payloads.check_ckpt.find.unit import newest_first
from tests.unit.payloads.check_ckpt.support import NothingError, audit, save, stored_zip, training_state, write


def touch(path: Path, mtime: int = 1000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"PK\x03\x04")
    os.utime(path, (mtime, mtime))
    return path


def names(root: Path, depth: int = 6) -> set[str]:
    return {each.name for each in discover(str(root), depth).units}


def test_files_with_the_known_endings_are_found_at_every_level(tmp_path: Path) -> None:
    for name in (
        "a.pt",
        "b.pth",
        "best.pth.tar",
        "sources.tar",
        "c.bin",
        "d.ckpt",
        "e.safetensors",
        "F.PT",
        "deep/er/g.pt",
        "not.txt",
        "pt",
        "x.pt.txt",
    ):
        touch(tmp_path / name)
    files = {"a.pt", "b.pth", "best.pth.tar", "c.bin", "d.ckpt", "e.safetensors", "F.PT"}
    assert names(tmp_path) == {*files, "er"}
    assert names(tmp_path, 0) == files
    assert names(tmp_path, 1) == names(tmp_path, 0)


def test_a_file_alone_in_its_folder_has_the_folders_name(tmp_path: Path) -> None:
    touch(tmp_path / "step_1/checkpoint.pt")
    touch(tmp_path / "step_2/model.safetensors")
    touch(tmp_path / "step_2/optimizer.pt")
    touch(tmp_path / "alone.pt")
    assert names(tmp_path) == {"step_1", "step_2/model.safetensors", "step_2/optimizer.pt", "alone.pt"}


def test_a_folders_name_is_not_given_twice(tmp_path: Path) -> None:
    touch(tmp_path / "run_a/step_1/c.pt")
    touch(tmp_path / "run_b/step_1/c.pt")
    touch(tmp_path / "run_b/step_2/c.pt")
    assert names(tmp_path) == {"run_a/step_1", "run_b/step_1", "step_2"}


def test_companions_do_not_make_a_folder_a_set(tmp_path: Path) -> None:
    for name in ("weights.pt", "args.bin", "lr_scheduler.pt", "rng_state_0.pth", "scaler.pt"):
        touch(tmp_path / "checkpoint-500" / name)
    touch(tmp_path / "other" / "scheduler.pt")
    found = discover(str(tmp_path), 6).units
    assert {each.name for each in found if not each.companion} == {"checkpoint-500", "other"}
    assert sum(each.companion for each in found) == 4


def test_what_lies_beside_a_folder_goes_with_what_is_in_it(tmp_path: Path) -> None:
    """As accelerate saves it, with DeepSpeed's files in a folder of their own."""
    touch(tmp_path / "run/ck_5/pytorch_model/c.pt")
    touch(tmp_path / "run/ck_5/scheduler.bin")
    touch(tmp_path / "run/sampler.bin")
    touch(tmp_path / "other/scheduler.bin")
    found = discover(str(tmp_path), 6).units
    assert {each.relative for each in found if each.companion} == {"run/ck_5/scheduler.bin", "run/sampler.bin"}
    assert {each.name for each in found if not each.companion} == {"pytorch_model", "other"}


def test_one_file_may_be_the_root(tmp_path: Path) -> None:
    path = touch(tmp_path / "weights.dat")
    (found,) = discover(str(path), 6).units
    assert (found.name, found.path) == ("weights.dat", str(path))


def test_links_lead_to_one_record_each(tmp_path: Path) -> None:
    touch(tmp_path / "root/step_1/c.pt")
    touch(tmp_path / "elsewhere/step_9/c.pt")
    root = tmp_path / "root"
    (root / "latest").symlink_to("step_1")
    (root / "a_first.pt").symlink_to("step_1/c.pt")
    (root / "outside").symlink_to(tmp_path / "elsewhere")
    (root / "loop").symlink_to(root)
    (root / "step_1" / "up").symlink_to("..")
    (root / "self.pt").symlink_to("self.pt")
    (root / "gone.pt").symlink_to("nowhere")
    os.link(root / "step_1/c.pt", root / "step_1/hard.ckpt")
    discovery = discover(str(root), 6)
    assert sorted(each.relative for each in discovery.units) == ["outside/step_9/c.pt", "step_1/c.pt"]
    assert {skipped.path for skipped in discovery.skipped} == {str(root / "gone.pt"), str(root / "self.pt")}


def test_what_is_no_file_is_passed_over_with_its_reason(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pt")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket.pt"))
        discovery = discover(str(tmp_path), 6)
    assert discovery.units == []
    assert {(skipped.path, skipped.reason) for skipped in discovery.skipped} == {
        (str(tmp_path / "pipe.pt"), "no regular file"),
        (str(tmp_path / "socket.pt"), "no regular file"),
    }
    assert discover(str(tmp_path / "pipe.pt"), 6).units == []


@pytest.mark.parametrize(
    ("name", "temporary"),
    [
        ("c.pt.tmp", True),
        ("c.pt.tmp.1234", True),
        ("c.pt.part", True),
        ("c.safetensors.incomplete", True),
        ("c.ckpt.tmp-3f9a2c", True),
        ("tmp-checkpoint-500/model.safetensors", True),
        ("step_3.tmp/c.pt", True),
        ("step_3-unfinished/c.pt", True),
        (".tmp_step/c.pt", True),
        ("step_3.orbax-checkpoint-tmp-77/c.pt", True),
        ("step_3.tmp", True),
        ("run-temperature/c.pt", False),
        ("model-part2.pt", False),
        ("temp/c.pt", False),
        ("attempt.1/c.pt", False),
        ("tmp_run/c.pt", False),
    ],
)
def test_names_of_what_is_not_finished(tmp_path: Path, name: str, temporary: bool) -> None:
    touch(tmp_path / name)
    (found,) = discover(str(tmp_path), 6).units
    assert found.temporary is temporary


def test_other_temporary_files_are_none_of_ours(tmp_path: Path) -> None:
    (tmp_path / "editor.tmp").write_bytes(b"text")
    assert names(tmp_path) == set()


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step_2000/checkpoint.pt", 2000),
        ("step-002000.pt", 2000),
        ("global_step800/mp_rank_00_model_states.pt", 800),
        ("checkpoint-500/model.safetensors", 500),
        ("epoch=3-step=1200.ckpt", 1200),
        ("iter_0000100/model_optim_rng.pt", 100),
        ("ckpt_7.pt", 7),
        ("002000.pt", 2000),
        ("500/model.safetensors", 500),
        ("500.pth.tar.tmp-1", 500),
        ("0.3.0/weights.pth.tar", None),
        ("2.1.pt", None),
        ("run3/last.pt", None),
        ("best.pt", None),
        ("unit3.pt", None),
        ("step_1/step_2.pt", 2),
        ("model-00001-of-00002.safetensors", None),
        ("step_99999999999999999999.pt", None),
    ],
)
def test_the_step_in_a_name(name: str, step: int | None) -> None:
    assert step_in_name(name) == step


def test_the_newest_comes_first(tmp_path: Path) -> None:
    touch(tmp_path / "step_900.pt", 3000)
    touch(tmp_path / "step_1000.pt", 2000)
    touch(tmp_path / "step_20.pt", 4000)
    order = [each.name for each in newest_first(discover(str(tmp_path), 6).units)]
    assert order == ["step_1000.pt", "step_900.pt", "step_20.pt"]
    touch(tmp_path / "best.pt", 2500)
    order = [each.name for each in newest_first(discover(str(tmp_path), 6).units)]
    assert order == ["step_20.pt", "step_900.pt", "best.pt", "step_1000.pt"]


def test_names_that_are_no_text_are_survived(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/step_1_\xff\n.pt"
    with open(path, "wb") as file:  # noqa: PTH123 - the name is bytes
        file.write(b"x")
    (found,) = discover(str(tmp_path), 6).units
    assert os.path.exists(found.path)  # noqa: PTH110 - not text either


# --- other names ----------------------------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.parametrize("name", ["checkpoint.tar", "last.pkl", "G.model", "net.t7", "best.weights", "w.TORCH"])
@pytest.mark.parametrize("old", [False, True])
def test_what_torch_saved_is_found_under_other_names(tmp_path: Path, name: str, old: bool) -> None:
    save(training_state(), tmp_path / "run" / name, _use_new_zipfile_serialization=not old)
    heard = audit(tmp_path)
    assert (heard.record["name"], heard.record["verdict"]) == ("run", "ok")
    assert heard.summary["skipped"] == []


@pytest.mark.torch
def test_what_may_hold_weights_and_is_not_read_is_told(tmp_path: Path) -> None:
    for name in ("a.h5", "b/c.h5", "b/c.onnx", "b/d.npz", "b/tf.ckpt-9.data-00000-of-00001", "e.pt2"):
        write(tmp_path / name, b"\x89HDF\r\n\x1a\n" + bytes(100))
    write(tmp_path / "f.pkl", pickle.dumps({"a": 1}))
    save({"words": ["a", "b"]}, tmp_path / "h.pkl")
    save(torch.get_rng_state(), tmp_path / "random_states_0.pkl")
    write(tmp_path / "g.tar", stored_zip({"archive/other": b"data.pkl"}))
    for name in ("tokenizer.model", "spiece.model", "readme.md", "loss.csv", "train.py"):
        write(tmp_path / name, b"text")
    discovery = discover(str(tmp_path), 6)
    assert discovery.units == []
    told = {str(Path(each.path).relative_to(tmp_path)): each.reason for each in discovery.skipped}
    assert told == {
        "a.h5": "an HDF5 file, which can't be audited yet (and 1 more)",
        "b/c.onnx": "an ONNX model, which can't be audited yet",
        "b/d.npz": "numpy arrays, which can't be audited yet",
        "b/tf.ckpt-9.data-00000-of-00001": "a checkpoint of TensorFlow, which can't be audited yet",
        "e.pt2": "a program of torch.export, which can't be audited yet",
        "f.pkl": "a pickle that torch.save did not write: name it to have it looked at",
        "g.tar": "not a file that torch.save wrote",
        "h.pkl": "torch.save wrote it, and no tensor is in it",
    }
    with pytest.raises(NothingError, match=r"passed over: .*/a\.h5 \(an HDF5 file, which can't be audited yet"):
        audit(tmp_path)


def test_what_is_not_read_leaves_the_verdicts_of_others_alone(tmp_path: Path) -> None:
    save(training_state(), tmp_path / "step_2000.pt")
    write(tmp_path / "model.onnx", bytes(100))
    heard = audit(tmp_path)
    assert heard.record["verdict"] == "ok"
    assert heard.findings == []
    assert heard.summary["skipped"] == [
        {"path": str(tmp_path / "model.onnx"), "reason": "an ONNX model, which can't be audited yet"}
    ]


def test_not_every_file_of_such_a_name_is_opened(tmp_path: Path) -> None:
    for number in range(503):
        (tmp_path / f"{number:03}.tar").write_bytes(b"x")
    reasons = sorted(each.reason for each in discover(str(tmp_path), 6).skipped)
    assert reasons == [
        "not a file that torch.save wrote (and 499 more)",
        "not looked into, after 500 files of such names (and 2 more)",
    ]
