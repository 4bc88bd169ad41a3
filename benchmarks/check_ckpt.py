"""check-ckpt against the usual script and against the disk: `python -m benchmarks.check_ckpt`.

Whole processes, turn by turn. The payload starts as it does on a target, in its runtime, from a pack: of sources in
the first run there, with their compiled code from the second on.
"""

from __future__ import annotations
import __future__

import argparse
import json
import marshal
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from benchmarks.measure import Sample, line, median, run_once, run_turns
from remoterun.catalog import Catalog
from remoterun.remote.bundle import program
from remoterun.remote.compiled import with_code
from remoterun.remote.process import START

_PAYLOADS = Path(__file__).parents[1] / "remoterun/payloads"

_MAKE = """
import sys, torch
path, megabytes = sys.argv[1], int(sys.argv[2])
layers = max(1, round(megabytes * 1e6 / (3 * 4 * 1024 * 1025)))
model = torch.nn.ModuleList(torch.nn.Linear(1024, 1024) for _ in range(layers))
optimizer = torch.optim.AdamW(model.parameters())
for parameter in model.parameters():
    parameter.grad = torch.randn_like(parameter)
optimizer.step()
state = {"model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict()}
torch.save({**state, "global_step": 2000, "epoch": 0}, path)
"""

_USUAL = """
import sys, torch
checkpoint = torch.load(sys.argv[1], map_location="cpu", weights_only=False)
weights = checkpoint["model_state_dict"].values()
states = [value for state in checkpoint["optimizer_state_dict"]["state"].values() for value in state.values()]
for name, tensors in (("weights", weights), ("optimizer", states)):
    nan = sum(int(torch.isnan(tensor).sum()) for tensor in tensors)
    inf = sum(int(torch.isinf(tensor).sum()) for tensor in tensors)
    print(name, sum(tensor.numel() for tensor in tensors), "nan", nan, "inf", inf)
print(checkpoint["global_step"], checkpoint["epoch"])
"""

# The least that reads everything, takes its CRC-32 and one dot product: no program that checks values is faster.
_FLOOR = """
import os, sys
import mmap
path, workers = sys.argv[2], int(sys.argv[3])
sys.path[:0] = sys.argv[4:]
# None of the payload but what is asked for: its packages without their own code.
for name in ("check_ckpt", "check_ckpt/scan"):
    package = sys.modules[name.replace("/", ".")] = type(sys)(name)
    package.__path__ = ["%s/%s" % (sys.argv[1], name)]
from check_ckpt.scan.crc import best_checksum
from check_ckpt.scan.numpy_core import load
numpy, update = load(), best_checksum().update
fd, size, step = os.open(path, os.O_RDONLY), os.path.getsize(path), 2 << 20
share = -(-size // step // workers) * step
def work(number):
    buffer = mmap.mmap(-1, step)
    view, array = memoryview(buffer), numpy.frombuffer(buffer, "<f4")
    crc, total = 0, 0.0
    for at in range(number * share, min(size, (number + 1) * share), step):
        count = os.preadv(fd, [view], at)
        crc = update(view[:count], crc)
        total += float(numpy.dot(array, array))
    print(crc, total)
children = [number for number in range(1, workers) if not os.fork()]
work(children[-1] if children else 0)
if not children:
    for _ in range(1, workers):
        os.wait()
"""

_READ = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
buffer = memoryview(mmap.mmap(-1, 4 << 20))
while os.readv(fd, [buffer]):
    pass
"""


class Bench:
    """Hold what all measurements use: a folder, the payload's packs, and libraries that not every target has."""

    def __init__(self, folder: Path, libraries: Path | None) -> None:
        self.folder = folder
        self.libraries = [str(libraries)] if libraries else []
        self.packs = {"sources": folder / "sources.zip", "compiled": folder / "compiled.zip"}
        sources = Catalog.load(None).find("check-ckpt").pack().data
        self.packs["sources"].write_bytes(sources)
        self.packs["compiled"].write_bytes(with_code(sources))
        self.start = folder / "start"
        self.start.write_text(START)

    def make(self, megabytes: int) -> Path:
        """Make a checkpoint in a process of its own: a child's peak memory would otherwise count this one's."""
        path = self.folder / f"{megabytes}.pt"
        if not path.exists():
            subprocess.run([sys.executable, "-c", _MAKE, str(path), str(megabytes)], check=True)
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
        return path

    def argv(self, path: Path, *, pack: str = "compiled", libraries: bool = False, **params: object) -> list[str]:
        """Return how to check one file."""
        settings = {"root": str(path), "depth": 0, "cache": False, **params}
        config: dict[str, object] = {
            "mode": "payload",
            "entry": "check_ckpt:start",
            "modules": None,
            "params": settings,
            "requires": [],
            "path": str(self.packs[pack]),
            "runtime": self._runtime(self.libraries if libraries else []),
            "token": bytes(8),
            # Records go where the output goes, which nobody reads.
            "fd": 1,
        }
        data = marshal.dumps(config)
        place = self.folder / f"config-{blake2b(data, digest_size=8).hexdigest()}"
        place.write_bytes(data)
        return [sys.executable, "-E", "-u", str(self.start), str(place)]

    @staticmethod
    def _runtime(libraries: Sequence[str]) -> bytes:
        source = zlib.decompress(program()).split(b"\0")[1] + f"\nsys.path[:0] = {libraries!r}".encode()
        flags = __future__.annotations.compiler_flag
        return marshal.dumps(compile(source, "<remoterun>", "exec", flags, dont_inherit=True))

    def floor(self, path: Path, *, workers: int, libraries: bool = False) -> list[str]:
        """Return how to read one file with the same libraries, and next to nothing else."""
        more = self.libraries if libraries else []
        words = ["-W", "ignore", "-E", "-c", _FLOOR, str(_PAYLOADS), str(path), str(workers), *more]
        return [sys.executable, *words]


def warm(bench: Bench, megabytes: int, times: int) -> list[dict[str, Any]]:
    """Compare with the usual script on a file in the page cache."""
    path = bench.make(megabytes)
    size = path.stat().st_size
    print(f"check-ckpt on {size / 1e9:.2f} GB of AdamW checkpoint, warm, medians of {times}")
    cases = [
        (engine, pack, False, workers) for engine in ("numpy", "stdlib") for pack in bench.packs for workers in (1, 2)
    ]
    if bench.libraries:
        cases[4:4] = [("numpy", pack, True, 2) for pack in bench.packs]
    names = [
        f"{engine}{' and isal' if libraries else ''}, {pack}, {workers} worker(s)"
        for engine, pack, libraries, workers in cases
    ]
    ours = [
        bench.argv(path, pack=pack, libraries=libraries, engine=engine, workers=workers)
        for engine, pack, libraries, workers in cases
    ]
    floors = [bench.floor(path, workers=workers) for workers in (1, 2)]
    usual, *mine = map(median, run_turns([[sys.executable, "-c", _USUAL, str(path)], *floors, *ours], times=times))
    print(line("the usual torch script", usual))
    for workers, sample in enumerate(mine[:2], 1):
        print(line(f"only read, CRC-32 and one dot product, {workers} worker(s)", sample))
    return [_report(name, size, usual, sample) for name, sample in zip(names, mine[2:], strict=True)]


def _report(name: str, size: int, usual: Sample, ours: Sample) -> dict[str, Any]:
    print(line(f"check-ckpt, {name}", ours))
    result = {
        "check_ckpt": name,
        "gigabytes": round(size / 1e9, 3),
        "times_faster": round(usual.wall_s / ours.wall_s, 1),
        "times_less_cpu": round(usual.cpu_s / ours.cpu_s, 1),
        "times_less_memory": round(usual.rss_mib / ours.rss_mib, 1),
        "rss_mib": round(ours.rss_mib, 1),
    }
    print(json.dumps(result))
    return result


def cold(bench: Bench, megabytes: int, times: int) -> dict[str, Any]:
    """Compare with a plain sequential read of the same file, each after it was dropped from the page cache."""
    path = bench.make(megabytes)
    size = path.stat().st_size
    programs = {"read": [sys.executable, "-E", "-c", _READ, str(path)], "check-ckpt": bench.argv(path, workers=2)}
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(times):
        for name, argv in programs.items():
            _drop(path)
            seconds[name].append(run_once(argv).wall_s)
    rates = {name: size / 1e9 / statistics.median(each) for name, each in seconds.items()}
    result = {
        "cold_gigabytes": round(size / 1e9, 2),
        "read_gb_per_s": round(rates["read"], 2),
        "check_gb_per_s": round(rates["check-ckpt"], 2),
        "of_plain_read": round(rates["check-ckpt"] / rates["read"], 2),
    }
    print(json.dumps(result))
    return result


def _drop(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def memory(bench: Bench, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Measure the memory of all processes together, whatever the size of the file."""
    results = []
    for megabytes in sizes:
        path = bench.make(megabytes)
        for engine in ("numpy", "stdlib"):
            resident, shared_out = _peak(bench.argv(path, engine=engine, workers=2))
            result = {
                "memory_of": engine,
                "gigabytes": round(path.stat().st_size / 1e9, 2),
                "rss_mib": round(resident, 1),
                "pss_mib": round(shared_out, 1),
            }
            print(json.dumps(result))
            results.append(result)
    return results


def _peak(argv: list[str]) -> tuple[float, float]:
    """Return the most memory of a program and its workers, in MiB: pages counted in each process, and once."""
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
    peak = (0.0, 0.0)
    while process.poll() is None:
        sums = [0.0, 0.0]
        for pid in (process.pid, *_children(process.pid)):
            try:
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            except OSError:
                continue
            for number, field in enumerate(("Rss:", "Pss:")):
                sums[number] += sum(int(row.split()[1]) for row in rollup.splitlines() if row.startswith(field)) / 1024
        peak = max(peak[0], sums[0]), max(peak[1], sums[1])
        time.sleep(0.01)
    if process.returncode:
        raise RuntimeError(f"check-ckpt ended with {process.returncode}")
    return peak


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def main() -> None:
    """Measure one gigabyte in the page cache, four on the disk, and memory at both and less."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=["warm", "cold", "memory"])
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--libraries", type=Path, help="a folder with isal, as pip install --target lays it out")
    options, _ = parser.parse_known_args()
    what = options.only or ["warm", "cold", "memory"]
    with tempfile.TemporaryDirectory(prefix="remoterun-bench-") as folder:
        bench = Bench(Path(folder), options.libraries)
        if "warm" in what:
            warm(bench, options.megabytes, options.times)
        if "cold" in what:
            cold(bench, 4 * options.megabytes, min(3, options.times))
        if "memory" in what:
            memory(bench, tuple(round(options.megabytes * share) for share in (0.3, 1, 4)))


if __name__ == "__main__":
    main()
