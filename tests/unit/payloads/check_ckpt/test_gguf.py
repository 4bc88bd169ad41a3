"""GGUF: values of plain number formats, sizes of all others, and every way a header can be wrong."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.unit.payloads.check_ckpt.support import ENGINES, Heard, audit, write

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

F32, F16, Q4_0, Q6_K, I32, F64, BF16 = 0, 1, 2, 14, 26, 28, 30


def text(value: str) -> bytes:
    """Write a string."""
    return struct.pack("<Q", len(value.encode())) + value.encode()


def pair(key: str, kind: int, value: bytes) -> bytes:
    """Write a key and its value."""
    return text(key) + struct.pack("<I", kind) + value


PAIRS = (
    pair("general.architecture", 8, text("llama")),
    pair("llama.context_length", 4, struct.pack("<I", 2048)),
    pair("llama.rope.freq_base", 6, struct.pack("<f", 1e4)),
    pair("general.quantized", 7, b"\x01"),
    pair("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 3) + text("a") + text("bb") + text("")),
    pair("tokenizer.ggml.scores", 9, struct.pack("<IQ", 6, 3) + struct.pack("<fff", 1, 2, 3)),
    pair("some.id", 10, struct.pack("<Q", 1)),
)


def gguf(
    tensors: Sequence[tuple[str, Sequence[int], int, bytes]],
    *,
    pairs: Sequence[bytes] = PAIRS,
    version: int = 3,
    alignment: int = 32,
    **changes: Any,
) -> bytes:
    """Make a file of tensors given as name, dimensions (the fastest first), type and data."""
    infos, data = b"", b""
    for name, dimensions, kind, values in tensors:
        offset = changes.get("offsets", {}).get(name, len(data))
        infos += text(name) + struct.pack("<I", len(dimensions)) + struct.pack(f"<{len(dimensions)}Q", *dimensions)
        infos += struct.pack("<IQ", kind, offset)
        data += values + bytes(-len(values) % alignment)
    counts = changes.get("counts", (len(tensors), len(pairs)))
    head = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(pairs) + infos
    return head + bytes(-len(head) % alignment) + data


def floats(*values: float) -> bytes:
    """Write numbers of 32 bits."""
    return np.array(values, dtype="<f4").tobytes()


GOOD = (
    ("token_embd.weight", (2, 3), F32, floats(1, 2, 3, 4, 5, 6)),
    ("blk.0.ffn.weight", (64, 2), Q4_0, bytes(range(72))),
    ("output.weight", (8,), F16, np.ones(8, dtype="<f2").tobytes()),
)


def heard_of(tmp_path: Path, data: bytes, engine: str = "stdlib") -> Heard:
    """Audit bytes as a file."""
    return audit(write(tmp_path / "model.gguf", data), engine=engine)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [32, 64, 4096])
def test_a_sound_file_is_ok(tmp_path: Path, version: int, alignment: int) -> None:
    pairs = [*PAIRS, pair("general.alignment", 4, struct.pack("<I", alignment))]
    heard = heard_of(tmp_path, gguf(GOOD, version=version, alignment=alignment, pairs=pairs))
    record = heard.record
    assert (record["format"], record["verdict"], record["params"], record["tensors"]) == ("gguf", "ok", 14 + 128, 2)
    assert heard.rules() == {"CK028", "CK126"}
    assert record["unchecked"] == [
        {"tensor": "blk.0.ffn.weight", "dtype": "Q4_0", "bytes": 72, "reason": "quantised blocks"}
    ]
    assert record["bytes_checked"] == record["bytes"] - 72


@pytest.mark.parametrize("engine", ENGINES)
def test_numbers_are_counted_and_shapes_are_turned_around(tmp_path: Path, engine: str) -> None:
    nan, inf = float("nan"), float("inf")
    heard = heard_of(
        tmp_path,
        gguf(
            [
                ("a", (2, 3), F32, floats(1, nan, 3, -inf, 5, 6)),
                ("b", (3,), F16, np.array([1, inf, nan], dtype="<f2").tobytes()),
                ("c", (2,), BF16, b"\x80\x7f\x80\x3f"),
                ("d", (2,), F64, np.array([nan, 1], dtype="<f8").tobytes()),
                ("e", (2,), I32, b"\xff" * 8),
            ]
        ),
        engine=engine,
    )
    assert (heard.record["nan_weights"], heard.record["inf_weights"]) == (3, 3)
    shapes = {each["data"]["tensor"]: each["data"]["shape"] for each in heard.findings if each["rule"] == "CK001"}
    assert shapes == {"a": [3, 2], "b": [3], "c": [2], "d": [2]}


def test_a_header_whose_count_looks_like_json_is_read(tmp_path: Path) -> None:
    """123 tensors put a brace where that of safetensors stands."""
    heard = heard_of(tmp_path, gguf([(f"t{index}", (1,), F32, floats(1)) for index in range(ord("{"))]))
    assert (heard.record["format"], heard.record["params"]) == ("gguf", 123)


@pytest.mark.parametrize("cut", [5, 20, 100, 0.5, 2 / 3, -33])
def test_a_truncated_file_tells_what_is_left(tmp_path: Path, cut: float) -> None:
    data = gguf([(f"t{index}", (16,), F32, floats(*range(16))) for index in range(10)])
    size = int(len(data) * cut) if isinstance(cut, float) else cut % len(data)
    heard = heard_of(tmp_path, data[:size])
    assert heard.record["verdict"] == "bad"
    assert "cut off" in heard.of("CK020")["message"]
    begin = len(data) - 640
    if size > begin:
        whole = (size - begin) // 64
        assert f"{whole} of 10 tensors whole, first damaged: t{whole}" in heard.of("CK020")["message"]


def test_missing_padding_at_the_end_is_no_damage(tmp_path: Path) -> None:
    heard = heard_of(tmp_path, gguf([("a", (1,), F32, floats(1))])[:-28])
    assert heard.record["verdict"] == "ok"


def test_bytes_behind_the_end_are_tolerated(tmp_path: Path) -> None:
    heard = heard_of(tmp_path, gguf(GOOD) + bytes(100))
    assert heard.record["verdict"] == "ok"
    assert heard.of("CK025")["severity"] == "info"


def test_a_type_that_is_not_known_is_suspect(tmp_path: Path) -> None:
    heard = heard_of(tmp_path, gguf([("new", (8,), 99, bytes(50)), ("a", (1,), F32, floats(1))]))
    record = heard.record
    assert (record["verdict"], record["params"]) == ("suspect", 1)
    assert record["unchecked"][0]["bytes"] == 64


WRONG = {
    "overlap": (gguf(GOOD, offsets={"blk.0.ffn.weight": 0}), "CK025"),
    "hole": (gguf(GOOD, offsets={"output.weight": 4096}), "CK025"),
    "unaligned": (gguf(GOOD, offsets={"output.weight": 129}), "CK025"),
    "beyond": (gguf(GOOD, offsets={"output.weight": 1 << 40}), "CK020"),
    "offset": (gguf(GOOD, offsets={"output.weight": (1 << 64) - 32}), "CK025"),
    "rows": (gguf([("a", (33, 2), Q4_0, bytes(36))]), "CK025"),
    "twice": (gguf([GOOD[0], GOOD[0]]), "CK025"),
    "dimensions": (gguf([("a", (1,) * 5, F32, floats(1))]), "CK025"),
    "elements": (gguf([("a", (1 << 62, 1 << 62), F32, floats(1))]), "CK025"),
    "value": (gguf([], pairs=[pair("a", 13, b"")]), "CK025"),
    "nested": (gguf([], pairs=[pair("a", 9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ", 0, 0))]), "CK025"),
    "array": (gguf([], pairs=[pair("a", 9, struct.pack("<IQ", 4, 1 << 60))]), "CK020"),
    "strings": (gguf([], pairs=[pair("a", 9, struct.pack("<IQ", 8, 1 << 60))]), "CK025"),
    "string": (gguf([], pairs=[pair("a", 8, struct.pack("<Q", 1 << 63))]), "CK020"),
    "name": (gguf([], pairs=[struct.pack("<Q", 1 << 40)]), "CK025"),
    "alignment": (gguf(GOOD, pairs=[pair("general.alignment", 4, struct.pack("<I", 0))]), "CK025"),
    "odd alignment": (gguf(GOOD, pairs=[pair("general.alignment", 4, struct.pack("<I", 48))]), "CK025"),
    "tensor count": (gguf([], counts=(1 << 40, 0)), "CK025"),
    "pair count": (gguf([], counts=(0, 1 << 63)), "CK025"),
    "claims": (gguf(GOOD, counts=(300, 7)), "CK025"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_bad(tmp_path: Path, name: str) -> None:
    data, rule = WRONG[name]
    heard = heard_of(tmp_path, data)
    assert heard.record["verdict"] == "bad"
    assert rule in heard.rules()
    assert "audit itself" not in str(heard.findings)


@pytest.mark.parametrize(("version", "words"), [(1, "version 1"), (4, "version 4"), (0x03000000, "big-endian")])
def test_versions_that_can_not_be_read_are_said(tmp_path: Path, version: int, words: str) -> None:
    heard = heard_of(tmp_path, gguf(GOOD, version=version))
    assert heard.record["verdict"] == "unsupported"
    assert words in heard.of("CK128")["message"]


def test_a_file_without_tensors_is_not_ok(tmp_path: Path) -> None:
    heard = heard_of(tmp_path, gguf([], pairs=[each for each in PAIRS if b"tokens" not in each]))
    assert heard.record["verdict"] == "unsupported"
    assert "no tensor found" in heard.of("CK009")["message"]


def test_a_vocabulary_is_no_model_that_lost_its_tensors(tmp_path: Path) -> None:
    """As llama.cpp has them for its tests; some took one for a model (ggml-org/llama.cpp#3917)."""
    padded = gguf([])
    for data in (padded, padded.rstrip(b"\0") + bytes(8)):
        heard = heard_of(tmp_path, data)
        assert (heard.record["verdict"], heard.record["format"]) == ("unsupported", "gguf-vocabulary")
        assert "no tensor by design" in heard.of("CK009")["message"]
        assert heard.of("CK009")["severity"] == "suspect"
    none = [pair("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 0))]
    for data in (padded + bytes(32), padded + GOOD[0][3], gguf([], pairs=none)):
        heard = heard_of(tmp_path, data)
        assert (heard.record["verdict"], heard.record["format"]) == ("unsupported", "gguf")
        assert "no tensor found" in heard.of("CK009")["message"]


def test_a_vocabulary_beside_models_goes_with_them(tmp_path: Path) -> None:
    write(tmp_path / "ggml-vocab-llama.gguf", gguf([]))
    heard = audit(tmp_path)
    assert heard.records == []
    assert heard.nothing_judged.endswith("nothing but what goes with checkpoints: ggml-vocab-llama.gguf")
    write(tmp_path / "model.gguf", gguf(GOOD))
    for _ in range(2):
        heard = audit(tmp_path)
        assert (heard.record["name"], heard.record["verdict"]) == ("model.gguf", "ok")
        assert (heard.summary["companions"], heard.nothing_judged) == (["ggml-vocab-llama.gguf"], "")
    write(tmp_path / "ggml-vocab-llama.gguf", gguf([])[:100])
    assert audit(tmp_path).record_of("ggml-vocab-llama.gguf")["verdict"] == "bad"
