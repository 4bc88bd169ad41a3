"""check-ckpt against the usual script, on an AdamW checkpoint in the page cache: `python -m benchmarks.check_ckpt`.

Whole processes, turn by turn. The payload starts as it does on a target: from its pack, a zip of sources on sys.path.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import Sample, line, median, run_pairs
from remoterun.catalog import Catalog

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

_OURS = """
import json, sys
pack, params = sys.argv[1], json.loads(sys.argv[2])
sys.path.insert(0, pack)
import check_ckpt
class Context:
    def emit(self, record): print(json.dumps(record))
    def finding(self, *args, **data): print(args, data)
    def progress(self, *args): pass
    def log(self, text): print(text)
context = Context()
context.params = params
check_ckpt.run(context)
"""


def compare(megabytes: int, times: int) -> list[dict[str, Any]]:
    """Make a checkpoint, measure every way to check it, and clean up."""
    with tempfile.TemporaryDirectory(prefix="remoterun-bench-") as folder:
        path, pack = Path(folder) / "checkpoint.pt", Path(folder) / "pack.zip"
        pack.write_bytes(Catalog.load(None).find("check-ckpt").pack().data)
        # In a process of its own: a child's peak memory would otherwise count this one's.
        subprocess.run([sys.executable, "-c", _MAKE, str(path), str(megabytes)], check=True)
        size = path.stat().st_size
        print(f"check-ckpt on {size / 1e9:.2f} GB of AdamW checkpoint, warm, medians of {times}")
        results = []
        for engine in ("numpy", "stdlib"):
            for workers in (1, 2):
                params = {"root": str(path), "depth": 0, "engine": engine, "workers": workers}
                ours = [sys.executable, "-E", "-c", _OURS, str(pack), json.dumps(params)]
                usual, mine = run_pairs([sys.executable, "-c", _USUAL, str(path)], ours, times=times)
                results.append(_report(f"{engine}, {workers} worker(s)", size, median(usual), median(mine)))
        return results


def _report(name: str, size: int, usual: Sample, ours: Sample) -> dict[str, Any]:
    print(line("the usual torch script", usual))
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


def main() -> None:
    """Measure one gigabyte."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--times", type=int, default=5)
    options, _ = parser.parse_known_args()
    compare(options.megabytes, options.times)


if __name__ == "__main__":
    main()
