"""Checkpoints of orbax: recognised, their structure checked, their values told unchecked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.unit.payloads.check_ckpt.support import audit, write

if TYPE_CHECKING:
    from pathlib import Path


def step(path: Path, *, item: str = "default/", committed: bool = True) -> Path:
    """Lay out one step as orbax does."""
    times = {"init_timestamp_nsecs": 1, "commit_timestamp_nsecs": 2 if committed else None}
    write(path / "_CHECKPOINT_METADATA", json.dumps({"item_handlers": {}, **times}).encode())
    write(path / f"{item}_METADATA", json.dumps({"tree_metadata": {}, "use_zarr3": True}).encode())
    write(path / f"{item}manifest.ocdbt", b"\x0c\xdb" + bytes(100))
    write(path / f"{item}d/0123456789abcdef", bytes(1000))
    write(path / f"{item}_sharding", b"{}")
    # What the process wrote before it was merged.
    write(path / f"{item}ocdbt.process_0/manifest.ocdbt", b"\x0c\xdb" + bytes(100))
    write(path / f"{item}ocdbt.process_0/d/fedcba9876543210", bytes(1000))
    write(path / f"{item}array_metadatas/process_0", b"{}")
    return path


@pytest.mark.parametrize("item", ["default/", "state/", ""])
def test_a_whole_step_is_unsupported(tmp_path: Path, item: str) -> None:
    heard = audit(step(tmp_path / "100", item=item).parent)
    record = heard.record
    assert (record["verdict"], record["format"], record["name"]) == ("unsupported", "orbax", "100")
    assert heard.rules() == {"CK128"}
    assert (record["bytes_checked"], record["step"]) == (0, 100)


def test_a_temporary_name_is_in_progress(tmp_path: Path) -> None:
    heard = audit(step(tmp_path / "100.orbax-checkpoint-tmp-1700000000").parent)
    assert heard.record["verdict"] == "in_progress"


@pytest.mark.parametrize(
    ("lost", "rule"),
    [("default/_METADATA", "CK063"), ("default/manifest.ocdbt", "CK063"), ("default/d/0123456789abcdef", "CK060")],
)
def test_what_is_missing_is_named(tmp_path: Path, lost: str, rule: str) -> None:
    path = step(tmp_path / "100")
    (path / lost).unlink()
    heard = audit(path)
    assert heard.record["verdict"] == "bad"
    assert rule in heard.rules()


@pytest.mark.parametrize(
    ("name", "data", "rule"),
    [
        ("default/_METADATA", b"", "CK021"),
        ("default/_METADATA", b'{"tree', "CK020"),
        ("default/manifest.ocdbt", b"", "CK061"),
        ("_CHECKPOINT_METADATA", b"\0\0", "CK021"),
    ],
)
def test_what_is_damaged_is_named(tmp_path: Path, name: str, data: bytes, rule: str) -> None:
    path = step(tmp_path / "100")
    write(path / name, data)
    heard = audit(path)
    assert heard.record["verdict"] == "bad"
    assert rule in heard.rules()


def test_a_step_without_an_end_is_suspected(tmp_path: Path) -> None:
    heard = audit(step(tmp_path / "100", committed=False))
    assert heard.of("CK066")["severity"] == "suspect"
    assert heard.record["verdict"] == "unsupported"


def test_a_marker_of_success_that_the_others_have_is_missed(tmp_path: Path) -> None:
    for number in (100, 200, 300):
        write(step(tmp_path / str(number)) / "commit_success.txt", b"ok")
    assert "CK066" not in audit(tmp_path).rules()
    (tmp_path / "200/commit_success.txt").unlink()
    assert audit(tmp_path).of("CK066")["subject"] == "200"
