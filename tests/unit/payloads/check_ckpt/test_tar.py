"""Tar archives, NeMo's above all: what lies in them is audited in its place."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
from typing import TYPE_CHECKING

import pytest
import torch

from tests.unit.payloads.check_ckpt.support import audit, overwrite, training_state, write

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.torch


def saved(value: object, **options: object) -> bytes:
    """Save with torch."""
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)  # type: ignore[arg-type]
    return buffer.getvalue()


def tar(members: Sequence[tuple[str, bytes]], fmt: int = tarfile.PAX_FORMAT) -> bytes:
    """Make an archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=fmt) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


CONFIG = ("./model_config.yaml", b"name: model\n")


@pytest.mark.parametrize("fmt", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("name", ["./model_weights.ckpt", "a" * 90 + "/" + "b" * 90 + ".ckpt"])
def test_the_weights_of_a_nemo_file_are_audited(tmp_path: Path, fmt: int, name: str) -> None:
    state = training_state()
    state["model_state_dict"]["0.weight"][1, 1] = float("nan")
    path = write(tmp_path / "m.nemo", tar([CONFIG, (name, saved(state))], fmt))
    heard = audit(path)
    record = heard.record
    assert (record["format"], record["params"], record["nan_weights"]) == ("nemo", 4 * (64 * 64 + 64), 1)
    assert (record["step"], record["epoch"], record["bytes_checked"]) == (2000, 1, record["bytes"])
    assert heard.rules() == {"CK001"}
    start, stop = heard.of("CK001")["data"]["range"]
    data = path.read_bytes()[start:stop]
    assert torch.frombuffer(bytearray(data), dtype=torch.float32).isnan().sum() == 1


def test_a_changed_bit_inside_is_a_wrong_checksum(tmp_path: Path) -> None:
    path = write(tmp_path / "m.nemo", tar([CONFIG, ("model_weights.ckpt", saved(training_state()))]))
    whole = audit(path)
    assert (whole.record["verdict"], whole.rules()) == ("ok", set())
    at = path.read_bytes().find(b"data/2") + 8000
    overwrite(path, at, bytes([path.read_bytes()[at] ^ 0x40]))
    heard = audit(path)
    assert "CK022" in heard.rules()
    assert heard.of("CK022")["evidence"]["flipped_byte"] == at


@pytest.mark.parametrize(("ranks", "verdict"), [(16, "ok"), (17, "unsupported")])
def test_members_that_are_passed_over_are_told(tmp_path: Path, ranks: int, verdict: str) -> None:
    state = saved({"weight": torch.randn(8, 8, generator=torch.Generator().manual_seed(0))})
    members = [(f"./mp_rank_{rank:02}/model_weights.ckpt", state) for rank in range(ranks)]
    heard = audit(write(tmp_path / "m.nemo", tar([*members, CONFIG])))
    assert heard.record["verdict"] == verdict
    assert ("not every one of its members" in str(heard.findings)) == (verdict != "ok"), heard.findings


@pytest.mark.parametrize("cut", [300, 700, 0.5, -3000])
def test_a_truncated_archive_is_cut_off(tmp_path: Path, cut: float) -> None:
    data = tar([CONFIG, ("model_weights.ckpt", saved(training_state()))])
    end = len(data.rstrip(b"\0"))
    size = int(end * cut) if isinstance(cut, float) else cut % end
    heard = audit(write(tmp_path / "m.nemo", data[:size]))
    assert heard.record["verdict"] == "bad"
    assert "CK020" in heard.rules()
    if size > 100_000:
        assert "of 32 storages intact" in " ".join(each["message"] for each in heard.findings)


def test_several_checkpoints_are_audited_and_old_ones_too(tmp_path: Path) -> None:
    members = [
        ("a.ckpt", saved({"model": {"w": torch.tensor([float("nan")])}})),
        ("b.pt", saved({"model": {"v": torch.tensor([float("inf")])}}, _use_new_zipfile_serialization=False)),
        ("notes.txt", b"hello"),
    ]
    record = audit(write(tmp_path / "c.ckpt", tar(members))).record
    assert (record["format"], record["nan_weights"], record["inf_weights"]) == ("tar", 1, 1)


def test_what_can_not_be_audited_inside_is_said(tmp_path: Path) -> None:
    for members, words in (
        ([CONFIG, ("model_weights/__0_0.distcp", b"x")], "distributed checkpoint"),
        ([("a.txt", b"x")], "none of its members"),
        ([("storages", b"x"), ("tensors", b"x"), ("pickle", pickle.dumps({})), ("sys_info", b"x")], "2016"),
    ):
        heard = audit(write(tmp_path / "c.ckpt", tar(members)))
        assert heard.record["verdict"] == "unsupported"
        assert words in heard.of("CK128")["message"]


def test_a_compressed_nemo_file_is_not_called_wrong(tmp_path: Path) -> None:
    heard = audit(write(tmp_path / "m.nemo", gzip.compress(tar([CONFIG]))))
    assert (heard.record["verdict"], heard.rules()) == ("unsupported", {"CK128"})


def test_members_that_lead_outside_are_refused(tmp_path: Path) -> None:
    for name in ("../evil.ckpt", "/etc/evil", "a/../../b"):
        heard = audit(write(tmp_path / "m.nemo", tar([CONFIG, (name, b"x")])))
        assert heard.record["verdict"] == "bad"
        assert "outside its folder" in heard.of("CK104")["message"]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo("weights.ckpt")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(info)
    assert "is a link" in audit(write(tmp_path / "m.nemo", buffer.getvalue())).of("CK102")["message"]


def test_code_in_a_member_is_found(tmp_path: Path) -> None:
    attack = b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R."
    inside = tar([CONFIG, ("model_weights.ckpt", attack)])
    ancient = tar([("storages", b"x"), ("tensors", b"x"), ("pickle", attack)])
    for data in (inside, ancient):
        heard = audit(write(tmp_path / "m.nemo", data))
        assert heard.record["verdict"] == "bad"
        assert "CK101" in heard.rules()


def test_damaged_headers_end_the_walk(tmp_path: Path) -> None:
    data = bytearray(tar([CONFIG, ("a.ckpt", b"x")]))
    data[1024 + 5] ^= 1
    heard = audit(write(tmp_path / "m.nemo", bytes(data)))
    assert heard.record["verdict"] == "bad"
    assert "damaged (byte 1024)" in heard.of("CK025")["message"]
    data = bytearray(tar([CONFIG]))
    data[124:136] = b"\xff" * 12
    assert "CK025" in audit(write(tmp_path / "m.nemo", bytes(data))).rules()


def test_archives_in_archives_are_not_followed(tmp_path: Path) -> None:
    data = saved({"w": torch.ones(1)})
    for _ in range(300):
        data = tar([("a.tar", data)])
    heard = audit(write(tmp_path / "m.nemo", data))
    assert heard.record["verdict"] == "unsupported"
