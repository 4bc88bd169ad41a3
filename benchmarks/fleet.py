"""A trivial payload on a fleet, against the least asyncssh program that does the same: `python -m benchmarks.fleet`.

Brings up the test lab (root, sshd, LXC), then measures whole processes turn by turn.
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

_PAYLOAD = '''\
# /// payload
# name = "trivial"
# version = "1.0.0"
# description = "Say which Python runs here."
# ///
import sys


def run(ctx):
    """Emit one record."""
    ctx.emit({"kind": "trivial", "python": sys.version.split()[0]})
'''


def compare(hosts: int, guests: int, times: int) -> dict[str, Any]:
    """Measure both programs on a fresh lab."""
    with tempfile.TemporaryDirectory(prefix="remoterun-bench-") as folder:
        lab = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.support.lab",
                "up",
                f"--hosts={hosts}",
                f"--guests={guests}",
                f"--dir={folder}",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert lab.stdin is not None
        assert lab.stdout is not None
        try:
            if lab.stdout.readline().strip() != "ready":
                raise RuntimeError("the lab did not come up")
            floor, ours = _measure(Path(folder), times)
        finally:
            lab.stdin.close()
            lab.wait(60)
    return _report(f"{hosts} x {guests}", median(floor), median(ours))


def _measure(folder: Path, times: int) -> tuple[list[Sample], list[Sample]]:
    payloads = folder / "payloads"
    payloads.mkdir()
    (payloads / "trivial.py").write_text(_PAYLOAD, "utf-8")
    hosts = folder / "hosts.json"
    hosts.write_text(json.dumps(_hosts(folder)), "utf-8")
    python = sys.executable
    floor = [python, "-m", "benchmarks.floor", str(hosts)]
    ours = [python, "-m", "remoterun", "play", "trivial", "--project", str(folder), "--output", "json"]
    return run_pairs(floor, ours, times=times)


def _hosts(folder: Path) -> list[dict[str, Any]]:
    """Say the lab's hosts in the words of `benchmarks.floor`."""
    lab = json.loads((folder / "lab.json").read_text("utf-8"))
    return [
        {
            **{name: host[name] for name in ("address", "port", "identity_file", "known_hosts")},
            "guests": [
                {"ctid": ctid, "python": f"{guest['venv']}/bin/python"} for ctid, guest in host["guests"].items()
            ],
        }
        for host in lab.values()
    ]


def _report(name: str, floor: Sample, ours: Sample) -> dict[str, Any]:
    print(f"{name} guests: a trivial payload, medians")
    print(line("minimal asyncssh program", floor))
    print(line("remoterun", ours))
    result = {
        "fleet": name,
        "wall_ratio": round(ours.wall_s / floor.wall_s, 2),
        "wall_more_s": round(ours.wall_s - floor.wall_s, 3),
        "cpu_ratio": round(ours.cpu_s / floor.cpu_s, 2),
        "rss_mib": round(ours.rss_mib, 1),
    }
    print(json.dumps(result))
    return result


def main() -> None:
    """Measure one guest and forty."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    compare(1, 1, options.times)
    compare(10, 4, options.times)


if __name__ == "__main__":
    main()
