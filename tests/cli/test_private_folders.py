"""What is kept between commands is nobody else's, whatever umask a command is started with."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.project import REMOTERUN

INVENTORY = f"""\
defaults: {{python: {sys.executable}}}
hosts:
  here: {{transport: local}}
"""


@pytest.mark.parametrize("words", [("play", "probe", "--on", "here"), ("audit", "probe"), ("check", ".")], ids=" ".join)
@pytest.mark.parametrize("mask", ["000", "022"])
def test_nobody_else_may_look_or_write(tmp_path: Path, words: tuple[str, ...], mask: str) -> None:
    project, home = tmp_path / "project", tmp_path / "home"
    project.mkdir()
    home.mkdir()
    (project / "inventory.yaml").write_text(INVENTORY, "utf-8")
    ours = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    argv = ["sh", "-c", f'umask {mask}; exec "$@"', "-", *REMOTERUN, *words]
    done = subprocess.run(
        argv, capture_output=True, timeout=60, check=False, cwd=project, env={**ours, "HOME": str(home)}
    )
    assert done.returncode in (0, 3), done
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in home.rglob("*") if path.is_dir()}
    assert home / ".local/state/remoterun" in modes
    assert home / ".cache/remoterun/remembered" in modes
    assert set(modes.values()) == {0o700}, modes
