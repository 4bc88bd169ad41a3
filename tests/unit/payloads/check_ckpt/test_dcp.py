"""Distributed checkpoints, written by torch itself and then damaged."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter, SerializationFormat, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from remoterun.payloads.check_ckpt.model import Checkpoint
from remoterun.payloads.check_ckpt.pickles.machine import Machine
from remoterun.payloads.check_ckpt.pickles.nodes import TooLargeError
from remoterun.payloads.check_ckpt.readers import dcp
from remoterun.payloads.check_ckpt.readers.dcp_metadata import matched, read_metadata
from remoterun.payloads.check_ckpt.readers.dcp_pickle import Compact
from remoterun.payloads.check_ckpt.readers.folder import Folder, Seen
from remoterun.payloads.check_ckpt.rules.training import pairs
from remoterun.payloads.check_ckpt.source import Source
from tests.unit.payloads.check_ckpt.support import audit, network, overwrite, settle, write
from tests.unit.payloads.check_ckpt.support import save as save_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path


pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*no_dist.*"),
    pytest.mark.filterwarnings("ignore:torch.distributed is"),
]


def state(**more: Any) -> dict[str, Any]:
    """Return a training state as torch's own helpers make it."""
    model, optimizer = network(width=16, layers=2)
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optim": moments, "train_state": {"step": torch.tensor(7), "loss": 0.5}, **more}


def save(value: dict[str, Any], path: Path, **options: Any) -> Path:
    """Save without other processes, as a folder that was last written long ago."""
    save_distributed(value, storage_writer=FileSystemWriter(path, **options), no_dist=True)
    for file in path.iterdir():
        settle(file)
    return path


def metadata_of(path: Path) -> Metadata:
    """Load a .metadata file."""
    loaded: Metadata = pickle.loads((path / ".metadata").read_bytes())
    return loaded


def rewrite(path: Path, change: Callable[[Metadata], object]) -> Path:
    """Change what a .metadata says."""
    metadata = metadata_of(path)
    change(metadata)
    write(path / ".metadata", pickle.dumps(metadata))
    return path


def place_of(path: Path, name: str) -> _StorageInfo:
    """Return where an item lies."""
    info: _StorageInfo = next(info for index, info in metadata_of(path).storage_data.items() if index.fqn == name)
    return info


def folder_of(path: Path) -> Folder:
    """Return the files of a folder as a reader gets them."""
    files = sorted(file for file in path.rglob("*") if file.is_file())
    names = [str(file.relative_to(path)) for file in files]
    return Folder(
        str(path), {name: Seen(name, file.stat().st_size, 0) for name, file in zip(names, files, strict=True)}
    )


def floats(tensors: Iterable[Any]) -> int:
    return sum(tensor.numel() for tensor in tensors if tensor.is_floating_point())


@pytest.mark.parametrize("options", [{}, {"thread_count": 2}, {"single_file_per_rank": False, "thread_count": 2}])
def test_a_clean_checkpoint_is_ok(tmp_path: Path, options: dict[str, Any]) -> None:
    value = state()
    heard = audit(save(value, tmp_path / "step-7", **options))
    assert heard.findings == []
    record = heard.record
    assert (record["verdict"], record["format"], record["step"]) == ("ok", "dcp", 7)
    assert record["params"] == floats(value["model"].values())
    assert record["bytes_checked"] == record["bytes"] == sum(file.stat().st_size for file in tmp_path.glob("*/*"))
    assert heard.summary["resume_from"] == "step-7"


@pytest.mark.parametrize("flat", [False, True])
def test_training_rules_see_the_optimizer(tmp_path: Path, flat: bool) -> None:
    """As nested dictionaries, and by full names as torchtitan has them."""
    model, optimizer = network(width=16, layers=2)
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    weights, moments = get_state_dict(model, optimizer, options=options)
    path = save({**weights, "optimizer": moments, "step": 7}, tmp_path / "step-7")
    heard = audit(path)
    assert heard.findings == []
    assert heard.record["params"] == floats(weights.values())
    checkpoint = dcp.read(folder_of(path))
    (known,) = checkpoint.optimizers
    assert {name for group in known.groups for name in group.names} == set(weights)
    assert known.groups[0].options["betas"] == (0.9, 0.999)
    assert len(pairs(checkpoint)) == len(weights)
    for state in (optimizer.state[weight] for weight in list(model.parameters())[2:]):
        state["step"] += 1
    _, moments = get_state_dict(model, optimizer, options=options)
    save({**weights, "optimizer": moments, "step": 7}, tmp_path / "torn")
    assert audit(tmp_path / "torn").of("CK040")["severity"] == "bad"


def test_nan_is_found_with_its_name_and_role(tmp_path: Path) -> None:
    value = state()
    value["model"]["1.weight"][3, 4] = torch.nan
    value["optim"]["state"]["0.bias"]["exp_avg"][:2] = torch.inf
    heard = audit(save(value, tmp_path / "c"))
    assert heard.record["verdict"] == "bad"
    assert "model.1.weight" in heard.of("CK001")["message"]
    assert heard.of("CK003")["data"]["state"] == "exp_avg"
    assert (heard.record["nan_weights"], heard.record["inf_optimizer"]) == (1, 2)


def test_objects_are_read_and_not_run(tmp_path: Path) -> None:
    value = {"w": torch.ones(3), "rng": {"torch": torch.get_rng_state()}, "loader": {"shards": [1, 2], "seed": {3, 4}}}
    heard = audit(save(value, tmp_path / "c"))
    assert heard.rules(above_info=True) == set()
    assert heard.record["verdict"] == "ok"
    trace = tmp_path / "trace"

    class Attack:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {trace}",)

    path = rewrite(tmp_path / "c", lambda metadata: setattr(metadata, "planner_data", Attack()))
    heard = audit(path)
    assert heard.record["verdict"] == "bad"
    assert not trace.exists()


def test_a_changed_byte_is_found_by_its_checksum(tmp_path: Path) -> None:
    path = save(state(), tmp_path / "c")
    info = place_of(path, "model.1.weight")
    data = (path / info.relative_path).read_bytes()
    at = data.index(b"archive/data/0", info.offset) + 200
    overwrite(path / info.relative_path, at, bytes([data[at] ^ 4]))
    heard = audit(path)
    assert heard.rules() >= {"CK022"}
    assert "model.1.weight" in heard.of("CK022")["message"]


@pytest.mark.parametrize("front", [b"\0" * 1300, b"PK", b"{}{}" * 400, b"\x80\x02}q\0."])
def test_an_item_that_is_none_is_damage(tmp_path: Path, front: bytes) -> None:
    path = save(state(), tmp_path / "c")
    info = place_of(path, "model.1.weight")
    overwrite(path / info.relative_path, info.offset, front)
    if len(front) < 100:
        overwrite(path / info.relative_path, info.offset + len(front), b"\xff" * (info.length - len(front)))
    heard = audit(path)
    assert heard.record["verdict"] == "bad"
    assert any("model.1.weight" in each["message"] for each in heard.findings if each["severity"] == "bad")
    assert "model.1.weight" in [each["tensor"] for each in heard.record["unchecked"]]


def test_bytes_between_items_are_told_unchecked(tmp_path: Path) -> None:
    path = save(state(), tmp_path / "c")
    size = (path / "__0_0.distcp").stat().st_size
    overwrite(path / "__0_0.distcp", size, b"x" * 1000)
    heard = audit(path)
    assert (heard.record["verdict"], heard.rules()) == ("ok", {"CK126"})
    assert heard.record["bytes_checked"] == heard.record["bytes"] - 1000


def test_a_changed_byte_between_the_tensors_is_found(tmp_path: Path) -> None:
    """The small records of an item have checksums, too."""
    path = save(state(), tmp_path / "c")
    info = place_of(path, "model.0.bias")
    data = (path / info.relative_path).read_bytes()
    at = data.index(b"little", info.offset)
    overwrite(path / info.relative_path, at, b"litTle")
    assert "CK022" in audit(path).rules()


def test_what_goes_with_it_is_no_checkpoint_of_its_own(tmp_path: Path) -> None:
    """Lightning has a file beside the tensors, OLMo-core one for each rank."""
    value = state()
    del value["train_state"]
    path = save(value, tmp_path / "lightning/epoch=1.ckpt")
    save_file({"epoch": 1, "global_step": 7, "loops": {}}, path / "meta.pt")
    path = save(value, tmp_path / "olmo/step7/model_and_optim")
    for rank in range(2):
        save_file({"global_step": 7, "epoch": 1}, path.parent / f"train/rank{rank}.pt")
    for name, folder in (("epoch=1.ckpt", "lightning"), ("step7", "olmo")):
        heard = audit(tmp_path / folder)
        assert heard.findings == []
        record = heard.record
        assert (record["name"], record["verdict"], record["step"], record["epoch"]) == (name, "ok", 7, 1)
        assert record["params"] == floats(value["model"].values())


_TOGETHER = """
import sys, torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
def work(rank, ranks, path):
    dist.init_process_group("gloo", init_method="file://" + path + ".store", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(10, 7), torch.nn.Linear(7, 5, bias=False), torch.nn.LayerNorm(5))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(fully_shard(model, mesh=mesh).parameters())
    model(torch.randn(4, 10)).pow(2).mean().backward()
    optimizer.step()
    weights, moments = get_state_dict(model, optimizer)
    save({"model": weights, "optim": moments, "step": 7}, storage_writer=FileSystemWriter(path))
    dist.destroy_process_group()
if __name__ == "__main__":
    mp.start_processes(work, args=(2, sys.argv[1]), nprocs=2, start_method="fork")
"""


@pytest.mark.slow
def test_ranks_that_save_together_make_one_checkpoint(tmp_path: Path) -> None:
    """Five rows on two ranks leave shares of different sizes."""
    script, path = tmp_path / "together.py", tmp_path / "step-7"
    script.write_text(_TOGETHER)
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, str(script), str(path)], check=True, capture_output=True, env=environment, timeout=250
    )
    for file in path.iterdir():
        settle(file)
    heard = audit(path)
    assert (heard.record["verdict"], heard.findings) == ("ok", [])
    assert heard.record["params"] == 77 + 35 + 10
    checkpoint = dcp.read(folder_of(path))
    held = sum(checkpoint.tensors[pair.first].numel for pair in pairs(checkpoint))
    assert held == 77 + 35 + 10


# --- what may be missing --------------------------------------------------------------------------------------------


def many_files(tmp_path: Path) -> Path:
    """Save a checkpoint with a file for each item."""
    return save(state(), tmp_path / "c", single_file_per_rank=False, thread_count=2)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = many_files(tmp_path)
    (path / "__0_1.distcp").unlink()
    heard = audit(path)
    assert heard.record["verdict"] == "bad"
    assert heard.of("CK060")["message"].startswith("__0_1.distcp is missing")
    assert heard.record["params"] is None


@pytest.mark.parametrize("size", [0, 10, -1])
def test_a_short_file_is_named(tmp_path: Path, size: int) -> None:
    path = many_files(tmp_path)
    file = path / place_of(path, "model.1.weight").relative_path
    file.write_bytes(file.read_bytes()[:size])
    settle(file)
    heard = audit(path)
    assert heard.record["verdict"] == "bad"
    assert "model.1.weight" in heard.of("CK061")["message"]
    assert not heard.rules() & {"CK060", "CK063"}


def test_what_is_in_front_of_the_cut_is_still_checked(tmp_path: Path) -> None:
    value = state()
    value["model"]["0.weight"][0, 0] = torch.nan
    path = save(value, tmp_path / "c")
    file = path / "__0_0.distcp"
    end = place_of(path, "optim.state.1.weight.exp_avg").offset
    file.write_bytes(file.read_bytes()[: end + 100])
    settle(file)
    assert audit(path).rules() >= {"CK061", "CK001"}


def test_without_metadata_nothing_can_be_used(tmp_path: Path) -> None:
    path = many_files(tmp_path)
    (path / ".metadata").unlink()
    heard = audit(path)
    assert (heard.record["verdict"], heard.rules()) == ("bad", {"CK063"})
    assert heard.record["bytes_checked"] == 0


def test_metadata_that_was_never_renamed_tells_of_an_unfinished_save(tmp_path: Path) -> None:
    path = many_files(tmp_path)
    (path / ".metadata").rename(path / ".metadata.tmp")
    heard = audit(path)
    assert (heard.record["verdict"], heard.rules()) == ("bad", {"CK066"})


@pytest.mark.parametrize("size", [0, 1, 0.5, -1])
def test_metadata_that_is_cut_off_is_damage(tmp_path: Path, size: float) -> None:
    path = many_files(tmp_path)
    data = (path / ".metadata").read_bytes()
    write(path / ".metadata", data[: int(size * len(data)) if 0 < size < 1 else int(size)])
    heard = audit(path)
    assert heard.record["verdict"] == "bad"
    assert heard.rules() & {"CK020", "CK021"}


def test_an_empty_file_to_which_nothing_refers_is_normal(tmp_path: Path) -> None:
    path = save(state(), tmp_path / "c")
    write(path / "__1_0.distcp", b"")
    heard = audit(path)
    assert (heard.record["verdict"], heard.rules()) == ("ok", {"CK061"})


def test_a_full_file_to_which_nothing_refers_is_told_unchecked(tmp_path: Path) -> None:
    path = save(state(), tmp_path / "c")
    shutil.copy(path / "__0_0.distcp", path / "__1_0.distcp")
    settle(path / "__1_0.distcp")
    heard = audit(path)
    assert (heard.record["verdict"], heard.rules(above_info=True)) == ("ok", set())
    assert "CK067" in heard.rules()
    assert heard.record["bytes_checked"] == heard.record["bytes"] - (path / "__1_0.distcp").stat().st_size


def of_ranks(tmp_path: Path) -> Path:
    """Make the files of two ranks that saved without each other."""
    path = tmp_path / "c"
    for rank in range(2):
        part = save({f"model.{rank}": torch.ones(4), "step": 3}, tmp_path / f"rank{rank}")
        path.mkdir(exist_ok=True)
        shutil.move(part / "__0_0.distcp", path / f"__{rank}_0.distcp")
        metadata = metadata_of(part)
        for info in metadata.storage_data.values():
            info.relative_path = f"__{rank}_0.distcp"
        write(path / f"__{rank}.metadata", pickle.dumps(metadata))
        shutil.rmtree(part)
    return path


def test_ranks_may_have_metadata_of_their_own(tmp_path: Path) -> None:
    heard = audit(of_ranks(tmp_path))
    assert (heard.record["verdict"], heard.rules()) == ("ok", {"CK050"})
    assert (heard.record["params"], heard.record["step"]) == (8, 3)


def test_a_rank_without_its_metadata_is_named(tmp_path: Path) -> None:
    path = of_ranks(tmp_path)
    (path / "__1.metadata").unlink()
    heard = audit(path)
    assert heard.record["verdict"] == "bad"
    assert "__1.metadata" in heard.of("CK063")["message"]


# --- chunks ---------------------------------------------------------------------------------------------------------


def cut(path: Path, chunks: list[tuple[list[int], list[int]]], whole: list[int]) -> Path:
    """Make a checkpoint of one tensor that lies in chunks, each an item of its own."""
    value = {
        f"c{number}": torch.arange(1.0, 1 + torch.Size(sizes).numel()).reshape(sizes)
        for number, (_, sizes) in enumerate(chunks)
    }
    save(value, path)

    def join(metadata: Metadata) -> None:
        listed = [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in chunks]
        tensor = TensorStorageMetadata(TensorProperties(torch.float32), torch.Size(whole), listed)
        infos = {index.fqn: info for index, info in metadata.storage_data.items()}
        metadata.state_dict_metadata = {"model.w": tensor}
        metadata.planner_data = {"model.w": ("model", "w")}
        metadata.storage_data = {
            MetadataIndex("model.w", offsets, number): infos[f"c{number}"] for number, (offsets, _) in enumerate(chunks)
        }

    return rewrite(path, join)


GRID = [([0, 0], [2, 3]), ([0, 3], [2, 5]), ([2, 0], [4, 3]), ([2, 3], [4, 5])]


def test_chunks_are_one_tensor(tmp_path: Path) -> None:
    heard = audit(cut(tmp_path / "c", GRID, [6, 8]))
    assert (heard.record["verdict"], heard.findings, heard.record["params"]) == ("ok", [], 48)


@pytest.mark.parametrize(
    ("chunks", "words"),
    [
        (GRID[:3], "leave a gap: 28 of 48"),
        ([*GRID, ([1, 1], [1, 1])], "overlap: 49 for 48"),
        ([*GRID[:3], ([2, 2], [4, 5])], "overlap, and leave a gap"),
        ([*GRID[:3], ([3, 3], [4, 5])], "reach beyond"),
        ([*GRID[:3], ([2], [20])], "other dimensions"),
    ],
)
def test_chunks_that_do_not_tile_are_named(tmp_path: Path, chunks: Any, words: str) -> None:
    heard = audit(cut(tmp_path / "c", chunks, [6, 8]))
    assert heard.record["verdict"] == "bad"
    assert words in heard.of("CK062")["message"]


def test_moments_in_chunks_are_held_against_each_other(tmp_path: Path) -> None:
    """Each part of a parameter has its moments in the same place."""
    parts = [([0, 0], [3, 8]), ([3, 0], [3, 8])]
    value: dict[str, Any] = {}
    for key in ("exp_avg", "exp_avg_sq"):
        value |= {f"{key}{number}": torch.ones(3, 8) for number in range(2)}
    options = {
        "optim.param_groups.0.params": ["w"],
        "optim.param_groups.0.betas": (0.9, 0.999),
        "optim.param_groups.0.amsgrad": False,
    }
    path = save({**value, **options, "optim.state.w.step": torch.tensor(5.0)}, tmp_path / "c")

    def join(metadata: Metadata) -> None:
        infos = {index.fqn: (index, info) for index, info in metadata.storage_data.items()}
        for key in ("exp_avg", "exp_avg_sq"):
            listed = [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in parts]
            name = f"optim.state.w.{key}"
            metadata.state_dict_metadata[name] = TensorStorageMetadata(
                TensorProperties(torch.float32), torch.Size([6, 8]), listed
            )
            for number, (offsets, _) in enumerate(parts):
                index, info = infos[f"{key}{number}"]
                del metadata.state_dict_metadata[f"{key}{number}"], metadata.storage_data[index]
                metadata.storage_data[MetadataIndex(name, offsets, number)] = info
        metadata.planner_data = None

    checkpoint = dcp.read(folder_of(rewrite(path, join)))
    places = [checkpoint.tensors[index].piece for pair in pairs(checkpoint) for index in (pair.first, pair.second)]
    assert places == [((0, 0), (6, 8))] * 2 + [((3, 0), (6, 8))] * 2
    (known,) = checkpoint.optimizers
    assert {key: state.numbers for key, state in known.states.items()} == {"w": {"step": 5.0}, "w[3, 0]": {"step": 5.0}}


def test_items_that_are_listed_nowhere_or_lie_nowhere_are_told(tmp_path: Path) -> None:
    path = save(state(), tmp_path / "c")

    def forget(metadata: Metadata) -> None:
        index = next(index for index in metadata.storage_data if index.fqn == "model.0.bias")
        del metadata.storage_data[index], metadata.state_dict_metadata["model.1.bias"]

    heard = audit(rewrite(path, forget))
    messages = [each["message"] for each in heard.findings if each["rule"] == "CK064"]
    assert any("model.0.bias" in message for message in messages)
    assert any("model.1.bias" in message for message in messages)
    assert heard.record["verdict"] == "bad"


def test_an_item_of_another_size_than_is_listed_is_told(tmp_path: Path) -> None:
    path = save({"a": torch.ones(4, 4), "b": torch.ones(8, 8, dtype=torch.bfloat16)}, tmp_path / "c")

    def swap(metadata: Metadata) -> None:
        one, other = (next(index for index in metadata.storage_data if index.fqn == name) for name in "ab")
        stored = metadata.storage_data
        stored[one], stored[other] = stored[other], stored[one]

    heard = audit(rewrite(path, swap))
    assert heard.record["verdict"] == "bad"
    messages = [each["message"] for each in heard.findings if each["rule"] == "CK064"]
    assert any("a is listed with 16 elements of float32" in message for message in messages)


@pytest.mark.parametrize("beta", [10**400, float("inf"), float("nan")], ids=["huge", "infinite", "nan"])
def test_options_that_no_training_has_end_nothing(tmp_path: Path, beta: float) -> None:
    value = state()
    for group in value["optim"]["param_groups"]:
        group["betas"] = (beta, 0.999)
    record = audit(save(value, tmp_path / "c")).record
    assert (record["step"], record["nan_weights"], record["bytes_checked"]) == (7, 0, record["bytes"])
    assert "CK030" not in record["findings"]


# --- the description -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize("pickler", [pickle.Pickler, pickle._Pickler])
def test_any_pickler_may_have_written_it(tmp_path: Path, protocol: int, pickler: Any) -> None:
    """What is the same object in two places is so after it was decoded, too."""
    path = cut(tmp_path / "c", GRID, [6, 8])
    metadata = metadata_of(path)
    listed = metadata.state_dict_metadata["model.w"]
    assert isinstance(listed, TensorStorageMetadata)
    for index, chunk in zip(metadata.storage_data, listed.chunks, strict=True):
        object.__setattr__(index, "offset", chunk.offsets)
    metadata.planner_data = {
        "model.w": ("model", "w"),
        "again": listed.chunks[0],
        "place": next(iter(metadata.storage_data)),
    }
    buffer = io.BytesIO()
    pickler(buffer, protocol).dump(metadata)
    write(path / ".metadata", buffer.getvalue())
    heard = audit(path)
    assert (heard.record["verdict"], heard.findings, heard.record["params"]) == ("ok", [], 48)


def on_many_ranks(path: Path, ranks: int, tensors: int) -> Path:
    """Write the .metadata of tensors of which every rank has a share."""
    metadata = Metadata({}, None, {})
    for number in range(tensors):
        name = f"optim.state.layers.{number}.attention.wq.weight.exp_avg"
        chunks = [ChunkStorageMetadata(torch.Size([64 * rank, 0]), torch.Size([64, 4096])) for rank in range(ranks)]
        whole = TensorStorageMetadata(TensorProperties(torch.float32), torch.Size([64 * ranks, 4096]), chunks)
        metadata.state_dict_metadata[name] = whole
        for rank in range(ranks):
            place = _StorageInfo(f"__{rank}_0.distcp", number * 1_100_000, 1_050_000)
            metadata.storage_data[MetadataIndex(name, [64 * rank, 0], rank)] = place
    return write(path / ".metadata", pickle.dumps(metadata))


@pytest.mark.slow
def test_a_model_on_many_ranks_is_decoded(tmp_path: Path) -> None:
    """As for 8 billion parameters on 64 ranks."""
    ranks, tensors = 64, 900
    checkpoint = Checkpoint("dcp", 0)
    with Source(str(on_many_ranks(tmp_path, ranks, tensors))) as source:
        known = read_metadata(source, checkpoint, ".metadata")
    assert known is not None
    assert len(matched(known, checkpoint)) == ranks * tensors
    assert checkpoint.found == []


def test_memory_for_a_description_grows_with_it(tmp_path: Path) -> None:
    """That of 70 billion parameters on 128 ranks has 39 MB, and takes more than a small file may."""
    path = on_many_ranks(tmp_path, 64, 300)
    with Source(str(path)) as source:
        decoded = Compact(source, 0, source.size, budget=4 << 20).decode()
        assert decoded.stop == source.size
        with pytest.raises(TooLargeError):
            Machine(source, 0, source.size, budget=4 << 20).decode()


# --- other forms ----------------------------------------------------------------------------------------------------


def test_items_may_be_safetensors(tmp_path: Path) -> None:
    value = state()
    path = save(value, tmp_path / "c", serialization_format=SerializationFormat.SAFETENSORS)
    heard = audit(path)
    assert (heard.record["verdict"], heard.rules()) == ("ok", {"CK028"})
    assert heard.record["params"] == floats(value["model"].values())
    assert heard.record["step"] == 7
    value["model"]["1.weight"][3, 4] = torch.nan
    heard = audit(save(value, tmp_path / "d", serialization_format=SerializationFormat.SAFETENSORS))
    assert "model.1.weight" in heard.of("CK001")["message"]


def test_compressed_items_are_told_unchecked(tmp_path: Path) -> None:
    def compress(metadata: Metadata) -> None:
        for info in metadata.storage_data.values():
            info.transform_descriptors = ["stream.zstd/1"]

    heard = audit(rewrite(save(state(), tmp_path / "c"), compress))
    assert heard.record["verdict"] == "unsupported"
    assert "stream.zstd/1" in heard.of("CK128")["message"]
    assert heard.record["bytes_checked"] == 0
    assert heard.record["unchecked"]


def test_formats_that_are_not_known_are_told_unchecked(tmp_path: Path) -> None:
    value = {"w": torch.ones(4), "q": torch.quantize_per_tensor(torch.ones(8), 0.1, 0, torch.qint8)}
    heard = audit(save(value, tmp_path / "c"))
    assert heard.rules(above_info=True) == set()
    assert [each["tensor"] for each in heard.record["unchecked"]] == ["q"]


@pytest.mark.parametrize("name", [None, ".metadata.tmp"])
def test_a_fresh_folder_without_metadata_is_in_progress(tmp_path: Path, name: str | None) -> None:
    path = many_files(tmp_path)
    (path / ".metadata").rename(path / name) if name else (path / ".metadata").unlink()
    for file in path.iterdir():
        file.touch()
    heard = audit(path)
    assert (heard.record["verdict"], heard.rules()) == ("in_progress", {"CK026"})


def test_files_that_changed_places_are_told_once_each(tmp_path: Path) -> None:
    folder = save(state(), tmp_path / "c", thread_count=2)
    one, other = sorted(folder.glob("*.distcp"))
    data = one.read_bytes(), other.read_bytes()
    write(one, data[1])
    write(other, data[0])
    heard = audit(folder)
    told = [
        each for each in heard.findings if each["rule"] in ("CK064", "CK025", "CK020") and each["severity"] == "bad"
    ]
    assert len(told) == 2
    for each, file in zip(told, (one, other), strict=True):
        assert f"items of {file.name} can't be read where .metadata has them, first: " in each["message"]
        assert each["data"]["file"] == str(file)
