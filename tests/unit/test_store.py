"""What is kept between runs comes back only from the same inputs, whole, and signed with this user's key."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from remoterun import store


@pytest.fixture(autouse=True)
def fresh(own_home: Path) -> Path:
    """Start with a home folder that has nothing kept in it."""
    store._secret.cache_clear()
    return own_home


def kept_files(home: Path) -> list[Path]:
    """Return the results kept under a home folder."""
    return sorted(home.rglob("remembered/*"))


def counting(value: object) -> tuple[list[int], object]:
    """Return a list that counts calls, and a builder of a value."""
    calls: list[int] = []

    def build() -> object:
        calls.append(1)
        return value

    return calls, build


def test_same_inputs_are_built_once(fresh: Path) -> None:
    calls, build = counting({"a": (1, 2)})
    assert callable(build)
    assert [store.remember("kind", b"inputs", build) for _ in range(3)] == [{"a": (1, 2)}] * 3
    assert len(calls) == 1
    assert [path.stat().st_mode & 0o777 for path in kept_files(fresh)] == [0o600]


@pytest.mark.parametrize(("kind", "inputs"), [("other", b"inputs"), ("kind", b"other")])
def test_other_inputs_are_built_anew(kind: str, inputs: bytes) -> None:
    calls, build = counting(1)
    assert callable(build)
    store.remember("kind", b"inputs", build)
    store.remember(kind, inputs, build)
    assert len(calls) == 2


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "forged"])
def test_damaged_or_forged_results_are_never_loaded(fresh: Path, tmp_path: Path, damage: str) -> None:
    calls, build = counting("right")
    assert callable(build)
    store.remember("kind", b"inputs", build)
    (path,) = kept_files(fresh)
    data = path.read_bytes()
    trap = f"cos\nsystem\n(S'touch {tmp_path}/pwned'\ntR.".encode()
    damaged = {"flip": data[:-1] + bytes([data[-1] ^ 1]), "cut": data[:40], "empty": b"", "forged": data[:32] + trap}
    path.write_bytes(damaged[damage])
    assert store.remember("kind", b"inputs", build) == "right"
    assert len(calls) == 2
    assert not (tmp_path / "pwned").exists()
    assert path.read_bytes() == data


def test_another_key_does_not_load_them(fresh: Path) -> None:
    calls, build = counting(1)
    assert callable(build)
    store.remember("kind", b"inputs", build)
    next(fresh.rglob("remoterun/key")).unlink()
    store._secret.cache_clear()
    store.remember("kind", b"inputs", build)
    assert len(calls) == 2


def test_errors_are_passed_on_and_not_kept(fresh: Path) -> None:
    def build() -> object:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        store.remember("kind", b"inputs", build)
    assert kept_files(fresh) == []


def test_without_a_place_everything_is_built_anew(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocker = fresh / "blocker"
    blocker.write_text("not a folder", "utf-8")
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(blocker / "below"))
    calls, build = counting(1)
    assert callable(build)
    assert store.remember("kind", b"inputs", build) == 1
    assert store.remember("kind", b"inputs", build) == 1
    assert len(calls) == 2
    assert len(store.key_for("x")) == 32


def test_keys_differ_by_purpose_and_last(fresh: Path) -> None:
    first = store.key_for("one")
    assert first != store.key_for("two")
    store._secret.cache_clear()
    assert store.key_for("one") == first


@pytest.mark.parametrize("left", [0, 31])
def test_a_key_that_was_cut_is_made_anew_and_lasts(fresh: Path, left: int) -> None:
    store.key_for("one")
    key = next(fresh.rglob("remoterun/key"))
    key.write_bytes(key.read_bytes()[:left])
    store._secret.cache_clear()
    second = store.key_for("one")
    store._secret.cache_clear()
    assert store.key_for("one") == second
    assert (len(key.read_bytes()), key.stat().st_mode & 0o777) == (32, 0o600)


# Each round, some processes that find no key ask for one at the same moment.
_AT_ONCE = """
import multiprocessing, os, sys
from remoterun.store import key_for

def ask(home, together, told):
    os.environ["XDG_STATE_HOME"] = home
    together.wait()
    told.put(key_for("x"))

fork = multiprocessing.get_context("fork")
for number in range(30):
    together, told = fork.Barrier(4), fork.Queue()
    processes = [fork.Process(target=ask, args=(f"{sys.argv[1]}/{number}", together, told)) for _ in range(4)]
    for process in processes:
        process.start()
    print(len({told.get() for _ in processes}))
    for process in processes:
        process.join()
"""


def test_processes_that_make_the_key_at_once_have_the_same(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _AT_ONCE, str(tmp_path)], capture_output=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, [b"1"] * 30, b"")
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.name != store.KEY_NAME]


def test_only_so_many_are_kept(fresh: Path) -> None:
    for number in range(80):
        store.remember("kind", str(number).encode(), lambda number=number: number)  # type: ignore[misc]
    assert len(kept_files(fresh)) == 64
