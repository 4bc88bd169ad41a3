"""Pin the built-in payloads as they are: `python -m tests.support.relock [NAME...]`.

Versions that are not in the lock are added. One that is there changes only when its payload is named, which is right
only for a version that nobody has got yet.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from remoterun.catalog import Catalog

LOCK = Path(__file__).parents[1] / "data/payload-lock.json"


def main(names: list[str]) -> None:
    """Write the lock anew."""
    lock: dict[str, dict[str, str]] = json.loads(LOCK.read_text(encoding="utf-8")) if LOCK.exists() else {}
    for info in Catalog.load(None).payloads:
        if info.origin == "built-in":
            versions = lock.setdefault(info.name, {})
            if info.name in names or info.version not in versions:
                versions[info.version] = info.pack().sha256
    LOCK.write_text(json.dumps(lock, indent=2, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
