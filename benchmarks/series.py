"""check-ckpt on a series of checkpoints, read for the first time and again unchanged: `python -m benchmarks.series`.

Whole processes from the payload's pack, with a home of their own. Bytes are those of every read that a process made,
its own code among them; the files are in the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import Sample, line, median, run_once
from remoterun.catalog import Catalog

# What was changed a moment ago is not remembered.
_SETTLED_S = 4.0

_MAKE = """
import sys, torch
folder, count, layers, width = sys.argv[1], *map(int, sys.argv[2:])
model = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(layers))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(1, count + 1):
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    state = {"model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict()}
    torch.save({**state, "global_step": step, "epoch": 0}, f"{folder}/step_{step}.pt")
"""

_OURS = """
import json, sys
sys.path.insert(0, sys.argv[1])
import check_ckpt
class Context:
    params = json.loads(sys.argv[2])
    verdicts = {}
    def emit(self, record):
        if record["kind"] == "summary": self.verdicts = record["verdicts"]
    def finding(self, *args, **data): pass
    def progress(self, *args): pass
    def log(self, text): print(text, file=sys.stderr)
context = Context()
check_ckpt.run(context)
with open("/proc/self/io") as file:
    print(json.dumps({"verdicts": context.verdicts, "read": int(file.readline().split()[1])}))
"""


def compare(count: int, layers: int, width: int, times: int) -> list[dict[str, Any]]:
    """Make a series, audit it in every way, and clean up."""
    with tempfile.TemporaryDirectory(prefix="remoterun-bench-") as place:
        home, folder, pack = Path(place) / "home", Path(place) / "checkpoints", Path(place) / "pack.zip"
        home.mkdir()
        folder.mkdir()
        pack.write_bytes(Catalog.load(None).find("check-ckpt").pack().data)
        subprocess.run([sys.executable, "-c", _MAKE, folder, str(count), str(layers), str(width)], check=True)
        time.sleep(_SETTLED_S)
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(
            f"check-ckpt on {count} checkpoints of {8 * layers} tensors, {size / 1e6:.0f} MB in all, medians of {times}"
        )
        environment = {**os.environ, "HOME": str(home)}
        ways = {
            "values, nothing known": {"cache": False},
            "headers, nothing known": {"cache": False, "deep": False},
            "values, unchanged": {},
        }
        results = []
        for name, params in ways.items():
            argv = [sys.executable, "-E", "-c", _OURS, str(pack), json.dumps({"root": str(folder), **params})]
            # The first fills the cache of those that have one.
            done = [subprocess.run(argv, env=environment, capture_output=True, check=True) for _ in range(2)][-1]
            samples = [run_once(argv, env=environment) for _ in range(times)]
            results.append(_report(name, json.loads(done.stdout), median(samples)))
        return results


def _report(name: str, told: dict[str, Any], sample: Sample) -> dict[str, Any]:
    print(line(name, sample) + f"  {told['read'] / 1e6:9.2f} MB read")
    result = {"series": name, "wall_s": round(sample.wall_s, 3), "cpu_s": round(sample.cpu_s, 3), **told}
    print(json.dumps(result))
    return result


def main() -> None:
    """Measure 200 checkpoints of a few hundred tensors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--layers", type=int, default=50)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--times", type=int, default=3)
    options, _ = parser.parse_known_args()
    compare(options.count, options.layers, options.width, options.times)


if __name__ == "__main__":
    main()
