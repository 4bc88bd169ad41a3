"""Released versions of built-in payloads never change: the lock pins the hash of each."""

from __future__ import annotations

import json

from remoterun.catalog import Catalog
from tests.support.relock import LOCK

WHAT_TO_DO = (
    "{name} {version} was released with other code, and a released version's bytes never change. "
    "Give it a higher version in remoterun/payloads/{package}/payload.toml, then run `python -m tests.support.relock`."
)


def test_released_versions_have_not_changed() -> None:
    lock = json.loads(LOCK.read_text(encoding="utf-8"))
    assert "probe" in lock
    built_in = [info for info in Catalog.load(None).payloads if info.origin == "built-in"]
    changed = [info for info in built_in if lock.get(info.name, {}).get(info.version) not in (None, info.pack().sha256)]
    assert not changed, "\n".join(
        WHAT_TO_DO.format(name=info.name, version=info.version, package=info.package) for info in changed
    )
