"""From a file of 60,000 tensors to the list of them, beside torch.load: `python -m benchmarks.pickle_reader`.

Both in processes of their own, turn by turn; what each needs to start is taken off.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import line, median, run_pairs

_MAKE = """
import sys, torch
path, tensors, old = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "legacy"
names = [f"model.layers.{index // 10}.block.{index % 10}.weight" for index in range(tensors // 4)]
weights = {name: torch.ones(2, 2) for name in names}
state = {
    index: {"step": torch.tensor(1.0), "exp_avg": torch.ones(2, 2), "exp_avg_sq": torch.ones(2, 2)}
    for index in range(tensors // 4)
}
groups = [{"lr": 1e-3, "betas": (0.9, 0.999), "params": list(range(tensors // 4))}]
saved = {"model_state_dict": weights, "optimizer_state_dict": {"state": state, "param_groups": groups}, "step": 5}
torch.save(saved, path, _use_new_zipfile_serialization=not old)
"""

_TORCH = """
import sys, torch
if len(sys.argv) > 1:
    torch.load(sys.argv[1], weights_only=True)
"""

_OURS = """
import gc, sys
sys.path.insert(0, sys.argv[1])
from check_ckpt.readers.reader import read_torch_file
from check_ckpt.source import Source
gc.disable()
if len(sys.argv) > 2:
    with Source(sys.argv[2]) as source:
        checkpoint = read_torch_file(source).checkpoint
    assert len(checkpoint.tensors) == int(sys.argv[3]), len(checkpoint.tensors)
"""

_PAYLOADS = Path(__file__).resolve().parents[1] / "remoterun" / "payloads"


def compare(tensors: int, times: int) -> list[dict[str, Any]]:
    """Make a file of each kind, measure, and clean up."""
    results = []
    with tempfile.TemporaryDirectory(prefix="remoterun-bench-") as folder:
        for kind in ("zip", "legacy"):
            path = Path(folder) / f"{kind}.pt"
            subprocess.run([sys.executable, "-c", _MAKE, str(path), str(tensors), kind], check=True)
            theirs = [sys.executable, "-c", _TORCH]
            ours = [sys.executable, "-E", "-c", _OURS, str(_PAYLOADS)]
            empty = [median(samples) for samples in run_pairs(theirs, ours, times=times)]
            full = [
                median(samples)
                for samples in run_pairs([*theirs, str(path)], [*ours, str(path), str(tensors)], times=times)
            ]
            print(f"{tensors:,} tensors in a torch file of the kind {kind}, medians of {times}")
            print(line("torch.load", full[0]))
            print(line("the list of tensors", full[1]))
            result = {
                "pickle_reader": kind,
                "tensors": tensors,
                "torch_s": round(full[0].wall_s - empty[0].wall_s, 2),
                "ours_s": round(full[1].wall_s - empty[1].wall_s, 2),
                "rss_mib": round(full[1].rss_mib, 1),
            }
            print(json.dumps(result))
            results.append(result)
    return results


def main() -> None:
    """Measure 60,000 tensors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensors", type=int, default=60_000)
    parser.add_argument("--times", type=int, default=3)
    options, _ = parser.parse_known_args()
    compare(options.tensors, options.times)


if __name__ == "__main__":
    main()
