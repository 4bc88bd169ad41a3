"""Known ways in which one file is damaged, and the verdict that each has to get: R1 to R7, R15 to R19."""

from __future__ import annotations

import collections
import gzip
import os
import pathlib
import pickle
import struct
import zipfile
import zlib
from argparse import Namespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.unit.payloads.check_ckpt.support import (
    NothingError,
    audit,
    overwrite,
    place_of,
    save,
    settle,
    training_state,
    write,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch

PAGE = 4096


def gguf(tensors: int = 20) -> bytes:
    """Make a GGUF file of float32 tensors."""
    infos = b"".join(
        struct.pack("<Q", 4) + b"t%03d" % index + struct.pack("<IQIQ", 1, 16, 0, 64 * index) for index in range(tensors)
    )
    head = b"GGUF" + struct.pack("<IQQ", 3, tensors, 0) + infos
    return head + bytes(-len(head) % 32) + np.ones(16 * tensors, dtype="<f4").tobytes()


def sound(kind: str, path: Path) -> bytes:
    """Make a sound file of a kind and return its bytes."""
    if kind == "gguf":
        return gguf()
    return save(training_state(), path, _use_new_zipfile_serialization=kind == "zip").read_bytes()


@pytest.mark.parametrize("cut", [10, 0.5, 2 / 3, -1, -22])
@pytest.mark.parametrize("kind", ["zip", "legacy", "gguf"])
def test_r1_a_cut_file_is_truncated(tmp_path: Path, kind: str, cut: float) -> None:
    data = sound(kind, tmp_path / "whole.pt")
    size = int(len(data) * cut) if isinstance(cut, float) else cut % len(data)
    heard = audit(write(tmp_path / "cut" / "c.pt", data[:size]))
    assert heard.record["verdict"] == "bad"
    assert "CK020" in heard.rules()
    told = " ".join(each["message"] for each in heard.findings if each["rule"] == "CK020")
    if size > 10:
        assert "intact" in told or "whole" in told
    if size in (len(data) // 2, int(len(data) * 2 / 3)):
        assert "first damaged: " in told


@pytest.mark.parametrize("kind", ["zip", "legacy", "gguf"])
def test_r1_zeros_behind_the_end_are_tolerated(tmp_path: Path, kind: str) -> None:
    heard = audit(write(tmp_path / "c.pt", sound(kind, tmp_path / "whole.pt") + bytes(100)))
    assert heard.record["verdict"] == "ok"
    assert heard.of("CK025")["severity"] == "info"


def test_r1_a_full_disk_is_named(tmp_path: Path) -> None:
    """The file is larger than what is left on the disk, of which it takes little itself."""
    data = sound("zip", tmp_path / "whole.pt")
    path = write(tmp_path / "cut" / "c.pt", data[: len(data) // 2])
    status = os.statvfs(tmp_path)
    os.truncate(path, status.f_bavail * status.f_frsize + (4 << 30))
    assert "make room" in audit(settle(path)).of("CK020")["next_step"]
    assert "make room" not in audit(write(path, data[: len(data) // 2])).of("CK020")["next_step"]


@pytest.mark.parametrize("hole", [True, False])
@pytest.mark.parametrize("kind", ["zip", "legacy"])
def test_r2_an_end_that_was_never_written(tmp_path: Path, kind: str, hole: bool) -> None:
    data = sound(kind, tmp_path / "whole.pt")
    kept = len(data) * 3 // 5
    path = tmp_path / "cut" / "c.pt"
    write(path, data[:kept] + (b"" if hole else bytes(len(data) - kept)))
    os.truncate(path, len(data))
    heard = audit(settle(path))
    assert heard.record["verdict"] == "bad"
    assert {"CK020", "CK023"} <= heard.rules()
    assert heard.of("CK023")["severity"] == "bad"


def test_r2_a_hole_where_no_checksum_tells_is_information(tmp_path: Path) -> None:
    """Zeros are numbers like others in such a format; what they mean is for the rules about values to say."""
    data = gguf(500)
    path = write(tmp_path / "m.gguf", data[: len(data) // 2])
    os.truncate(path, len(data))
    heard = audit(settle(path))
    assert heard.of("CK023")["severity"] == "info"


@pytest.mark.parametrize("data", [b"", bytes(PAGE)])
def test_r3_an_empty_file_and_one_of_zeros(tmp_path: Path, data: bytes) -> None:
    heard = audit(write(tmp_path / "c.pt", data))
    assert (heard.record["verdict"], heard.rules()) == ("bad", {"CK021"})


def zeroed_page(path: Path) -> tuple[int, int]:
    """Write zeros over a page of the file that lies in a weight, and return where its record lies."""
    save(training_state(), path)
    offset, size = place_of(path, "data/2")
    overwrite(path, -(-offset // PAGE) * PAGE, bytes(PAGE))
    return offset, size


def test_r4a_a_zeroed_page_fails_its_checksum(tmp_path: Path) -> None:
    zeroed_page(tmp_path / "c.pt")
    heard = audit(tmp_path / "c.pt")
    assert heard.record["verdict"] == "bad"
    assert {"CK022", "CK007"} <= heard.rules()
    assert "CK041" not in heard.rules()


def test_r4b_a_zeroed_page_under_a_right_checksum_is_seen_by_its_values(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    offset, size = zeroed_page(path)
    data = bytearray(path.read_bytes())
    crc = struct.pack("<I", zlib.crc32(data[offset : offset + size]))
    data[offset + size + 4 : offset + size + 8] = crc
    at = data.find(b"data/2", data.find(b"PK\x01\x02")) - 46 - len(b"c/")
    assert data[at : at + 4] == b"PK\x01\x02"
    data[at + 16 : at + 20] = crc
    heard = audit(write(path, bytes(data)))
    assert "CK007" in heard.rules()
    assert "CK022" not in heard.rules()


@pytest.mark.parametrize("genuine", [False, True])
def test_r4c_a_hole_is_damage_unless_the_checksum_says_that_it_is_zero(tmp_path: Path, genuine: bool) -> None:
    state = training_state()
    state["model_state_dict"]["big"] = torch.zeros(200_000) if genuine else torch.ones(200_000)
    path = save(state, tmp_path / "c.pt")
    offset, size = max((place_of(path, f"data/{index}") for index in range(33)), key=lambda place: place[1])
    data = path.read_bytes()
    start, stop = -(-offset // PAGE) * PAGE, (offset + size) // PAGE * PAGE
    path.unlink()
    with path.open("wb") as file:
        file.write(data[:start])
        file.seek(stop)
        file.write(data[stop:])
    heard = audit(settle(path))
    found = heard.of("CK023")
    assert found["data"]["range"] == [start, stop]
    assert found["severity"] == ("info" if genuine else "bad")
    assert ("CK022" in heard.rules()) == (not genuine)
    assert "CK041" not in heard.rules()


def test_r5_two_writers_on_one_path(tmp_path: Path) -> None:
    path, other = save(training_state(0), tmp_path / "c.pt"), save(training_state(1), tmp_path / "o" / "c.pt")
    low, high = path.stat().st_size * 2 // 5, path.stat().st_size * 3 // 5
    overwrite(path, low, other.read_bytes()[low:high])
    heard = audit(path)
    assert heard.record["verdict"] == "bad"
    assert len([each for each in heard.findings if each["rule"] == "CK022"]) > 1


WRONG_KINDS: dict[str, tuple[bytes, str]] = {
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n", "bad"),
    "page": (b"<!DOCTYPE html><html></html>", "bad"),
    "gzip": (gzip.compress(b"checkpoint" * 100), "bad"),
    "plain pickle": (pickle.dumps({"w": torch.ones(4)}, 4), "ok"),
}


@pytest.mark.parametrize("name", WRONG_KINDS)
def test_r6_a_file_of_another_kind_is_named(tmp_path: Path, name: str) -> None:
    data, verdict = WRONG_KINDS[name]
    heard = audit(write(tmp_path / "c.pt", data))
    assert heard.record["verdict"] == verdict
    assert heard.of("CK024")["severity"] == ("info" if verdict == "ok" else "bad")


def header(**entries: object) -> bytes:
    """Write the header of a safetensors file."""
    text = repr(entries).replace("'", '"').encode()
    return struct.pack("<Q", len(text)) + text


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    """Describe a tensor."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


ONE, TWO = entry("F32", [2], 0, 8), entry("F32", [2], 8, 16)
BROKEN: dict[str, tuple[bytes, str]] = {
    "a byte short": (header(a=ONE, b=TWO) + bytes(15), "CK020"),
    "a byte more": (header(a=ONE, b=TWO) + bytes(17), "CK025"),
    "a header byte of 0xff": (header(a=ONE, b=TWO).replace(b"F32", b"\xff32", 1) + bytes(16), "CK025"),
    "a header of 2^63": (struct.pack("<Q", 1 << 63) + header(a=ONE)[8:], "CK025"),
    "overlapping": (header(a=ONE, b=entry("F32", [2], 4, 12)) + bytes(12), "CK025"),
    "begin behind end": (header(a=entry("F32", [2], 8, 0)) + bytes(8), "CK025"),
    "shape and bytes": (header(a=entry("F32", [3], 0, 8)) + bytes(8), "CK025"),
    "a hole": (header(a=ONE, b=entry("F32", [2], 16, 24)) + bytes(24), "CK025"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_r7_a_broken_safetensors_file(tmp_path: Path, name: str) -> None:
    data, rule = BROKEN[name]
    heard = audit(write(tmp_path / "m.safetensors", data))
    assert heard.record["verdict"] == "bad"
    assert rule in heard.rules()


def test_r7_what_readers_let_through_is_not_ok(tmp_path: Path) -> None:
    unknown = audit(write(tmp_path / "u.safetensors", header(a=entry("F99", [2], 0, 8)) + bytes(8)))
    assert (unknown.record["verdict"], unknown.of("CK126")["severity"]) == ("suspect", "suspect")
    text = header(a=ONE)[8:-1] + b"," + header(a=ONE)[9:]
    twice = audit(write(tmp_path / "t.safetensors", struct.pack("<Q", len(text)) + text + bytes(8)))
    assert (twice.record["verdict"], twice.of("CK025")["severity"]) == ("suspect", "suspect")


def test_r7_a_payload_of_zeros_is_seen_by_its_values(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({f"layers.{index}.weight": torch.randn(32, 32) for index in range(4)}, path, metadata={"format": "pt"})
    data = path.read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    heard = audit(write(path, data[:start] + bytes(len(data) - start)))
    assert "CK006" in heard.rules()
    assert heard.record["verdict"] != "ok"


def test_r12c_bytes_of_two_steps_under_the_first_ones_checksum(tmp_path: Path) -> None:
    path, later = save(training_state(0), tmp_path / "c.pt"), save(training_state(1), tmp_path / "later.pt")
    offset, size = place_of(path, "data/0")
    place, _ = place_of(later, "data/0")
    overwrite(path, offset + size // 2, later.read_bytes()[place + size // 2 : place + size])
    heard = audit(path)
    assert heard.record["verdict"] == "bad"
    assert {"CK022", "CK041"} <= heard.rules()
    assert heard.of("CK041")["data"]["tensors"] == ["model_state_dict.0.weight"]


def test_r12c_a_single_flipped_bit_is_no_torn_storage(tmp_path: Path) -> None:
    """It is named: the exponent of a weight, which no NaN counter and no loader sees."""
    path = save(training_state(0), tmp_path / "c.pt")
    offset, _ = place_of(path, "data/0")
    at = offset + 4 * 700 + 3
    overwrite(path, at, bytes([path.read_bytes()[at] ^ 0x02]))
    heard = audit(path)
    assert "CK041" not in heard.rules()
    evidence = heard.of("CK022")["evidence"]
    assert (evidence["flipped_byte"], evidence["flipped_bit"]) == (at, 1)


class Attack:
    """Run a program when it is unpickled for real."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("true",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_r15_code_is_found_and_does_not_run(tmp_path: Path, protocol: int) -> None:
    """The other attacks are in test_hostile_files.py, each within a second and 200 MB."""
    heard = audit(write(tmp_path / "c.pt", pickle.dumps(Attack(), protocol)))
    assert heard.record["verdict"] == "bad"
    assert "CK101" in heard.rules()


def test_r16_what_torch_refuses_is_audited_and_told(tmp_path: Path) -> None:
    extra: dict[str, Any] = {
        "args": Namespace(lr=0.1),
        "best": np.float64(0.5),
        "rng": np.random.RandomState(3).get_state(),
        "path": pathlib.PurePosixPath("/data"),
        "recent": collections.deque([1.0]),
    }
    path = save(training_state(global_step=np.int64(77), **extra), tmp_path / "c.pt")
    with pytest.raises(Exception, match="Weights only load failed"):
        torch.load(path, weights_only=True)
    heard = audit(path)
    assert (heard.record["verdict"], heard.record["step"]) == ("ok", 77)
    assert heard.of("CK120")["severity"] == "info"
    pickled = b"\x80\x02comegaconf.dictconfig\nDictConfig\n)\x81}X\x08\0\0\0_contentK\x05sb."
    with zipfile.ZipFile(tmp_path / "deleted.pt", "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
    assert "omegaconf.dictconfig.DictConfig" in audit(settle(tmp_path / "deleted.pt")).of("CK120")["message"]


def test_r17_a_pipe_and_a_circle_of_links_are_passed_over(tmp_path: Path) -> None:
    """Files that change while they are read are in test_audit.py."""
    os.mkfifo(tmp_path / "pipe.pt")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "a.pt").symlink_to(tmp_path / "b.pt")
    (tmp_path / "b.pt").symlink_to(tmp_path / "a.pt")
    with pytest.raises(NothingError):
        audit(tmp_path)
    save(training_state(), tmp_path / "step_5" / "c.pt")
    heard = audit(tmp_path)
    assert heard.record["verdict"] == "ok"
    assert {each["reason"] for each in heard.summary["skipped"]} >= {"no regular file"}


@pytest.mark.parametrize("name", ["uint16", "uint32", "uint64", "float4_e2m1fn_x2", "float8_e8m0fnu", "complex32"])
def test_r18_every_number_format_is_counted_or_named(tmp_path: Path, name: str) -> None:
    tensor = torch.zeros(16, dtype=torch.uint8).view(getattr(torch, name))
    heard = audit(save({"w": tensor}, tmp_path / "c.pt"))
    assert heard.record["verdict"] in {"ok", "suspect"}
    assert heard.record["tensors"] + len(heard.record["unchecked"]) == 1


BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("C64", "F64", "I64", "U64"), 64),
}


@pytest.mark.parametrize("name", BITS)
def test_r18_every_number_format_of_safetensors_is_counted_or_named(tmp_path: Path, name: str) -> None:
    size = 16 * BITS[name] // 8
    heard = audit(write(tmp_path / "m.safetensors", header(w=entry(name, [16], 0, size)) + bytes(size)))
    assert heard.record["verdict"] == "ok", heard.findings
    assert (heard.record["tensors"], [each["dtype"] for each in heard.record["unchecked"]]) in ((1, []), (0, [name]))
    assert heard.record["bytes_checked"] == heard.record["bytes"] - size * len(heard.record["unchecked"])


def test_r19_shared_weights_count_once_and_waste_is_told(tmp_path: Path) -> None:
    base = torch.randn(300, 200)
    model = {"embed": base, "head": base, "turned": base.t(), "wide": base[:1].expand(50, 200)}
    heard = audit(save({"model": model}, tmp_path / "c.pt"))
    assert (heard.record["params"], heard.record["params_listed"]) == (60_000, 3 * 60_000 + 10_000)
    assert "CK121" not in heard.rules()
    wasteful = audit(save({"model": {"_orig_mod.module.w": base[3, :2]}}, tmp_path / "w.pt"))
    assert wasteful.record["params"] == 2
    assert {"CK121", "CK122"} <= wasteful.rules()
    assert {each["severity"] for each in wasteful.findings if each["rule"] in {"CK121", "CK122"}} == {"info"}
