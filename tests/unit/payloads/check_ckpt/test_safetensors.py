"""safetensors: every format the library writes, and every way a file can be wrong."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from tests.unit.payloads.check_ckpt.support import ENGINES, Heard, audit, count_with_torch, settle, write

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch

CODES = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


def build(header: object, data: bytes = b"", *, raw: bytes | None = None, length: int | None = None) -> bytes:
    """Lay out a file; `raw` replaces the header's JSON, `length` what is claimed of it."""
    text = json.dumps(header).encode() if raw is None else raw
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def check(tmp_path: Path, data: bytes) -> Heard:
    """Audit bytes as a model.safetensors."""
    return audit(write(tmp_path / "model.safetensors", data))


GOOD = {"a": entry("F32", [2, 3], 0, 24), "b": entry("F32", [1], 24, 28)}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_model_is_ok(tmp_path: Path, engine: str) -> None:
    tensors = {
        "w": torch.randn(300, 300),
        "h": torch.randn(7).half(),
        "b": torch.randn(9).bfloat16(),
        "i": torch.arange(5),
        "scalar": torch.tensor(1.0),
        "empty": torch.empty(0),
    }
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt", "step": "700"})
    settle(tmp_path / "model.safetensors")
    heard = audit(tmp_path, engine=engine)
    record = heard.record
    assert (record["format"], record["verdict"], record["step"]) == ("safetensors", "ok", 700)
    assert record["params"] == 90_000 + 7 + 9 + 1
    assert record["bytes_checked"] == record["bytes"]
    assert heard.rules() == {"CK028"}
    assert heard.of("CK028")["severity"] == "info"
    assert (record["crc_checked"], record["nan_optimizer"]) == (0, 0)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.complex64,
    ],
    ids=str,
)
def test_counts_are_torchs(tmp_path: Path, rng: Any, engine: str, dtype: torch.dtype) -> None:
    """The first tensor has an odd size, so that the second's numbers lie at odd places in the file."""
    raw = torch.frombuffer(bytearray(rng.randbytes(30_000 * dtype.itemsize)), dtype=torch.uint8).view(dtype)
    data = raw.view(torch.uint8).numpy().tobytes()
    code = {"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "bfloat16": "BF16", "complex64": "C64"}.get(
        str(dtype).removeprefix("torch."), f"F{8 * dtype.itemsize}"
    )
    header = {"odd": entry("U8", [3], 0, 3), "w": entry(code, [30_000], 3, 3 + len(data))}
    record = audit(write(tmp_path / "m.safetensors", build(header, b"abc" + data)), engine=engine).record
    assert (record["nan_weights"], record["inf_weights"]) == count_with_torch(raw)
    assert record["params"] == 30_000


def test_every_number_format_of_the_library_is_known(tmp_path: Path) -> None:
    header, at = {}, 0
    for code, bits in CODES.items():
        header[code] = entry(code, [8], at, at + bits)
        at += bits
    heard = check(tmp_path, build(header, bytes(at)))
    assert heard.record["verdict"] == "ok"
    assert heard.record["unchecked"] == []
    assert heard.rules(above_info=True) == set()


def test_an_unknown_number_format_is_named_and_not_skipped(tmp_path: Path) -> None:
    header = {"a": entry("F32", [1], 0, 4), "x": entry("F5_NEW", [8], 4, 9)}
    heard = check(tmp_path, build(header, bytes(9)))
    assert heard.record["verdict"] == "suspect"
    assert heard.rules(above_info=True) == {"CK126"}
    assert heard.record["unchecked"] == [
        {"tensor": "x", "dtype": "F5_NEW", "bytes": 5, "reason": "number format not known"}
    ]
    assert heard.record["bytes_checked"] == heard.record["bytes"] - 5


def test_truncation_tells_what_is_whole(tmp_path: Path) -> None:
    heard = check(tmp_path, build(GOOD, bytes(27)))
    assert heard.record["verdict"] == "bad"
    assert "1 of 2 tensors whole, first damaged: b" in heard.of("CK020")["message"]
    assert [each["tensor"] for each in heard.record["unchecked"]] == ["b"]


WRONG = {
    "no header length": (b"\x40\0\0", "CK020"),
    "header cut off": (build(GOOD)[:20], "CK020"),
    "trailing byte": (build(GOOD, bytes(29)), "CK025"),
    "header length 2^63": (build(GOOD, bytes(28), length=1 << 63), "CK025"),
    "not UTF-8": (build({}, bytes(28), raw=b'{"\xff": 1}'), "CK025"),
    "not JSON": (build({}, raw=b"{nope}"), "CK025"),
    "not an object": (build([1, 2]), "CK025"),
    "entry without dtype": (build({"a": {"shape": [1], "data_offsets": [0, 4]}}, bytes(4)), "CK025"),
    "overlap": (build({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}, bytes(12)), "CK025"),
    "hole": (build({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 8, 12)}, bytes(12)), "CK025"),
    "begin after end": (build({"a": entry("F32", [1], 4, 0)}, bytes(4)), "CK025"),
    "shape and bytes differ": (build({"a": entry("F32", [3], 0, 8)}, bytes(8)), "CK025"),
    "negative size": (build({"a": entry("F32", [-1], 0, 4)}, bytes(4)), "CK025"),
    "huge shape": (build({"a": entry("F32", [1 << 60, 1 << 60], 0, 4)}, bytes(4)), "CK025"),
    "huge number": (
        build({}, raw=b'{"a":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,4]}}'),
        "CK025",
    ),
    "float": (build({}, raw=b'{"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}}'), "CK025"),
    "infinite": (build({}, raw=b'{"a":{"dtype":"F32","shape":[Infinity],"data_offsets":[0,4]}}'), "CK025"),
    "deep": (build({}, raw=b"[" * 100_000), "CK025"),
    "many": (build({}, raw=b"[" + b"{}," * 1_000_000 + b"0]"), "CK103"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_bad(tmp_path: Path, name: str) -> None:
    data, rule = WRONG[name]
    heard = check(tmp_path, data)
    assert rule in heard.rules()
    assert heard.record["verdict"] == "bad"
    assert heard.summary["resume_from"] is None
    with pytest.raises(SafetensorError):
        load_file(tmp_path / "model.safetensors")


def test_a_name_given_twice_is_suspect(tmp_path: Path) -> None:
    """The reference reader takes the last without a word."""
    raw = json.dumps(GOOD)[:-1].encode() + b"," + json.dumps({"b": GOOD["b"]})[1:].encode()
    heard = check(tmp_path, build({}, bytes(28), raw=raw))
    load_file(tmp_path / "model.safetensors")
    assert heard.record["verdict"] == "suspect"
    assert "twice" in heard.of("CK025")["message"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_the_library_refuses_is_never_ok(tmp_path: Path, data: st.DataObject) -> None:
    """Bytes of a good file changed at random: no crash, and no ok for what the library calls broken."""
    good = bytearray(build(GOOD, bytes(28)))
    for _ in range(data.draw(st.integers(1, 3))):
        good[data.draw(st.integers(0, len(good) - 29))] = data.draw(st.integers(0, 255))
    heard = check(tmp_path, bytes(good))
    try:
        load_file(tmp_path / "model.safetensors")
    except SafetensorError:
        assert heard.record["verdict"] != "ok"
