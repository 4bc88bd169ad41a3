"""The shortcut through items that are like each other: it comes to what reading all of them comes to."""

from __future__ import annotations

import io
import random
import zlib
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from remoterun.payloads.check_ckpt.readers.dcp_alike import Alike, Forms
from remoterun.payloads.check_ckpt.readers.reader import read_torch_file
from remoterun.payloads.check_ckpt.source import Source
from tests.unit.payloads.check_ckpt.support import audit, settle, write

if TYPE_CHECKING:
    from pathlib import Path

    from remoterun.payloads.check_ckpt.readers.torch_objects import Loaded

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*no_dist.*"),
    pytest.mark.filterwarnings("ignore:torch.distributed is"),
]

FRONT = 100


def item(value: object) -> bytes:
    """Write a value as torch's file system writer does an item: to a stream."""
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def learnt(path: Path, data: bytes) -> Forms:
    """Read an item in full, as the first of its kind."""
    forms = Forms()
    with Source(str(write(path, data))) as source:
        loaded = read_torch_file(source)
        forms.learn(source, loaded.checkpoint, loaded.decoded.root if loaded.decoded is not None else None)
    return forms


def both(path: Path, forms: Forms, data: bytes) -> tuple[Alike | None, Loaded]:
    """Read an item, which lies somewhere in a file, by the shortcut and in full."""
    with Source(str(write(path, bytes(FRONT) + data + bytes(FRONT)))) as source:
        window = source.window(FRONT, len(data))
        return forms.match(window), read_torch_file(window)


def agree(alike: Alike, loaded: Loaded, data: bytes) -> None:
    """Hold what the shortcut came to against what there is."""
    checkpoint = loaded.checkpoint
    assert (checkpoint.found, checkpoint.unchecked, checkpoint.holes) == ([], [], [])
    assert checkpoint.decoded
    assert not checkpoint.truncated
    assert loaded.decoded is not None
    if alike.tensor is None:
        assert checkpoint.tensors == []
        assert repr(loaded.decoded.root) == repr(alike.root)
    else:
        (tensor,) = checkpoint.tensors
        assert alike.tensor == tensor._replace(region=0)
        assert alike.region == checkpoint.regions[tensor.region]

    for region in checkpoint.regions:
        if region != alike.region:
            at = region.offset - FRONT
            assert zlib.crc32(data[at : at + region.size]) == region.crc


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_what_differs_in_its_data_is_alike(tmp_path: Path, dtype: torch.dtype) -> None:
    first, second = (item(torch.full((5, 7), fill, dtype=dtype)) for fill in (3, 5))
    forms = learnt(tmp_path / "first", first)
    alike, loaded = both(tmp_path / "second", forms, second)
    assert alike is not None
    agree(alike, loaded, second)


@pytest.mark.parametrize("value", [None, True, 1e-4, 7, "AdamW"])
def test_plain_values_are_alike(tmp_path: Path, value: object) -> None:
    data = item(value)
    alike, loaded = both(tmp_path / "second", learnt(tmp_path / "first", data), data)
    assert alike is not None
    agree(alike, loaded, data)


@pytest.mark.parametrize("value", [1 << 70, {"lr": 1e-4}, [torch.ones(2)], [torch.ones(2), torch.ones(3)]])
def test_others_are_read_each(tmp_path: Path, value: object) -> None:
    data = item(value)
    alike, _ = both(tmp_path / "second", learnt(tmp_path / "first", data), data)
    assert alike is None


def test_another_shape_of_the_same_size_is_not_alike(tmp_path: Path) -> None:
    forms = learnt(tmp_path / "first", item(torch.ones(4, 8)))
    second = item(torch.ones(8, 4))
    alike, _ = both(tmp_path / "second", forms, second)
    assert alike is None


@pytest.mark.parametrize("front", [b"\x80\x02", b"cos\nsystem\n", b"(cos\n"])
def test_data_that_begins_like_a_pickle_is_looked_at(tmp_path: Path, front: bytes) -> None:
    forms = learnt(tmp_path / "first", item(torch.zeros(64, dtype=torch.uint8)))
    second = item(torch.tensor(list(front.ljust(64, b"."))).to(torch.uint8))
    alike, _ = both(tmp_path / "second", forms, second)
    assert alike is None


@pytest.mark.parametrize("value", [torch.arange(12.0) + 1, "text"])
def test_no_changed_byte_is_overlooked(tmp_path: Path, value: Any) -> None:
    """Whatever is changed in an item, the shortcut is not taken or comes to the same."""
    data = item(value)
    forms = learnt(tmp_path / "first", data)
    chance = random.Random(5)
    taken = 0
    for at in chance.sample(range(len(data)), 500):
        changed = bytearray(data)
        changed[at] ^= 1 << chance.randrange(8)
        alike, loaded = both(tmp_path / "second", forms, bytes(changed))
        if alike is not None:
            taken += 1
            agree(alike, loaded, bytes(changed))
    assert 0 < taken < 250


def test_a_cut_item_is_not_alike(tmp_path: Path) -> None:
    data = item(torch.ones(40))
    forms = learnt(tmp_path / "first", data)
    path = write(tmp_path / "second", data)
    with Source(str(path)) as source:
        for size in (0, 10, 700, len(data) - 1):
            path.write_bytes(data[:size])
            assert forms.match(source.window(0, len(data))) is None


def test_every_item_is_counted(tmp_path: Path) -> None:
    torch.manual_seed(1)
    value = {f"layers.{number}.weight": torch.randn(6, 6) for number in range(40)}
    value["layers.17.weight"][2, 3] = float("nan")
    value["layers.31.weight"][0, :2] = float("inf")
    save_distributed({"model": value}, storage_writer=FileSystemWriter(tmp_path / "c"), no_dist=True)
    for file in (tmp_path / "c").iterdir():
        settle(file)
    heard = audit(tmp_path / "c")
    assert heard.record["tensors"] == 40
    assert heard.record["params"] == 40 * 36
    assert (heard.record["nan_weights"], heard.record["inf_weights"]) == (1, 2)
    assert heard.record["crc_checked"] == 40
    told = {each["data"]["tensor"] for each in heard.findings if each["rule"] == "CK001"}
    assert {name.rpartition("model.")[2] for name in told} == {"layers.17.weight", "layers.31.weight"}
