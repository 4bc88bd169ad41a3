"""Files that are no checkpoint, or one that can't be audited yet: each is told for what it is."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch.package.package_exporter import PackageExporter

from tests.unit.payloads.check_ckpt.support import NothingError, audit, save, settle, stored_zip, training_state, write

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


def tarred() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("model_config.yaml"), io.BytesIO())
    return buffer.getvalue()


def npy() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(100))
    return buffer.getvalue()


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
KINDS = {
    "lfs": (LFS, "c.pt", "bad", "CK024", "Git LFS pointer"),
    "html": (b"<!DOCTYPE html><html>404</html>", "c.pt", "bad", "CK024", "web page"),
    "gzip": (gzip.compress(bytes(1000)), "c.pt", "bad", "CK024", "gzip"),
    "text": (b"hello, world\n" * 60, "c.ckpt", "bad", "CK024", "text"),
    "npy": (npy(), "c.pth", "bad", "CK024", "numpy"),
    "npy.bin": (npy(), "c.bin", "unsupported", "CK128", "numpy"),
    "npz": (stored_zip({"a.npy": npy()}), "c.pt", "bad", "CK024", "no data.pkl"),
    "npz.bin": (stored_zip({"a.npy": npy()}), "c.bin", "unsupported", "CK128", "numpy"),
    "zip": (stored_zip({"a/b.txt": b"x"}), "c.pt", "bad", "CK024", "no data.pkl"),
    "noise": (bytes(range(200, 256)) * 20, "c.pt", "bad", "CK024", "no checkpoint format"),
    "noise.bin": (bytes(range(200, 256)) * 20, "c.bin", "unsupported", "CK128", "no checkpoint format"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(100), "c.ckpt", "unsupported", "CK128", "HDF5"),
    "tar": (tarred(), "c.ckpt", "unsupported", "CK128", "tar archive"),
}


@pytest.mark.parametrize("name", KINDS)
def test_it_is_told_what_a_file_is(tmp_path: Path, name: str) -> None:
    data, file, verdict, rule, words = KINDS[name]
    write(tmp_path / file, data)
    heard = audit(tmp_path)
    record = heard.record
    assert record["verdict"] == verdict
    assert heard.rules() == {rule}
    assert words in heard.of(rule)["message"]
    assert record["params"] is None
    assert record["bytes_checked"] == 0
    assert heard.summary["resume_from"] is None


def test_a_save_that_failed_is_told(tmp_path: Path) -> None:
    """torch leaves an archive without a pickle where something could not be pickled."""
    with pytest.raises(AttributeError, match="pickle"):
        torch.save(training_state(schedule=lambda step: step), tmp_path / "c.pt")
    settle(tmp_path / "c.pt")
    heard = audit(tmp_path)
    assert (heard.record["verdict"], heard.rules()) == ("bad", {"CK020"})
    assert "torch.save failed" in heard.of("CK020")["message"]
    assert "could not pickle" in heard.of("CK020")["next_step"]


@pytest.mark.parametrize(
    "path",
    [
        "step_scheduler.pt",
        "criterion.pt",
        "dataloader/dataloader_dp_rank_0.pt",
        "train_dataloader_dprank000.pt",
        "lr_scheduler/lr_scheduler_pp-0-of-1_tp-0-of-2.pt",
    ],
)
def test_small_things_without_tensors_go_with_checkpoints(tmp_path: Path, path: str) -> None:
    save(training_state(), tmp_path / "step_10" / "model" / "c.pt")
    save({"step": 10}, tmp_path / "step_10" / path)
    heard = audit(tmp_path)
    assert (heard.record["verdict"], heard.rules(above_info=True)) == ("ok", set())
    assert len(heard.summary["companions"]) == 1
    save({"model": {"w": torch.full((2, 2), float("nan"))}}, tmp_path / "step_10" / path)
    assert [record["verdict"] for record in audit(tmp_path).records].count("bad") == 1, "with tensors, it is one"


@pytest.mark.parametrize("name", ["model.joblib", "model.pkl"])
def test_what_joblib_wrote_is_not_called_damaged(tmp_path: Path, name: str) -> None:
    """It has the bytes of an array behind what describes it, in the middle of the pickle."""
    head = b"\x80\x02}X\x01\0\0\0acjoblib.numpy_pickle\nNumpyArrayWrapper\n)\x81"
    path = write(tmp_path / name, head + b"\x05" + b"\xff" * 5 + np.arange(50.0).tobytes() + b"s.")
    heard = audit(path)
    assert heard.record["verdict"] == "unsupported"
    assert "joblib" in heard.of("CK128")["message"]
    with pytest.raises(NothingError, match="name it to have it looked at"):
        audit(tmp_path)


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("kind", ["export", "package"])
def test_what_else_torch_writes_as_a_zip(tmp_path: Path, kind: str, cut: bool) -> None:
    """It is no damaged checkpoint, unless it is damaged."""
    buffer, layer = io.BytesIO(), torch.nn.Linear(2, 2)
    if kind == "export":
        torch.export.save(torch.export.export(layer, (torch.ones(1, 2),)), buffer)
    else:
        with PackageExporter(buffer) as exporter:
            exporter.extern("**")
            exporter.save_pickle("model", "model.pkl", layer)
    data = buffer.getvalue()
    write(tmp_path / "c.pt", data[: len(data) // 2] if cut else data)
    heard = audit(tmp_path)
    if cut:
        assert heard.record["verdict"] == "bad"
        return
    assert heard.record["verdict"] == "unsupported"
    assert f"torch.{kind}" in heard.of("CK128")["message"]
    assert heard.summary["resume_from"] is None


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_without_tensors_is_told(tmp_path: Path, protocol: int) -> None:
    write(tmp_path / "c.pt", pickle.dumps({"step": 5, "w": [1.0]}, protocol))
    heard = audit(tmp_path)
    assert (heard.record["verdict"], heard.record["step"]) == ("unsupported", 5)
    assert heard.rules() == {"CK009", "CK024", "CK028"}
    assert heard.of("CK024")["severity"] == "info"


@pytest.mark.parametrize("data", [b"cos is a function\n" * 40, b"(a remark)\n" * 60])
def test_a_text_that_begins_like_a_pickle_is_none(tmp_path: Path, data: bytes) -> None:
    heard = audit(write(tmp_path / "c.pt", data))
    assert (heard.record["verdict"], heard.rules()) == ("bad", {"CK024"})


def test_what_to_do_about_a_pointer_is_told(tmp_path: Path) -> None:
    write(tmp_path / "c.pt", LFS)
    assert "git lfs pull" in audit(tmp_path).of("CK024")["next_step"]


def test_a_model_in_a_safetensors_costume(tmp_path: Path) -> None:
    """The contents count, not the name."""
    save(training_state(), tmp_path / "model.safetensors")
    assert audit(tmp_path).record["format"] == "torch-zip"
    write(tmp_path / "model.safetensors", LFS)
    assert audit(tmp_path).record["verdict"] == "bad"


@pytest.mark.parametrize("size", [1, 3, 7, 8, 9, 20, 21, 22, 30, 46])
@pytest.mark.parametrize("start", [b"PK\x03\x04", b"PK\x05\x06", b"\x80\x02", b"\x00", b"{", b"\xff"])
def test_stumps_of_a_few_bytes(tmp_path: Path, size: int, start: bytes) -> None:
    write(tmp_path / "c.pt", (start * 50)[:size])
    assert audit(tmp_path).record["verdict"] in {"bad", "unsupported"}
