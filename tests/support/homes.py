"""What a user's home keeps of earlier commands, so that not every test computes again what never changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.project import remoterun

_KEY = Path("remoterun/key")
_REMEMBERED = Path("remoterun/remembered")


class Remembered:
    """Be the home of a user who has run commands before: the packs of the payloads are remembered there."""

    def __init__(self, home: Path) -> None:
        self._state, self._cache = home / "state", home / "cache"
        environment = {
            **os.environ,
            "HOME": str(home),
            "XDG_STATE_HOME": str(self._state),
            "XDG_CACHE_HOME": str(self._cache),
        }
        (home / "empty").mkdir()
        done = remoterun("check", ".", cwd=home / "empty", env=environment)
        assert (self._state / _KEY).is_file(), done
        assert any((self._cache / _REMEMBERED).iterdir()), done

    def give(self, state: Path, cache: Path) -> None:
        """Let those who keep state and cache there remember the same; what is kept is replaced, never written to."""
        _link(self._state / _KEY, state / _KEY)
        for file in (self._cache / _REMEMBERED).iterdir():
            _link(file, cache / _REMEMBERED / file.name)


def keep_state_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what commands keep in another folder; with the same key, so that what is remembered still counts."""
    known = Path(os.environ["XDG_STATE_HOME"]) / _KEY
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    if known.exists():
        _link(known, folder / _KEY)


def _link(file: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    place.hardlink_to(file)
