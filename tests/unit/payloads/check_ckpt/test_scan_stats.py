"""What one pass tells of every tensor, against torch: by any engine, wherever it lies and however it was cut."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file

from remoterun.payloads.check_ckpt.dtypes import DTYPES, Dtype
from remoterun.payloads.check_ckpt.scan.engine import Engine
from remoterun.payloads.check_ckpt.scan.plan import TASK
from remoterun.payloads.check_ckpt.scan.stats import Stats
from tests.unit.payloads.check_ckpt.scan_support import CHUNK, bytes_of, digest_of, scan
from tests.unit.payloads.check_ckpt.support import ENGINES, audit, place_of, save, settle

if TYPE_CHECKING:
    import random
    from pathlib import Path

pytestmark = pytest.mark.torch

FORMATS = ("float64", "float32", "float16", "bfloat16", "complex128", "complex64", "complex32")
NARROW = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")


def values(count: int, seed: int) -> torch.Tensor:
    """Draw numbers of many sizes, zeros and negative zeros among them."""
    torch.manual_seed(seed)
    drawn = torch.randn(count, dtype=torch.float64) * torch.logspace(-6, 0, count, dtype=torch.float64)
    drawn[::7] = 0.0
    drawn[3::14] = -0.0
    return drawn


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return all parts of a tensor's elements as doubles, one row per element."""
    wide = tensor.float() if tensor.element_size() == 1 else tensor
    if wide.is_complex():
        return torch.view_as_real(wide.to(torch.complex128)).reshape(-1, 2)
    return wide.double().reshape(-1, 1)


def check(stats: Stats, tensor: torch.Tensor) -> None:
    """Hold statistics against those that torch takes of the same elements."""
    parts = whole(tensor)
    finite = parts[torch.isfinite(parts).all(1)]
    normal = 0.0 if tensor.dtype == torch.float8_e8m0fnu else torch.finfo(tensor.dtype).smallest_normal
    small = (finite != 0) & (finite.abs() < normal)
    assert stats.elements == tensor.numel()
    assert stats.digest == digest_of(bytes_of(tensor))
    assert stats.zeros == int((finite == 0).all(1).sum())
    assert stats.subnormals == int(small.any(1).sum())
    if finite.numel():
        assert (stats.minimum, stats.maximum) == (float(finite.min()), float(finite.max()))
        assert stats.squares is not None
        assert math.isclose(stats.squares, float(finite.square().sum()), rel_tol=2e-6)
        assert stats.negative is bool((finite < 0).any())
    else:
        assert (stats.minimum, stats.maximum, stats.squares, stats.negative) == (None, None, None, False)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_number_format(tmp_path: Path, engine: str) -> None:
    drawn = values(3000, 1)
    tensors = {name: drawn.to(getattr(torch, name)) for name in (*FORMATS, *NARROW)}
    tensors["scalar"] = torch.tensor(-1.5)
    tensors["nothing finite"] = torch.full((20,), math.nan)
    tensors["some finite"] = torch.tensor([math.nan, 1.0, -math.inf, -2.0, 0.0] * 20)
    tensors["half finite"] = torch.complex(tensors["some finite"], torch.ones(100))
    seen = scan(save(tensors, tmp_path / "c.pt"), engine=engine)
    for name, tensor in tensors.items():
        check(seen.stats(name), tensor)
    assert set(seen.scanned.stats) == set(range(len(tensors)))


@pytest.mark.parametrize("engine", ENGINES)
def test_views_and_shared_storages(tmp_path: Path, engine: str) -> None:
    """A tensor's bytes are taken in the order of the file, and those that another has already are not taken again."""
    base = values(6000, 2).float().reshape(60, 100)
    tensors = {
        "column": base[:40, 3],
        "corner": base[5:25, 10:60],
        "rows": base[40:50],
        "tied": base[40:50],
        "transposed": values(600, 3).half().reshape(20, 30).t(),
        "expanded": values(10, 4).bfloat16().expand(7, 10),
    }
    seen = scan(save(tensors, tmp_path / "c.pt"), engine=engine)
    check(seen.stats("column"), base[:40, 3])
    check(seen.stats("rows"), base[40:50])
    check(seen.stats("transposed"), tensors["transposed"].t())
    check(seen.stats("expanded"), tensors["expanded"][0])
    check(seen.stats("corner"), base[5:25, 10:60])
    assert seen.index("tied") not in seen.scanned.stats


@pytest.mark.parametrize("engine", ENGINES)
def test_spans_that_cross_chunks(tmp_path: Path, engine: str) -> None:
    """Every other row is a tensor's, the rest another's; both go on over several chunks."""
    base = values(300_000, 5).float().reshape(-1, 100)
    seen = scan(save({"even": base[::2], "odd": base[1::2]}, tmp_path / "c.pt"), engine=engine)
    check(seen.stats("even"), base[::2])
    check(seen.stats("odd"), base[1::2])


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, torch.Tensor], Path]:
    """Save a tensor that is several pieces of work, and small ones on both sides of it."""
    torch.manual_seed(6)
    tensors = {"a": torch.randn(1000), "big": torch.randn(9_000_000) * 0.02, "z": torch.randn(77, 13)}
    tensors["big"][5_000_000:5_100_000] = 0.0
    tensors["big"][8_999_999] = math.inf
    return tensors, save(tensors, tmp_path_factory.mktemp("large") / "c.pt")


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("chunk", [CHUNK, Engine.chunk])
def test_pieces_done_anywhere_add_up(large: tuple[dict[str, torch.Tensor], Path], workers: int, chunk: int) -> None:
    tensors, path = large
    steps: list[int] = []
    seen = scan(path, workers=workers, chunk=chunk, on_bytes=steps.append)
    for name, tensor in tensors.items():
        check(seen.stats(name), tensor)
    counts = seen.scanned.counts[seen.index("big")]
    data, size = place_of(path, "data/1")
    assert counts == (0, 1, 0, data + size - 4)
    assert sum(steps) == sum(region.size for region in seen.checkpoint.regions)
    assert len(steps) > 2
    zeros = seen.stats("big")
    start, stop = -(-(data + 20_000_000) // 4096) * 4096, (data + 20_400_000) // 4096 * 4096
    assert (zeros.zero_runs, zeros.zero_pages) == (((start, stop),), (stop - start) // 4096)


def test_the_standard_library_takes_small_tensors_first(large: tuple[dict[str, torch.Tensor], Path]) -> None:
    """Of what is too much for it, the checksums, counts, zero pages and signs are known all the same."""
    tensors, path = large
    seen, numpy = scan(path, engine="stdlib", workers=2), scan(path)
    check(seen.stats("a"), tensors["a"])
    check(seen.stats("z"), tensors["z"])
    assert seen.stats("big") == numpy.stats("big")._replace(
        zeros=None, subnormals=None, minimum=None, maximum=None, squares=None
    )
    assert seen.scanned.counts == numpy.scanned.counts
    assert seen.scanned.crcs == numpy.scanned.crcs


@pytest.mark.parametrize("engine", ENGINES)
def test_what_was_looked_through_only_is_said(tmp_path: Path, engine: str) -> None:
    """Silence about sizes and moments is no proof there; the verdict, which is about what was looked at, stays ok."""
    model = torch.nn.Sequential(torch.nn.Linear(900, 1200), torch.nn.Linear(1200, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 900)).square().mean().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "global_step": 1}
    heard = audit(save(state, tmp_path / "step_1.pt"), engine=engine)
    assert heard.record["verdict"] == "ok"
    if engine == "numpy":
        assert heard.rules() == set()
        return
    (found,) = heard.findings
    assert (found["rule"], found["severity"]) == ("CK126", "info")
    assert found["message"] == "in 3 tensors, only NaN, infinities and pages of zeros were looked for"
    large = ["model.0.weight", "optimizer.state.0.exp_avg", "optimizer.state.0.exp_avg_sq"]
    assert found["data"]["tensors"] == large


def test_a_digest_does_not_depend_on_the_file(tmp_path: Path, rng: random.Random) -> None:
    """One is in a zip, the others in safetensors files behind tensors of odd sizes; none is in a region of its own."""
    tensor = values(150_000, 7).float()
    digests = {scan(save({"w": tensor}, tmp_path / "c.pt")).stats("w").digest}
    for number in range(3):
        before = torch.zeros(rng.randrange(300_000), dtype=torch.uint8)
        save_file({"a": before, "w": tensor}, tmp_path / f"{number}.safetensors")
        digests.add(scan(settle(tmp_path / f"{number}.safetensors"), engine=ENGINES[number % 2]).stats("w").digest)
    both = torch.cat([torch.ones(33), tensor])
    digests.add(scan(save({"a": both[:33], "w": both[33:]}, tmp_path / "both.pt")).stats("w").digest)
    assert digests == {digest_of(bytes_of(tensor))}


@pytest.mark.parametrize("engine", ENGINES)
def test_pages_of_zeros_are_those_of_the_file(tmp_path: Path, engine: str, rng: random.Random) -> None:
    tensor = values(400_000, 8).abs().add(1).float()
    path = save({"w": tensor}, tmp_path / "c.pt")
    data, size = place_of(path, "data/0")
    first, last = -(-data // 4096), (data + size) // 4096
    zeroed = sorted(rng.sample(range(first, last), 5))
    runs = [range(page, page + 2) for page in zeroed]
    # One is cut by where chunks end.
    runs += [
        range((data + CHUNK) // 4096 - 1, (data + CHUNK) // 4096 + 2),
        range(first, first + 1),
        range(last - 1, last),
    ]
    pages = sorted({page for run in runs for page in run if page < last})
    with path.open("r+b") as file:
        for page in pages:
            file.seek(page * 4096)
            file.write(bytes(4096))
        # Not a whole page, and a page that is zero but for its last byte.
        file.seek((last - 4) * 4096 + 1)
        file.write(bytes(4095) if last - 4 not in pages else b"")
    stats = scan(settle(path), engine=engine).stats("w")
    content = path.read_bytes()
    pages = [page for page in range(first, last) if not any(content[page * 4096 : page * 4096 + 4096])]
    merged: list[tuple[int, int]] = []
    for page in pages:
        if merged and merged[-1][1] == page * 4096:
            merged[-1] = (merged[-1][0], page * 4096 + 4096)
        else:
            merged.append((page * 4096, page * 4096 + 4096))
    assert (stats.zero_pages, stats.pages) == (len(pages), last - first)
    assert list(stats.zero_runs) == merged[:8]


def test_only_the_first_runs_of_zeros_are_named(tmp_path: Path) -> None:
    tensor = torch.ones(200_000)
    path = save({"w": tensor}, tmp_path / "c.pt")
    first = -(-place_of(path, "data/0")[0] // 4096)
    with path.open("r+b") as file:
        for page in range(first, first + 40, 2):
            file.seek(page * 4096)
            file.write(bytes(4096))
    stats = scan(settle(path)).stats("w")
    assert stats.zero_pages == 20
    assert stats.zero_runs == tuple((page * 4096, page * 4096 + 4096) for page in range(first, first + 16, 2))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("name", "odd"), [(name, "nan") for name in (*FORMATS, *NARROW)] + [(name, "inf") for name in (*FORMATS, NARROW[1])]
)
def test_wherever_it_is_not_finite(tmp_path: Path, engine: str, odd: str, name: str, rng: random.Random) -> None:
    """In the first and the last element, at both sides of every place where a chunk may end, and in a scalar."""
    dtype = DTYPES[name]
    pattern = {"nan": _nan(dtype), "inf": dtype.inf or dtype.exponent.to_bytes(dtype.lane, "little")}[odd]
    data = bytearray(bytes_of(torch.ones(600_000 // dtype.size).to(getattr(torch, name))))
    edges = range(CHUNK - 8192, CHUNK + 1, 2048)
    places = {0, len(data) - dtype.lane, *edges, *(edge - dtype.lane for edge in edges)}
    places |= {rng.randrange(len(data) // dtype.lane) * dtype.lane for _ in range(9)}
    for place in places if rng.random() < 0.5 else places - {0}:
        data[place : place + dtype.lane] = pattern
    tensor = torch.frombuffer(data, dtype=getattr(torch, name))
    seen = scan(save({"w": tensor, "s": tensor[-1:].clone().reshape(())}, tmp_path / "c.pt"), engine=engine)
    wrong = (~torch.isfinite(whole(tensor)).all(1)).nonzero().flatten()
    for tensor_name, count, first in (("w", len(wrong), int(wrong[0])), ("s", 1, 0)):
        index = seen.index(tensor_name)
        counts = seen.scanned.counts[index]
        region = seen.checkpoint.regions[seen.checkpoint.tensors[index].region]
        assert (counts.nan, counts.inf) == ((count, 0) if odd == "nan" else (0, count))
        assert counts.first == region.offset + first * dtype.size


def _nan(dtype: Dtype) -> bytes:
    return dtype.nan[-1:] or b"\xff" * dtype.lane


def test_formats_that_share_bytes_have_a_digest(tmp_path: Path) -> None:
    packed = torch.arange(200, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    stats = scan(save({"w": packed}, tmp_path / "c.pt")).stats("w")
    assert stats == Stats(200, digest=digest_of(bytes(range(200))))


def test_both_engines_tell_the_same_of_everything(tmp_path: Path) -> None:
    tensors = {name: values(5000, number).to(getattr(torch, name)) for number, name in enumerate((*FORMATS, *NARROW))}
    path = save(tensors, tmp_path / "c.pt")
    stdlib, numpy = (scan(path, engine=engine) for engine in ENGINES)
    for one, other in itertools.zip_longest(stdlib.scanned.stats.items(), numpy.scanned.stats.items()):
        assert one[0] == other[0]
        assert one[1]._replace(squares=None) == other[1]._replace(squares=None)
        assert math.isclose(one[1].squares or 0, other[1].squares or 0, rel_tol=2e-6)


def test_a_sample_is_kept_wherever_chunks_and_pieces_of_work_end(tmp_path: Path) -> None:
    """Also of a tensor whose rows lie apart, of which a place is one among its own bytes."""
    tensors = {"flat": values(TASK // 4 + 9999, 1).float(), "apart": values(60_000, 2).float().view(600, 100)[:, :90]}
    path = save(tensors, tmp_path / "c.pt")
    index = scan(path).index
    for at, width in ((0, 1), (CHUNK - 3, 7), (TASK - 3, 7), (TASK, 30_000), (CHUNK // 2, CHUNK)):
        data = {name: bytes_of(tensor) for name, tensor in tensors.items()}
        starts = {name: min(at, len(data[name]) - width) for name in data if width < len(data[name])}
        seen = scan(path, samples={index(name): (start, start + width) for name, start in starts.items()})
        for name, start in starts.items():
            assert seen.stats(name).sample == data[name][start : start + width]
