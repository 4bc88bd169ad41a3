"""torch's format from before 1.6, and plain pickles: values and all, as torch and pickle themselves write them."""

from __future__ import annotations

import io
import pickle
import pickletools
import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from tests.unit.payloads.check_ckpt.support import (
    ENGINES,
    Heard,
    audit,
    count_with_torch,
    network,
    save,
    settle,
    training_state,
    write,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


def legacy(value: object, path: Path) -> Path:
    """Save as torch did before 1.6."""
    return save(value, path, _use_new_zipfile_serialization=False)


def poisoned() -> dict[str, object]:
    """Return a training state with known damage."""
    state = training_state()
    state["model_state_dict"]["0.weight"][1, 1] = float("nan")
    state["model_state_dict"]["3.bias"][-1] = float("-inf")
    state["optimizer_state_dict"]["state"][2]["exp_avg"][0] = float("inf")
    return state


def storages_at(data: bytes) -> int:
    """Return where the storages begin: behind five pickles."""
    file = io.BytesIO(data)
    for _ in range(5):
        list(pickletools.genops(file))
    return file.tell()


# --- torch's old format ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_values_are_counted(tmp_path: Path, engine: str) -> None:
    state = poisoned()
    path = legacy(state, tmp_path / "c.pt")
    heard = audit(path, engine=engine)
    record = heard.record
    assert record["format"] == "torch-legacy"
    assert (record["nan_weights"], record["inf_weights"]) == count_with_torch(state["model_state_dict"])
    assert (record["nan_optimizer"], record["inf_optimizer"]) == count_with_torch(state["optimizer_state_dict"])
    assert (record["params"], record["tensors"]) == (4 * (64 * 64 + 64), 32)
    assert (record["step"], record["epoch"]) == (2000, 1)
    assert record["bytes_checked"] == record["bytes"]
    assert heard.rules() == {"CK001", "CK003", "CK028", "CK124"}


def test_a_sound_one_is_ok(tmp_path: Path) -> None:
    legacy(training_state(), tmp_path / "step_2000" / "c.pt")
    heard = audit(tmp_path)
    assert heard.record["verdict"] == "ok"
    assert heard.rules() == {"CK028", "CK124"}
    assert heard.summary["resume_from"] == "step_2000"


def test_every_number_format_is_read_or_named(tmp_path: Path) -> None:
    value = {
        "fp8": torch.ones(4).to(torch.float8_e4m3fn),
        "half": torch.ones(5).half(),
        "bf16": torch.ones(6).bfloat16(),
        "complex": torch.ones(2, dtype=torch.complex64),
        "ints": torch.arange(3),
        "slice": torch.arange(100, dtype=torch.float32)[10:20],
        "quantised": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    }
    legacy(value, tmp_path / "c.pt")
    record = audit(tmp_path).record
    assert (record["verdict"], record["params"]) == ("ok", 4 + 5 + 6 + 2 + 10)
    assert [(each["tensor"], each["dtype"]) for each in record["unchecked"]] == [("quantised", "qint8")]


def test_whole_modules_are_read(tmp_path: Path) -> None:
    """The first mention of a class stands in a persistent id there, with its source."""
    model, _ = network()
    with torch.no_grad():
        model[2].bias[0] = float("inf")  # type: ignore[index]
    legacy({"net": model}, tmp_path / "c.pt")
    heard = audit(tmp_path)
    assert (heard.record["params"], heard.record["inf_weights"]) == (4 * (64 * 64 + 64), 1)
    assert heard.of("CK001")["data"]["tensor"] == "net.2.bias"


def test_storages_that_are_parts_of_others_are_read(tmp_path: Path) -> None:
    """Early versions named a storage, and a part of it by where it begins; today's torch still loads them."""
    root = torch.arange(10, dtype=torch.float32)
    root[7] = float("nan")
    path = legacy({"w": root}, tmp_path / "c.pt")
    data = path.read_bytes()
    key = str(root.untyped_storage()._cdata).encode()
    whole, part = b"K\nNt", b"K\nX\x01\x00\x00\x00vK\x05K\x05\x87t"
    assert data.count(whole) == 1
    data = data.replace(whole, part).replace(b"K\x00K\n\x85", b"K\x00K\x05\x85")
    write(path, data)
    assert key in data
    assert torch.load(path, weights_only=False)["w"].tolist()[:2] == [5.0, 6.0]
    record = audit(path).record
    assert (record["params"], record["nan_weights"]) == (5, 1)


@pytest.mark.parametrize("cut", [10, 40, 0.2, 0.5, 2 / 3, -1, -22])
def test_a_truncated_one_tells_what_is_left(tmp_path: Path, cut: float) -> None:
    data = legacy(training_state(), tmp_path / "whole.pt").read_bytes()
    size = int(len(data) * cut) if isinstance(cut, float) else cut % len(data)
    path = write(tmp_path / "cut" / "c.pt", data[:size])
    heard = audit(path)
    record = heard.record
    assert (record["verdict"], record["params"]) == ("bad", None)
    assert "CK020" in heard.rules()
    if size < storages_at(data):
        assert "cut off" in heard.of("CK020")["message"]
        return
    at, intact = storages_at(data), 0
    while at < size:
        (count,) = struct.unpack_from("<q", data, at)
        at += 8 + 4 * count
        intact += at <= size
    assert f"{intact} of 32 storages intact, first damaged: storage" in heard.of("CK020")["message"]
    assert record["tensors"] == intact
    assert record["step"] == 2000
    assert 0 < record["bytes_checked"] < size


@pytest.mark.parametrize("rest", [b"\0" * 100, b"more"])
def test_bytes_behind_the_end_are_tolerated(tmp_path: Path, rest: bytes) -> None:
    path = legacy(training_state(), tmp_path / "c.pt")
    write(path, path.read_bytes() + rest)
    torch.load(path, weights_only=False)
    heard = audit(path)
    assert heard.record["verdict"] == "ok"
    assert heard.of("CK025")["severity"] == "info"


def test_an_end_of_zeros_is_told(tmp_path: Path) -> None:
    data = legacy(training_state(), tmp_path / "c.pt").read_bytes()
    kept = len(data[: len(data) * 3 // 5].rstrip(b"\0"))
    heard = audit(write(tmp_path / "c.pt", data[:kept] + bytes(len(data) - kept)))
    assert heard.record["verdict"] == "bad"
    assert heard.rules(above_info=True) == {"CK020", "CK023"}
    assert "are zero" in heard.of("CK020")["message"]
    assert heard.of("CK023")["data"]["range"] == [kept, len(data)]


def test_a_count_that_differs_from_the_pickle_is_malformed(tmp_path: Path) -> None:
    path = legacy({"w": torch.ones(1000)}, tmp_path / "c.pt")
    data = bytearray(path.read_bytes())
    struct.pack_into("<q", data, storages_at(bytes(data)), 1001)
    heard = audit(write(path, bytes(data)))
    assert heard.record["verdict"] == "bad"
    assert "1001 in front of it, and 1000 in the pickle" in heard.of("CK025")["message"]


def test_a_list_that_names_another_storage_is_malformed(tmp_path: Path) -> None:
    tensor = torch.ones(10)
    path = legacy({"w": tensor}, tmp_path / "c.pt")
    data = path.read_bytes()
    key = str(tensor.untyped_storage()._cdata).encode()
    at = data.rfind(key)
    heard = audit(write(path, data[:at] + b"9" * len(key) + data[at + len(key) :]))
    assert heard.record["verdict"] == "bad"
    assert "nothing says how long storage 999" in heard.of("CK025")["message"]


def test_the_byte_order_of_the_machine_changes_nothing(tmp_path: Path) -> None:
    """torch turns the bytes around when it writes this format on a big-endian machine."""
    path = legacy({"w": torch.tensor([1.0, float("nan")])}, tmp_path / "c.pt")
    data = path.read_bytes()
    marked = data.replace(b"little_endianq\x02\x88", b"little_endianq\x02\x89")
    assert marked != data
    heard = audit(write(path, marked))
    assert heard.record["nan_weights"] == 1
    assert any("big-endian" in each["message"] for each in heard.findings if each["rule"] == "CK124")


# --- plain pickles --------------------------------------------------------------------------------------------------


def pickled(value: object, path: Path, protocol: int) -> Heard:
    """Pickle without torch.save, and audit."""
    return audit(write(path, pickle.dumps(value, protocol)))


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_a_plain_pickle_is_told_and_its_values_are_counted(tmp_path: Path, protocol: int) -> None:
    """Each tensor in it has a file of torch's old format inside."""
    state = poisoned()
    heard = pickled(state, tmp_path / "c.pt", protocol)
    record = heard.record
    assert record["format"] == "pickle"
    assert (record["nan_weights"], record["inf_weights"]) == count_with_torch(state["model_state_dict"])
    assert (record["nan_optimizer"], record["inf_optimizer"]) == count_with_torch(state["optimizer_state_dict"])
    assert (record["params"], record["step"], record["unchecked"]) == (4 * (64 * 64 + 64), 2000, [])
    assert heard.of("CK024")["severity"] == "info"
    assert "magic number" in heard.of("CK024")["message"]


@pytest.mark.parametrize("protocol", range(6))
def test_numpy_arrays_are_counted(tmp_path: Path, protocol: int) -> None:
    """Before protocol 3 their bytes are written as text."""
    table = np.ones((50, 40), dtype=np.float32)
    table[3, 3] = np.nan
    nested = np.array([np.full(3, np.inf), "text"], dtype=object)
    heard = pickled({"table": table, "nested": nested, "words": np.array(["a"])}, tmp_path / "c.pt", protocol)
    record = heard.record
    assert (record["verdict"], record["nan_weights"], record["inf_weights"]) == ("bad", 1, 3)
    assert record["unchecked"] == []
    places = {each["data"]["tensor"]: each["data"] for each in heard.findings if "tensor" in each["data"]}
    assert places["table"]["shape"] == [50, 40]
    assert ("range" in places["table"]) == (protocol >= 3), "text has no place for an element"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "complex64"])
def test_arrays_of_all_sizes_that_are_written_as_text(tmp_path: Path, engine: str, dtype: str) -> None:
    """torch.save's own protocol is 2; long text stays in the file, and lies across many chunks and pages."""
    random = np.random.default_rng(5)
    arrays = {f"a{size}": random.standard_normal(size).astype(dtype) for size in (1, 7, 9_000, 70_000, 150_000)}
    arrays["a70000"][[5, 40_000]] = np.nan, np.inf
    arrays["square"] = np.asfortranarray(np.ones((90, 90), dtype))
    arrays["square"][3, 80] = np.nan
    heard = audit(save({"model": {"w": torch.ones(5)}, "ema_state": arrays}, tmp_path / "c.pt"), engine=engine)
    record = heard.record
    assert (record["nan_weights"], record["inf_weights"], record["unchecked"]) == (2, 1, [])
    assert record["params"] == 5


@pytest.mark.parametrize("engine", ENGINES)
def test_text_is_looked_at_chunk_by_chunk(tmp_path: Path, engine: str) -> None:
    """More than is read at a time: what is odd stands in the second chunk, and only there."""
    array = np.ones(400_000)
    array[[390_000, 399_999]] = np.nan, np.inf
    heard = audit(save({"model": {"w": torch.ones(5)}, "ema_state": {"a": array}}, tmp_path / "c.pt"), engine=engine)
    record = heard.record
    assert (record["nan_weights"], record["inf_weights"], record["unchecked"]) == (1, 1, [])


def test_more_text_than_is_held_is_named(tmp_path: Path) -> None:
    arrays = {f"a{number}": np.zeros(300_000) for number in range(4)}
    heard = audit(save({"model": {"w": torch.ones(5)}, "arrays": arrays}, tmp_path / "c.pt"))
    left = heard.record["unchecked"]
    assert {(each["bytes"], each["reason"]) for each in left} == {(2_400_000, "numpy array written as text")}
    assert 1 <= len(left) <= 3


def test_text_that_is_no_bytes_is_named(tmp_path: Path) -> None:
    data = pickle.dumps({"w": np.ones(4, np.float32)}, 2)
    sound = b"\x00\x00\xc2\x80?" * 4
    assert data.count(sound) == 1
    heard = audit(write(tmp_path / "c.pt", data.replace(sound, b"\x00\x00\xe2\x82\xac" + sound[5:])))
    assert [each["reason"] for each in heard.record["unchecked"]] == ["numpy array written as text"]
    heard = audit(write(tmp_path / "c.pt", data.replace(sound, sound.replace(b"\xc2\x80", b"xy"))))
    assert "should have 16 bytes, but has 20 bytes" in heard.of("CK025")["message"]


@pytest.mark.parametrize("protocol", [0, 1, 2])
def test_tensors_written_as_text_are_counted(tmp_path: Path, protocol: int) -> None:
    weights = torch.ones(3000)
    weights[70:72] = float("nan")
    record = pickled({"w": weights, "step": 3}, tmp_path / "c.pt", protocol).record
    assert (record["verdict"], record["step"], record["nan_weights"]) == ("bad", 3, 2)
    assert record["unchecked"] == []


@pytest.mark.parametrize("protocol", [1, 2])
def test_larger_tensors_written_as_text_are_named(tmp_path: Path, protocol: int) -> None:
    record = pickled({"w": torch.ones(400_000), "step": 3}, tmp_path / "c.pt", protocol).record
    assert (record["verdict"], record["step"]) == ("ok", 3)
    assert record["unchecked"] == [{"tensor": "w", "dtype": "float32", "bytes": 1_600_000, "reason": "written as text"}]


def test_structured_arrays_are_named(tmp_path: Path) -> None:
    heard = pickled({"t": np.zeros(9, dtype=[("a", "f4"), ("b", "i8")])}, tmp_path / "c.pt", 4)
    assert [each["tensor"] for each in heard.record["unchecked"]] == ["t"]


@pytest.mark.parametrize("protocol", range(6))
def test_code_in_the_file_inside_a_pickle_is_found(tmp_path: Path, protocol: int) -> None:
    """torch's older versions load that file with everything allowed."""

    class Attack:
        def __reduce__(self) -> tuple[object, ...]:
            return eval, ("1",)

    inner = io.BytesIO()
    torch.save(Attack(), inner, _use_new_zipfile_serialization=False)

    class Storage:
        def __reduce__(self) -> tuple[object, ...]:
            return torch.storage._load_from_bytes, (inner.getvalue(),)

    heard = pickled({"w": Storage()}, tmp_path / "c.pt", protocol)
    assert heard.record["verdict"] == "bad"
    assert "CK101" in heard.rules()


def test_a_storage_that_is_not_whole_is_malformed(tmp_path: Path) -> None:
    data = pickle.dumps({"w": torch.ones(3)}, 4)
    ones = struct.pack("<fff", 1, 1, 1)
    shorter = data.replace(ones, ones[:8])
    at = shorter.find(b"B", shorter.find(b"_load_from_bytes"))
    (size,) = struct.unpack_from("<I", shorter, at + 1)
    (frame,) = struct.unpack_from("<Q", shorter, 3)
    broken = bytearray(shorter)
    struct.pack_into("<I", broken, at + 1, size - 4)
    struct.pack_into("<Q", broken, 3, frame - 4)
    heard = audit(write(tmp_path / "c.pt", bytes(broken)))
    assert heard.record["verdict"] == "bad"
    assert "its storage of 12 bytes lies in 8 bytes" in heard.of("CK025")["message"]


def test_a_truncated_pickle_is_cut_off(tmp_path: Path) -> None:
    data = pickle.dumps({"w": np.ones(1000)}, 4)
    for size in (20, len(data) // 2, len(data) - 1):
        heard = audit(write(tmp_path / "c.pt", data[:size]))
        assert heard.record["verdict"] == "bad"
        assert "CK020" in heard.rules()


def test_old_tensor_types_are_read(tmp_path: Path) -> None:
    """Files that torch 0.4 wrote call _rebuild_tensor, which takes four arguments."""
    path = tmp_path / "c.pt"
    value = {"w": torch.tensor([1.0, float("nan")])}
    data = legacy(value, path).read_bytes()
    old = data.replace(b"_rebuild_tensor_v2\n", b"_rebuild_tensor\n").replace(
        b"\x89ccollections\nOrderedDict\nq\n)Rq\x0bt", b"t"
    )
    assert len(old) < len(data) - 20
    write(path, old)
    settle(path)
    assert torch.load(path, weights_only=False)["w"][0] == 1.0
    assert audit(path).record["nan_weights"] == 1
