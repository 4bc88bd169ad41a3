"""What the controller takes in memory while many targets say much: `python -m benchmarks.memory`.

All targets are this machine, without SSH; the controller is a process of its own, and only its peak is told.
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


def compare(targets: int, megabytes: int, *, output: str = "jsonl") -> dict[str, Any]:
    """Measure one run of a program that says so much on each of so many targets."""
    with tempfile.TemporaryDirectory(prefix="remoterun-bench-") as folder:
        host = f"{{transport: local, python: {json.dumps(sys.executable)}, self: true}}"
        hosts = "".join(f"  here{number}: {host}\n" for number in range(targets))
        Path(folder, "inventory.yaml").write_text(f"hosts:\n{hosts}", "utf-8")
        says = ["/bin/sh", "-c", f"yes {_LINE} | head -c {megabytes}000000"]
        words = ["exec", "--project", folder, "--on", "all", "--output", output, "--", *says]
        # Its history is no part of this.
        env = {**os.environ, "XDG_STATE_HOME": folder}
        sample = run_once([sys.executable, "-m", "remoterun", *words], env=env)
    print(f"{targets} targets that say {megabytes} MB each")
    print(line("remoterun", sample))
    result = {
        "targets": targets,
        "mb_each": megabytes,
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
    options = parser.parse_args()
    compare(options.targets, options.megabytes)


if __name__ == "__main__":
    main()
