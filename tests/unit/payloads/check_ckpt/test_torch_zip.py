"""Torch files, made by the real torch: sound ones in every shape, and damaged ones."""

from __future__ import annotations

import argparse
import collections
import datetime
import pathlib
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.payloads.check_ckpt.support import (
    ENGINES,
    audit,
    count_with_torch,
    network,
    overwrite,
    place_of,
    save,
    settle,
    training_state,
    write,
)

if TYPE_CHECKING:
    import random
    from pathlib import Path

pytestmark = pytest.mark.torch

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
BYTES = [
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]
COMPLEX = [torch.complex64, torch.complex128]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.bool]


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# --- sound files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_a_training_checkpoint_is_ok(tmp_path: Path, engine: str) -> None:
    path = save(training_state(), tmp_path / "step_2000" / "checkpoint.pt")
    heard = audit(tmp_path, engine=engine)
    record = heard.record
    size = path.stat().st_size
    assert record == {
        "kind": "checkpoint",
        "name": "step_2000",
        "path": str(path),
        "files": ["checkpoint.pt"],
        "format": "torch-zip",
        "step": 2000,
        "epoch": 1,
        "params": 4 * (64 * 64 + 64),
        "nan_weights": 0,
        "inf_weights": 0,
        "nan_optimizer": 0,
        "inf_optimizer": 0,
        "verdict": "ok",
        "findings": [],
        "bytes": size,
        "bytes_checked": size,
        "unchecked": [],
        "tensors": 8 + 8 * 3,
        "crc_checked": 8 + 8 * 3 + 6,
        "mtime": "2023-11-14T22:13:20Z",
        "seconds": record["seconds"],
        "engine": engine,
        "crc": record["crc"],
        "weight_norm": pytest.approx(_norm(torch.load(path)["model_state_dict"]), rel=1e-5),
    }
    assert heard.findings == []
    assert heard.summary["resume_from"] == "step_2000"


def _norm(weights: dict[str, torch.Tensor]) -> float:
    return float(torch.cat([each.flatten() for each in weights.values()]).double().norm())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", [*FLOATS, *BYTES, *COMPLEX], ids=name_of)
def test_non_finite_numbers_are_counted_exactly(
    tmp_path: Path, rng: random.Random, engine: str, dtype: torch.dtype
) -> None:
    """All bits at random: in small formats every pattern turns up."""
    raw = torch.frombuffer(bytearray(rng.randbytes(40_000 * dtype.itemsize)), dtype=torch.uint8).view(dtype)
    clean = torch.ones(300_000 // dtype.itemsize).to(dtype)
    last = clean.clone()
    last.view(torch.uint8)[-dtype.itemsize :] = 0x80 if "fnuz" in name_of(dtype) else 0xFF
    model = {"random": raw, "clean": clean, "last": last, "one": raw[:1].clone()}
    optimizer = {"state": {0: {"exp_avg": raw.flip(0) if dtype not in BYTES else raw, "exp_avg_sq": clean.clone()}}}
    save({"model": model, "optimizer": optimizer | {"param_groups": []}}, tmp_path / "c.pt")
    heard = audit(tmp_path, engine=engine)
    record = heard.record
    assert (record["nan_weights"], record["inf_weights"]) == count_with_torch(model)
    assert (record["nan_optimizer"], record["inf_optimizer"]) == count_with_torch(optimizer)
    assert record["params"] == sum(tensor.numel() for tensor in model.values())
    assert record["verdict"] == "bad"
    assert heard.rules() >= {"CK001", "CK003"}
    named = {each["data"]["tensor"]: each["evidence"] for each in heard.findings if each["rule"] == "CK001"}
    assert named["model.last"]["nan"] + named["model.last"]["inf"] == 1
    assert "model.clean" not in named


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("count", [1, 2, 65_535, 65_536, 65_537, 1_000_000, 5_000_001])
def test_the_very_last_element_is_seen(tmp_path: Path, engine: str, count: int) -> None:
    """Wherever the chunks end."""
    weight = torch.zeros(count)
    weight[-1] = float("-inf")
    save({"model": {"before": torch.zeros(3), "w": weight, "after": torch.zeros(5)}}, tmp_path / "c.pt")
    heard = audit(tmp_path, engine=engine)
    assert (heard.record["nan_weights"], heard.record["inf_weights"]) == (0, 1)
    found = heard.of("CK001")
    assert found["data"]["tensor"] == "model.w"
    assert found["evidence"] == {"nan": 0, "inf": 1, "negative_inf": 1, "elements": count}
    offset, size = place_of(tmp_path / "c.pt", "data/1")
    assert found["data"]["range"] == [offset, offset + size]
    assert found["data"]["first_byte"] == offset + size - 4


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("workers", [1, 3])
def test_large_storages_are_joined_from_parts(tmp_path: Path, engine: str, workers: int) -> None:
    """More than one task of 16 MiB: counts add up, and the CRC-32 of the parts is that of the whole."""
    weight = torch.zeros(10_000_000)
    weight[::999_983] = float("nan")
    path = save({"model": {"w": weight, "b": torch.ones(7)}}, tmp_path / "c.pt")
    heard = audit(tmp_path, engine=engine, workers=workers)
    assert heard.record["nan_weights"] == 11
    assert heard.rules(above_info=True) == {"CK001"}
    offset, _ = place_of(path, "data/0")
    overwrite(path, offset + 30_000_000, b"\x01")
    assert audit(tmp_path, engine=engine, workers=workers).rules() >= {"CK001", "CK022"}


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_views_and_ties_count_each_stored_element_once(
    tmp_path_factory: pytest.TempPathFactory, engine: str, data: st.DataObject
) -> None:
    base = torch.arange(600, dtype=torch.float32).reshape(20, 30).clone()
    for _ in range(data.draw(st.integers(0, 5))):
        base.view(-1)[data.draw(st.integers(0, 599))] = data.draw(st.sampled_from([float("nan"), float("inf")]))
    sliced = base[data.draw(st.integers(0, 9)) :, :: data.draw(st.integers(1, 3))]
    views = {
        "sliced": sliced,
        "transposed": sliced.t(),
        "row": base[3],
        "expanded": base[4:5].expand(7, 30),
        "tied": sliced,
        "other": torch.zeros(4),
    }
    chosen = {name: views[name] for name in views if data.draw(st.booleans())} or {"row": base[3]}
    folder = tmp_path_factory.mktemp("views")
    save({"state_dict": chosen}, folder / "c.pt")
    record = audit(folder, engine=engine).record
    seen = {(view.data_ptr() + 4 * int(at)): float(value) for view in chosen.values() for at, value in _elements(view)}
    assert record["params"] == len(seen)
    assert record["nan_weights"] == sum(value != value for value in seen.values())
    assert record["inf_weights"] == sum(value == float("inf") for value in seen.values())
    listed = sum(view.numel() for view in chosen.values())
    assert record.get("params_listed", record["params"]) == listed


def _elements(view: torch.Tensor) -> list[tuple[int, float]]:
    """Pair each element of a view with its offset from the view's first."""
    places = torch.zeros(view.shape, dtype=torch.int64)
    for dimension, (size, step) in enumerate(zip(view.shape, view.stride(), strict=True)):
        shape = [1] * view.dim()
        shape[dimension] = size
        places = places + (torch.arange(size) * step).reshape(shape)
    return list(zip(places.flatten().tolist(), view.flatten().tolist(), strict=True))


def test_numbers_outside_a_view_are_not_weights(tmp_path: Path) -> None:
    """A slice drags its whole storage into the file; what it does not show is nobody's weight."""
    base = torch.full((1000,), float("nan"))
    base[10:20] = 1.0
    save({"model": {"w": base[10:20]}}, tmp_path / "c.pt")
    record = audit(tmp_path).record
    assert (record["params"], record["nan_weights"], record["verdict"]) == (10, 0, "ok")


def test_every_kind_of_tensor_is_read_or_named(tmp_path: Path) -> None:
    model = {
        "scalar": torch.tensor(1.5),
        "empty": torch.empty(0, 3),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "sparse": torch.eye(4).to_sparse(),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "conjugate": torch.ones(2, dtype=torch.complex64).conj(),
        **{name_of(dtype): torch.zeros(3).to(dtype) for dtype in INTEGERS},
        "float4": torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
        "quantised": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    }
    save({"model": model}, tmp_path / "c.pt")
    heard = audit(tmp_path)
    record = heard.record
    assert record["verdict"] == "ok"
    assert heard.rules() == {"CK126"}
    assert [(each["tensor"], each["dtype"]) for each in record["unchecked"]] == [("model.quantised", "qint8")]
    assert record["bytes_checked"] == record["bytes"] - 3
    assert record["params"] == 1 + 2 + 4 + 5 + 2 + 4


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_pickle_protocol_is_read(tmp_path: Path, protocol: int) -> None:
    state = training_state()
    state["model_state_dict"]["0.weight"][1, 1] = float("nan")
    save(state, tmp_path / "c.pt", pickle_protocol=protocol)
    record = audit(tmp_path).record
    assert (record["nan_weights"], record["step"], record["tensors"]) == (1, 2000, 32)


def test_whole_modules_and_objects_are_read(tmp_path: Path) -> None:
    model, optimizer = network()
    with torch.no_grad():
        model[2].bias[0] = float("inf")  # type: ignore[index]
    save({"net_object": model, "adam": optimizer, "step": np.int64(7)}, tmp_path / "c.pt")
    heard = audit(tmp_path)
    record = heard.record
    assert (record["params"], record["inf_weights"], record["step"]) == (4 * (64 * 64 + 64), 1, 7)
    assert record["nan_optimizer"] == 0
    assert heard.of("CK001")["data"]["tensor"] == "net_object.2.bias"
    assert heard.of("CK120")["severity"] == "info"


def test_what_needs_weights_only_false_is_told_and_audited(tmp_path: Path) -> None:
    """Refused by torch's safe loader, and in honest checkpoints all the time."""
    extra: dict[str, Any] = {
        "args": argparse.Namespace(lr=0.1, steps=99),
        "best": np.float64(0.5),
        "rng": {"numpy": np.random.RandomState(1).get_state(), "torch": torch.get_rng_state()},
        "path": pathlib.PurePosixPath("/data"),
        "when": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
        "history": collections.deque([1, 2]),
        "counts": collections.defaultdict(int, a=1),
    }
    path = save(training_state(**extra), tmp_path / "c.pt")
    heard = audit(tmp_path)
    assert heard.record["verdict"] == "ok"
    assert heard.rules() == {"CK120"}
    assert heard.record["params"] == 4 * (64 * 64 + 64)
    with pytest.raises(Exception, match="Weights only load failed"):
        torch.load(path, weights_only=True)


@pytest.mark.parametrize("protocol", [2, 4])
def test_numpy_arrays_inside_are_counted(tmp_path: Path, protocol: int) -> None:
    array = np.ones(1000, dtype=np.float32)
    array[7] = np.nan
    save({"model": {"w": torch.ones(3)}, "table": array}, tmp_path / "c.pt", pickle_protocol=protocol)
    heard = audit(tmp_path)
    assert heard.of("CK012")["evidence"]["nan"] == 1
    assert heard.record["unchecked"] == []


def test_a_large_file_with_many_tensors_is_named_once_each(tmp_path: Path) -> None:
    save({"model": {f"w{index}": torch.full((2,), float("nan")) for index in range(100)}}, tmp_path / "c.pt")
    heard = audit(tmp_path)
    assert heard.record["nan_weights"] == 200
    assert len(heard.findings) == 21
    assert heard.findings[-1]["data"]["more"] == 80
    assert heard.findings[-1]["evidence"]["nan"] == 160
    assert audit(tmp_path, rules={"ignore": ["CK001"]}).record["ignored"] == {"CK001": 100}


@pytest.mark.parametrize("name", ["c.pt", "c.jit"])
def test_torchscript_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        torch.jit.save(torch.jit.script(torch.nn.Linear(3, 3)), str(path))
    settle(path)
    heard = audit(tmp_path)
    record = heard.record
    assert (record["format"], record["verdict"], record["params"]) == ("torchscript", "ok", 12)
    assert heard.rules() == set(), "the pickles beside its sources are its own"


# --- roles ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensor", "rule", "severity", "verdict"),
    [
        ({"model": {"attn.causal_mask": torch.tensor([0.0, float("-inf")])}}, "CK002", "info", "ok"),
        ({"model": {"attn.causal_mask": torch.tensor([0.0, float("nan")])}}, "CK001", "bad", "bad"),
        ({"model": {"attn.weight": torch.tensor([0.0, float("-inf")])}}, "CK001", "bad", "bad"),
        ({"model": {"w": torch.ones(2)}, "best_loss": torch.tensor(float("inf"))}, "CK012", "info", "ok"),
        ({"model": {"w": torch.ones(2)}, "buffer": torch.full((99,), float("nan"))}, "CK012", "suspect", "suspect"),
        ({"model": {"w": torch.ones(2)}, "ema": {"w": torch.tensor(float("nan"))}}, "CK001", "bad", "bad"),
    ],
)
def test_the_same_number_means_different_things(
    tmp_path: Path, tensor: object, rule: str, severity: str, verdict: str
) -> None:
    save(tensor, tmp_path / "c.pt")
    heard = audit(tmp_path)
    found = [(each["rule"], each["severity"]) for each in heard.findings if each["rule"] in {"CK001", "CK002", "CK012"}]
    assert found == [(rule, severity)]
    assert heard.record["verdict"] == verdict


# --- damage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("record", ["data/0", "data/2", "data.pkl", "version"])
def test_one_changed_bit_is_a_wrong_checksum(tmp_path: Path, engine: str, record: str) -> None:
    path = save(training_state(), tmp_path / "c.pt")
    offset, _ = place_of(path, record)
    byte = path.read_bytes()[offset]
    overwrite(path, offset, bytes([byte ^ 1]))
    heard = audit(tmp_path, engine=engine)
    assert "CK022" in heard.rules()
    assert heard.record["verdict"] == "bad"
    found = heard.of("CK022")
    assert found["data"]["range"] == [offset, offset + place_of(path, record)[1]]
    assert found["evidence"]["crc32"] != found["evidence"]["saved_crc32"]
    if record == "data/2":
        assert "model_state_dict.1.weight" in found["message"]


def test_a_torn_snapshot_fails_its_checksum(tmp_path: Path) -> None:
    """Bytes half of one step and half of the next, with the CRC-32 of the first: no NaN, nothing a loader would see."""
    path, later = save(training_state(0), tmp_path / "c.pt"), save(training_state(1), tmp_path / "other" / "c.pt")
    offset, size = place_of(path, "data/0")
    overwrite(path, offset + size // 2, later.read_bytes()[offset + size // 2 : offset + size])
    torch.load(path, weights_only=True)
    heard = audit(path)
    assert heard.rules() >= {"CK022", "CK041"}
    assert heard.record["nan_weights"] == 0
    assert "while being modified" in heard.of("CK022")["message"]


def test_two_writers_on_one_path(tmp_path: Path) -> None:
    path, other = save(training_state(0), tmp_path / "c.pt"), save(training_state(1), tmp_path / "o" / "c.pt")
    low, high = path.stat().st_size * 2 // 5, path.stat().st_size * 3 // 5
    overwrite(path, low, other.read_bytes()[low:high])
    heard = audit(path)
    assert len([each for each in heard.findings if each["rule"] == "CK022"]) > 1
    assert heard.record["verdict"] == "bad"


@pytest.mark.parametrize("cut", [10, 700, 0.3, 0.5, 2 / 3, 0.9, -400, -22, -1])
def test_a_truncated_file_tells_what_is_left(tmp_path: Path, cut: float) -> None:
    whole = save(training_state(), tmp_path / "whole" / "c.pt").read_bytes()
    size = int(len(whole) * cut) if isinstance(cut, float) else cut % len(whole)
    path = write(tmp_path / "c.pt", whole[:size])
    heard = audit(path)
    record = heard.record
    assert record["verdict"] == "bad"
    assert record["bytes"] == size
    message = heard.of("CK020")["message"]
    ends = [sum(place_of(tmp_path / "whole" / "c.pt", f"data/{index}")) + 16 for index in range(32)]
    intact = sum(end <= size for end in ends)
    if cut in {10, 700}:
        assert "the map of its tensors (data.pkl) is not whole" in message
        assert record["params"] is None
    else:
        assert f"{intact} of 32 storages intact" in message
        assert record["step"] == 2000
        assert record["tensors"] == intact
        assert heard.of("CK020")["data"]["intact"] == intact
    if cut == 0.5:
        assert f"first damaged: archive/data/{intact}" in message.replace("c/data", "archive/data")
        assert 0 < record["bytes_checked"] < size


def test_non_finite_numbers_in_the_front_of_a_truncated_file_are_told(tmp_path: Path) -> None:
    state = training_state()
    state["model_state_dict"]["0.weight"][0, 0] = float("nan")
    data = save(state, tmp_path / "c.pt").read_bytes()
    write(tmp_path / "c.pt", data[: len(data) // 2])
    heard = audit(tmp_path)
    assert heard.rules() == {"CK001", "CK020"}
    assert heard.record["nan_weights"] == 1


def test_a_file_whose_end_is_zero_is_truncated(tmp_path: Path) -> None:
    data = save(training_state(), tmp_path / "c.pt").read_bytes()
    kept = len(data[: len(data) * 3 // 5].rstrip(b"\0"))
    write(tmp_path / "c.pt", data[:kept] + bytes(len(data) - kept))
    heard = audit(tmp_path)
    assert heard.record["verdict"] == "bad"
    assert f"its last {len(data) - kept:,} bytes are zero" in heard.of("CK020")["message"]


def test_a_damaged_directory_does_not_hide_what_is_intact(tmp_path: Path) -> None:
    state = training_state()
    state["model_state_dict"]["0.bias"][5] = float("inf")
    path = save(state, tmp_path / "c.pt")
    at = path.read_bytes().rfind(b"PK\x01\x02")
    overwrite(path, at, b"XX")
    heard = audit(tmp_path)
    assert "damaged at its entry number" in heard.of("CK025")["message"]
    assert "32 of 32 storages intact" in heard.of("CK025")["message"]
    assert (heard.record["inf_weights"], heard.record["verdict"], heard.record["tensors"]) == (1, "bad", 32)


def test_zeros_behind_the_end_are_tolerated(tmp_path: Path) -> None:
    """torch does so, too."""
    path = save(training_state(), tmp_path / "c.pt")
    write(path, path.read_bytes() + bytes(100))
    torch.load(path, weights_only=True)
    heard = audit(tmp_path)
    assert heard.record["verdict"] == "ok"
    assert heard.of("CK025")["severity"] == "info"


def test_a_zeroed_page_fails_its_checksum(tmp_path: Path) -> None:
    path = save(training_state(), tmp_path / "c.pt")
    offset, _ = place_of(path, "data/2")
    overwrite(path, offset, bytes(4096))
    torch.load(path, weights_only=True)
    assert "CK022" in audit(tmp_path).rules()


def test_a_damaged_front_does_not_hide_the_rest(tmp_path: Path) -> None:
    path = save(training_state(), tmp_path / "c.pt")
    overwrite(path, 0, bytes(64))
    heard = audit(tmp_path)
    assert heard.record["verdict"] == "bad"
    assert heard.record["format"] == "torch-zip"
    assert "CK025" in heard.rules()


@pytest.mark.parametrize("data", [b"", bytes(4096), bytes(3_000_000)])
def test_empty_and_zero_files(tmp_path: Path, data: bytes) -> None:
    write(tmp_path / "c.pt", data)
    heard = audit(tmp_path)
    assert heard.rules() == {"CK021"}
    assert heard.record["verdict"] == "bad"


def test_placeholders_are_told_from_missing_checksums(tmp_path: Path) -> None:
    with torch.serialization.skip_data():
        save(training_state(), tmp_path / "skipped" / "c.pt")
    heard = audit(tmp_path / "skipped")
    assert heard.rules() == {"CK027"}
    assert heard.record["verdict"] == "bad"
    config = torch.utils.serialization.config.save
    config.compute_crc32 = False
    try:
        save(training_state(), tmp_path / "unsummed" / "c.pt")
    finally:
        config.compute_crc32 = True
    heard = audit(tmp_path / "unsummed")
    assert heard.rules() == {"CK028"}
    assert heard.record["verdict"] == "ok"
    assert heard.record["crc_checked"] == 0


def test_a_missing_record_is_malformed(tmp_path: Path) -> None:
    path = save(training_state(), tmp_path / "c.pt")
    with zipfile.ZipFile(path) as archive:
        kept = {
            info.filename: archive.read(info) for info in archive.infolist() if not info.filename.endswith("data/5")
        }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in kept.items():
            archive.writestr(name, data)
    settle(path)
    heard = audit(tmp_path)
    assert heard.record["verdict"] == "bad"
    assert "data/5 is missing" in heard.of("CK025")["message"]


def test_tensors_without_data_are_suspect(tmp_path: Path) -> None:
    save({"model": {"w": torch.empty(5, device="meta")}}, tmp_path / "meta" / "c.pt")
    heard = audit(tmp_path / "meta")
    assert heard.rules() == {"CK009"}
    assert heard.record["verdict"] == "unsupported"
    save({"module": {"w": torch.empty(0), "b": torch.empty(0)}}, tmp_path / "zero3" / "c.pt")
    assert "ZeRO-3" in audit(tmp_path / "zero3").of("CK009")["message"]
    save({"step": 5}, tmp_path / "none" / "c.pt")
    heard = audit(tmp_path / "none")
    assert "no tensor" in heard.of("CK009")["message"]
    assert (heard.record["verdict"], heard.record["step"]) == ("unsupported", 5)


def test_storage_alignment_of_a_page_is_read(tmp_path: Path) -> None:
    config = torch.utils.serialization.config.save
    before = config.storage_alignment
    config.storage_alignment = 4096
    try:
        save(training_state(), tmp_path / "c.pt")
    finally:
        config.storage_alignment = before
    assert audit(tmp_path).record["verdict"] == "ok"
