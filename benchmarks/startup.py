"""What starting the command line costs: `python -m benchmarks.startup`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.measure import line, median, run_pairs


def main() -> None:
    """Compare `remoterun --version` with a Python that does nothing."""
    python = sys.executable
    nothing, ours = run_pairs([python, "-c", "pass"], [str(Path(python).parent / "remoterun"), "--version"], times=15)
    floor, mine = median(nothing), median(ours)
    print("start-up, medians")
    print(line("python -c pass", floor))
    print(line("remoterun --version", mine))
    print(json.dumps({"version_more_s": round(mine.wall_s - floor.wall_s, 3)}))


if __name__ == "__main__":
    main()
