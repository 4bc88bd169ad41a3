"""File systems that read past the page cache in ways of their own, in files of which the tests are the only users."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.programs import lacking, needed
from tests.unit.payloads.check_ckpt.test_scan_cache import leave, read_all, resident

if TYPE_CHECKING:
    from collections.abc import Iterator

_SIZE = 5_000_333


@pytest.fixture(params=["", "data=journal"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Mount an ext4 file system; with `data=journal` it takes O_DIRECT and goes through the cache all the same."""
    needed("mkfs.ext4")
    if os.geteuid() != 0:
        lacking("only root may mount a file system")
    image, folder = tmp_path / "image", tmp_path / "disk"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    options = ",".join(["loop", *filter(None, [request.param])])
    mounted = subprocess.run(["mount", "-o", options, image, folder], capture_output=True, text=True, check=False)
    if mounted.returncode:
        lacking(f"no file system can be mounted from a file: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_the_cache_is_left_as_it_was_whatever_the_file_system_does(disk: Path) -> None:
    data = random.Random(1).randbytes(_SIZE)
    path = disk / "checkpoint"
    path.write_bytes(data)
    leave(path, (300, 400))
    before = resident(path)
    assert read_all(path) == data
    assert resident(path) == before
