"""Folders made to attack whoever reads them: each costs little time and memory, and nothing outside is opened."""

from __future__ import annotations

import collections
import io
import os
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from tests.unit.payloads.check_ckpt.support import audit, save, write
from tests.unit.payloads.check_ckpt.test_hostile_files import torch_zip, watched
from tests.unit.payloads.check_ckpt.zero_layout import Training, model_states, save_zero_2

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.torch

HUGE = 2**61


def item() -> bytes:
    """Return an item as torch writes it."""
    buffer = io.BytesIO()
    torch.save(torch.ones(4), buffer)
    return buffer.getvalue()


def tensor(size: list[int], chunks: list[tuple[list[int], list[int]]]) -> TensorStorageMetadata:
    listed = [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in chunks]
    return TensorStorageMetadata(TensorProperties(torch.float32), torch.Size(size), listed)


def distributed(path: Path, tensors: dict[str, Any], stored: dict[Any, Any], data: bytes | None = None) -> Path:
    """Write a checkpoint that says anything."""
    write(path / ".metadata", pickle.dumps(Metadata(tensors, None, stored)))
    write(path / "__0_0.distcp", item() if data is None else data)
    return path


def one(offset: int, length: int, path: str = "__0_0.distcp") -> tuple[dict[str, Any], dict[Any, Any]]:
    """Describe one tensor that lies where it is said to lie."""
    place = {MetadataIndex("w", [0], 0): _StorageInfo(path, offset, length)}
    return {"w": tensor([4], [([0], [4])])}, place


@pytest.mark.parametrize(
    ("offset", "length", "rule"),
    [
        (-1, 100, "CK025"),
        (0, -5, "CK025"),
        (HUGE, 10, "CK061"),
        (0, HUGE, "CK061"),
        (10, 2**70, "CK025"),
        (1, 0, "CK025"),
    ],
)
def test_places_outside_of_the_file_are_not_read(tmp_path: Path, offset: int, length: int, rule: str) -> None:
    verdict, rules = watched(distributed(tmp_path, *one(offset, length)))
    assert verdict == "bad"
    assert rule in rules or (rule == "CK025" and rules & {"CK021", "CK064"})


@pytest.mark.parametrize(
    "path", ["../../secret/__0_0.distcp", "/etc/passwd", "a/../../__0_0.distcp", "../__0_0.distcp"]
)
def test_paths_that_lead_out_are_not_followed(tmp_path: Path, path: str) -> None:
    write(tmp_path / "__0_0.distcp", item())
    heard = audit(distributed(tmp_path / "c", *one(0, len(item()), path)))
    assert heard.record["verdict"] == "bad"
    assert heard.of("CK104")["data"]["path"] == path


@pytest.mark.parametrize(
    "listed",
    [
        tensor([HUGE], [([0], [HUGE])]),
        tensor([HUGE] * 30, [([0] * 30, [HUGE] * 30)]),
        tensor([2] * 64, [([0] * 64, [1] * 64), ([1] * 64, [1] * 64)]),
        tensor([4] * 20, [([at % 4] * 20, [1] * 20) for at in range(3000)]),
        tensor([-4], [([-4], [4])]),
        tensor([4], []),
    ],
)
def test_shapes_beyond_reason_cost_little(tmp_path: Path, listed: TensorStorageMetadata) -> None:
    verdict, _ = watched(distributed(tmp_path, {"w": listed}, one(0, len(item()))[1]))
    assert verdict == "bad"


def test_items_that_share_bytes_are_read_once(tmp_path: Path) -> None:
    """A small file must not become a large one by being read over and over."""
    data = torch_zip(pickle.dumps([list(range(200)) for _ in range(2000)]))
    names = [f"n{number}" for number in range(20_000)]
    stored = {
        MetadataIndex(name): _StorageInfo("__0_0.distcp", number % 3, len(data) - 3)
        for number, name in enumerate(names)
    }
    verdict, rules = watched(distributed(tmp_path, dict.fromkeys(names, BytesStorageMetadata()), stored, data))
    assert (verdict, "CK025" in rules) == ("bad", True)


def test_objects_that_are_too_much_do_not_hide_the_tensors(tmp_path: Path) -> None:
    """Each holds itself, so that only a collector can free it."""
    data = torch_zip(b"\x80\x02]q\x00(" + b"]h\x00a" * 10_000 + b"e.")
    count = 20
    stored = {MetadataIndex(f"n{at}"): _StorageInfo("__0_0.distcp", at * len(data), len(data)) for at in range(count)}
    buffer = io.BytesIO()
    torch.save(torch.tensor([1.0, torch.nan, 2.0, 3.0]), buffer)
    stored[MetadataIndex("w", [0], 0)] = _StorageInfo("__0_0.distcp", count * len(data), len(buffer.getvalue()))
    tensors: dict[str, Any] = {f"n{at}": BytesStorageMetadata() for at in range(count)}
    tensors["w"] = tensor([4], [([0], [4])])
    path = distributed(tmp_path, tensors, stored, data * count + buffer.getvalue())
    verdict, rules = watched(path)
    assert (verdict, rules) == ("bad", {"CK001", "CK126"})


def test_a_description_that_holds_itself_is_no_trouble(tmp_path: Path) -> None:
    metadata = Metadata(*one(0, len(item()))[:1], None, one(0, len(item()))[1])
    metadata.planner_data = {"w": ("w",), "self": metadata}
    metadata.state_dict_metadata["self"] = metadata.state_dict_metadata  # type: ignore[assignment]
    write(tmp_path / ".metadata", pickle.dumps(metadata))
    write(tmp_path / "__0_0.distcp", item())
    verdict, rules = watched(tmp_path)
    assert (verdict, "CK025" in rules) == ("bad", True)


BOMBS = {
    "no metadata": pickle.dumps({"a": 1}),
    "strings": b"\x80\x02X\x00\x01\x00\x00" + b"a" * 256 + b"2" * 2_000_000 + b".",
    "marks": b"(" * 200_000 + b".",
    "empty dictionaries": b"}" * 2_000_000 + b".",
    "memo": b"\x80\x02Nr\xff\xff\xff\x0f.",
    "globals": b"\x80\x02" + b"".join(b"ctorch\nn%d\n0" % number for number in range(20_000)) + b"N.",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_cost_little(tmp_path: Path, name: str) -> None:
    write(tmp_path / ".metadata", BOMBS[name])
    write(tmp_path / "__0_0.distcp", item())
    verdict, _ = watched(tmp_path)
    assert verdict in {"bad", "suspect", "unsupported"}


def test_many_entries_cost_little(tmp_path: Path) -> None:
    """What is too much to be decoded is said to be so."""
    places = [[at] for at in range(20_000)]
    listed = tensor([20_000], [(at, [1]) for at in places])
    stored = {MetadataIndex("w", at, at[0]): _StorageInfo("__0_0.distcp", 0, 1) for at in places}
    verdict, _ = watched(distributed(tmp_path, {"w": listed}, stored))
    assert verdict in {"bad", "suspect"}


class Ordered:
    """Be pickled as a mapping, without being one: the real one would be quadratic in keys that collide."""

    def __init__(self, pairs: list[tuple[Any, Any]]) -> None:
        self.pairs = pairs

    def __reduce__(self) -> tuple[Any, ...]:
        return collections.OrderedDict, (self.pairs,)


def test_offsets_that_collide_cost_little(tmp_path: Path) -> None:
    """Integers of one hash would make tuples of one hash, and a dictionary of them quadratic."""
    modulus = 2**61 - 1
    places = [[modulus * (number >> bit & 1) for bit in range(13)] for number in range(2**13)]
    listed = tensor([HUGE + 5] * 13, [(at, [1] * 13) for at in places])
    pairs = [(MetadataIndex("w", at, 0), _StorageInfo("__0_0.distcp", 0, 1)) for at in places]
    metadata = Metadata({"w": listed}, None, Ordered(pairs))
    write(tmp_path / ".metadata", pickle.dumps(metadata))
    write(tmp_path / "__0_0.distcp", item())
    verdict, _ = watched(tmp_path)
    assert verdict in {"bad", "suspect"}


@pytest.mark.parametrize("special", ["fifo", "loop", "folder", "device"])
def test_what_is_no_file_is_not_opened(tmp_path: Path, special: str) -> None:
    path = distributed(tmp_path / "c", *one(0, len(item())))
    file = path / "__0_0.distcp"
    file.unlink()
    if special == "fifo":
        os.mkfifo(file)
    elif special == "folder":
        file.mkdir()
    else:
        file.symlink_to(file.name if special == "loop" else "/dev/zero")
    heard = audit(path)
    assert heard.record["verdict"] == "bad"
    assert "CK060" in heard.rules()


# --- DeepSpeed ------------------------------------------------------------------------------------------------------


def zero_2(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Make a checkpoint of ZeRO-2 whose model's file says anything."""
    training = Training()
    save_zero_2(path, training, 2)
    state = model_states(training, dict(training.model), 2)
    change(state)
    save(state, path / "mp_rank_00_model_states.pt")
    return path


@pytest.mark.parametrize(
    "more",
    [
        {"param_shapes": [{f"p{number}": torch.Size([HUGE, HUGE]) for number in range(5000)}]},
        {"param_shapes": [{f"p{number}": torch.Size([0]) for number in range(15_000)}]},
        {"param_shapes": [{f"p{number}": torch.Size([1]) for number in range(15_000)}]},
        {"param_shapes": 7},
        {"dp_world_size": HUGE, "mp_world_size": HUGE},
        {"dp_world_size": -3, "mp_world_size": float("nan")},
    ],
)
def test_claims_of_a_model_s_file_cost_little(tmp_path: Path, more: dict[str, Any]) -> None:
    path = zero_2(tmp_path, lambda state: state.update(more))
    watched(path)
    for file in path.glob("*optim_states.pt"):
        file.unlink()
    watched(path)
