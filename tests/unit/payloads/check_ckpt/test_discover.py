"""Which files are checkpoints, what they are called, in which order; and what is passed over."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from remoterun.payloads.check_ckpt.find.discover import discover
from remoterun.payloads.check_ckpt.find.names import step_in_name
from remoterun.payloads.check_ckpt.find.unit import newest_first

if TYPE_CHECKING:
    from pathlib import Path


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
