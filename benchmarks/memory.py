"""What the controller takes in memory while many targets say much: `python -m benchmarks.memory`.

All targets are this machine, without SSH; the controller is a process of its own, and only its peak is told. What they
say is once the output of a program, once the records of a payload.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import line, run_once

_LINE = "0123456789" * 7
_PAYLOAD = '''\
# /// payload
# name = "talkative"
# version = "1.0.0"
# description = "Emit many records."
# [params.megabytes]
# type = "int"
# ///


def run(ctx):
    """Emit records of ten thousand bytes."""
    for number in range(ctx.params["megabytes"] * 100):
        values = {"layer_%d.weight" % layer: number * 0.37 + layer for layer in range(240)}
        ctx.emit({"kind": "norms", "step": number, "verdict": "ok", "values": values, "note": "n" * 1300})
'''


def compare(targets: int, megabytes: int, *, records: bool, output: str = "jsonl") -> dict[str, Any]:
    """Measure one run in which so many targets say so much each."""
    with tempfile.TemporaryDirectory(prefix="remoterun-bench-") as folder:
        host = f"{{transport: local, python: {json.dumps(sys.executable)}, self: true}}"
        hosts = "".join(f"  here{number}: {host}\n" for number in range(targets))
        Path(folder, "inventory.yaml").write_text(f"hosts:\n{hosts}", "utf-8")
        Path(folder, "payloads").mkdir()
        Path(folder, "payloads", "talkative.py").write_text(_PAYLOAD, "utf-8")
        how = ["--project", folder, "--on", "all", "--output", output]
        says = ["/bin/sh", "-c", f"yes {_LINE} | head -c {megabytes}000000"]
        words = (
            ["play", "talkative", *how, "--set", f"megabytes={megabytes}"] if records else ["exec", *how, "--", *says]
        )
        # Its history is no part of this.
        env = {**os.environ, "XDG_STATE_HOME": folder}
        sample = run_once([sys.executable, "-m", "remoterun", *words], env=env)
    print(f"{targets} targets that say {megabytes} MB each, as {'records' if records else 'output'} ({output})")
    print(line("remoterun", sample))
    result = {
        "targets": targets,
        "mb_each": megabytes,
        "of": "records" if records else "output",
        "mb_per_s": round(targets * megabytes / sample.wall_s, 1),
        "rss_mib": round(sample.rss_mib, 1),
    }
    print(json.dumps(result))
    return result


def main() -> None:
    """Measure a fleet of talkative targets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", type=int, default=200)
    parser.add_argument("--megabytes", type=int, default=50)
    parser.add_argument("--record-megabytes", type=int, default=5, help="with 50, about 30 GB of disk are needed")
    parser.add_argument("--of", choices=["output", "records", "both"], default="both")
    parser.add_argument("--output", choices=["table", "json", "jsonl"], default="json", help="of records")
    options = parser.parse_args()
    if options.of != "records":
        compare(options.targets, options.megabytes, records=False)
    if options.of != "output":
        compare(options.targets, options.record_megabytes, records=True, output=options.output)


if __name__ == "__main__":
    main()
