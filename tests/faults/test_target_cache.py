"""The caches in a target's home: verified on each use, bounded, and unused where they cannot be trusted."""

from __future__ import annotations

import hashlib
import json
import marshal
import os
import pwd
import random
import stat
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from remoterun.catalog import Catalog
from remoterun.model import CacheWork, ExecWork, Outcome, Pack, PayloadWork, Status
from remoterun.remote.wire import NEED, RESULT
from tests.support.here import ENDS, SUPPORTED, leg, packed, payload, play
from tests.support.lab.pythons import pythons
from tests.support.programs import lacking

# Written long before any test runs: what was just changed is not remembered.
CHECKPOINTS = Path(__file__).parents[2] / "remoterun/lab/data/201"
oldest_and_newest = pytest.mark.parametrize("python", ENDS)


@dataclass(frozen=True)
class Home:
    """A home of the test's own: a mount namespace in which /etc/passwd names it."""

    folder: Path
    wrapper: str

    @property
    def packs(self) -> Path:
        return self.folder / ".cache/remoterun/packs"

    @property
    def code(self) -> Path:
        return self.folder / ".cache/remoterun/code"

    def play(self, work: PayloadWork | ExecWork | CacheWork, *, use_cache: bool = True) -> Outcome:
        return play(work, self.wrapper, use_cache=use_cache)

    def files(self) -> dict[str, int]:
        """Map the files of both caches to their inodes: one that is written anew has another."""
        return {
            str(path.relative_to(self.folder)): path.stat().st_ino for path in self.folder.rglob("*") if path.is_file()
        }


def _namespace(mounts: str) -> list[str]:
    return ["unshare", "-m" if os.geteuid() == 0 else "-rm", "/bin/sh", "-c", f'{mounts} && exec "$0" "$@"']


@pytest.fixture(params=ENDS)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    """Make a home, and an interpreter that lives in it."""
    return _make_home(tmp_path, str(request.param))


def _make_home(place: Path, python: str, more: str = "true") -> Home:
    if subprocess.run([*_namespace("true"), "true"], capture_output=True, check=False).returncode:
        lacking("mount namespaces cannot be made here (root, or user namespaces for everybody, are needed)")
    folder = place / "home"
    folder.mkdir()
    users = place / "passwd"
    # Root, also where a user namespace makes us that.
    users.write_text(f"root:x:0:0:root:{folder}:/bin/sh\n")
    wrapper = place / "python"
    argv = _namespace(f'mount --bind "{users}" /etc/passwd && {more}')
    words = " ".join(f"'{word}'" for word in argv)
    wrapper.write_text(f'#!/bin/sh\nexec {words} {pythons()[python]} "$@"\n')
    wrapper.chmod(0o755)
    return Home(folder, str(wrapper))


def _big(name: str = "first") -> PayloadWork:
    """Make a payload too big to be sent along: the target is asked whether it has it."""
    data = random.Random(name).randbytes(60_000)
    return packed(
        {"look/__init__.py": f"def run(ctx):\n    ctx.emit({{'ran': {name!r}}})\n".encode(), "look/data": data}
    )


def _modes(path: Path) -> list[int]:
    return [stat.S_IMODE(part.stat().st_mode) for part in (path, path.parent, path.parent.parent)]


# --- packs ---


def test_a_pack_is_kept_and_used_again(home: Home) -> None:
    work = _big()
    assert home.play(work).records == ({"ran": "first"},)
    kept = home.packs / work.pack.sha256
    assert kept.read_bytes() == work.pack.data
    assert _modes(kept) == [0o600, 0o700, 0o700]
    before = home.files()
    assert home.play(work).records == ({"ran": "first"},)
    assert home.files() == before


@oldest_and_newest
@pytest.mark.parametrize("packing", ["bz2", "zlib"])
def test_a_python_is_sent_what_it_can_unpack(python: str, packing: str, tmp_path: Path) -> None:
    """Pythons that somebody has built often lack bz2."""
    script = "import _bz2; print(_bz2.__file__)"
    library = subprocess.run([pythons()[python], "-c", script], capture_output=True, text=True, check=True).stdout
    hidden = f'mount --bind /dev/null "{library.strip()}"' if packing == "zlib" else "true"
    home = _make_home(tmp_path, python, hidden)
    work = _big()
    with leg(work, home.wrapper, use_cache=True) as asked:
        asked.write(asked.opening)
        need = asked.read_until(NEED)
        assert json.loads(need) == {"sha256": work.pack.sha256, "packing": packing}
        code = asked.request.code(need)
        assert (b"BZh9" in code) is (packing == "bz2")
        asked.write(code)
        assert json.loads(asked.read_until(RESULT))["exit_status"] == 0
    assert (home.packs / work.pack.sha256).read_bytes() == work.pack.data


def test_a_small_pack_is_not_worth_keeping(home: Home) -> None:
    assert home.play(payload("ctx.emit({'ran': 1})")).records == ({"ran": 1},)
    assert not list(home.folder.rglob("packs/*"))


def test_nothing_is_kept_for_who_wants_no_cache(home: Home) -> None:
    assert home.play(_big(), use_cache=False).records == ({"ran": "first"},)
    assert home.files() == {}


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def _shorter(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _another(path: Path) -> None:
    path.write_bytes(_big("evil").pack.data)


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(path: Path) -> None:
    evil = path.parent.parent / "evil"
    evil.write_bytes(_big("evil").pack.data)
    path.unlink()
    path.symlink_to(evil)


@pytest.mark.parametrize("tamper", [_flip, _longer, _shorter, _empty, _another, _fifo, _link])
def test_a_tampered_pack_never_runs_and_is_replaced(home: Home, tamper: Callable[[Path], None]) -> None:
    work = _big()
    home.play(work)
    kept = home.packs / work.pack.sha256
    tamper(kept)
    assert home.play(work).records == ({"ran": "first"},)
    assert not kept.is_symlink()
    assert kept.read_bytes() == work.pack.data


def test_a_tampered_pack_is_removed_also_when_no_good_one_comes(home: Home) -> None:
    work = _big()
    home.play(work)
    kept = home.packs / work.pack.sha256
    _another(kept)
    wrong = Pack(ref=work.pack.ref, data=work.pack.data[:-1] + b"\xff", entry=work.pack.entry)
    outcome = home.play(PayloadWork(pack=wrong, params={}))
    assert outcome.error is not None
    assert outcome.error.code == "upload_damaged"
    assert not kept.exists()


def _inodes(packs: Path) -> dict[str, int]:
    return {path.name: path.lstat().st_ino for path in (packs, *packs.parent.rglob("packs/*"))}


def _open_to_others(packs: Path) -> None:
    packs.chmod(0o777)


def _readable_by_others(packs: Path) -> None:
    packs.chmod(0o750)


def _of_somebody_else(packs: Path) -> None:
    if os.geteuid() != 0:
        lacking("only root can give a folder away")
    os.chown(packs, 12345, 12345)


def _a_link(packs: Path) -> None:
    packs.rename(packs.with_name("elsewhere"))
    packs.symlink_to("elsewhere")


def _a_file(packs: Path) -> None:
    for path in packs.iterdir():
        path.unlink()
    packs.rmdir()
    packs.write_text("a file")


@pytest.mark.parametrize("spoil", [_open_to_others, _readable_by_others, _of_somebody_else, _a_link, _a_file])
def test_a_folder_that_cannot_be_trusted_is_not_used(home: Home, spoil: Callable[[Path], None]) -> None:
    home.play(_big("before"))
    spoil(home.packs)
    before = _inodes(home.packs)
    assert home.play(_big()).records == ({"ran": "first"},)
    assert _inodes(home.packs) == before


def test_the_cache_is_bounded_by_number_and_size(home: Home) -> None:
    home.play(_big())
    old = time.time() - 1000
    for number in range(40):
        path = home.packs / f"old-{number:02}"
        path.write_bytes(b"x")
        os.utime(path, (old + number, old + number))
    home.play(_big("second"))
    names = sorted(path.name for path in home.packs.iterdir())
    assert len(names) == 32
    # The newest stay: both packs, and of the others those used last.
    assert set(names) == {_big().pack.sha256, _big("second").pack.sha256} | {f"old-{n:02}" for n in range(10, 40)}
    with (home.packs / "huge").open("wb") as file:
        file.truncate(64 << 20)
    os.utime(home.packs / "huge", (old - 1, old - 1))
    home.play(_big("third"))
    assert not (home.packs / "huge").exists()
    assert (home.packs / _big("third").pack.sha256).exists()


def test_a_used_pack_is_young_again(home: Home) -> None:
    work = _big()
    home.play(work)
    kept = home.packs / work.pack.sha256
    os.utime(kept, (1, 1))
    home.play(work)
    assert kept.stat().st_mtime > time.time() - 3600


def test_gc_empties_both_caches(home: Home) -> None:
    home.play(_big())
    home.play(_big("second"))
    held = sum(path.stat().st_size for path in home.folder.rglob("*") if path.is_file())
    outcome = home.play(CacheWork())
    assert outcome.status is Status.OK
    assert outcome.records == ({"kind": "cache", "removed": 2, "freed": held},)
    assert home.files() == {}
    assert home.play(CacheWork()).records == ({"kind": "cache", "removed": 0, "freed": 0},)


def test_what_a_payload_remembers_goes_too(home: Home) -> None:
    info = Catalog.load(None).find("check-ckpt")
    params = info.check_params({"root": str(CHECKPOINTS), "depth": 2}, where="params")
    work = PayloadWork(pack=info.pack(), params=params)

    def cached(*, use_cache: bool = True) -> list[bool]:
        records = home.play(work, use_cache=use_cache).records
        return ["cached" in record for record in records if record["kind"] == "checkpoint"]

    digests = home.folder / ".cache/remoterun/digests"
    assert cached(use_cache=False) == [False, False]
    assert not digests.exists()
    assert cached() == [False, False]
    assert cached() == [True, True]
    assert cached(use_cache=False) == [False, False]
    assert _modes(next(digests.iterdir())) == [0o600, 0o700, 0o700]
    home.play(CacheWork())
    assert list(digests.iterdir()) == []
    assert cached() == [False, False]


@oldest_and_newest
@pytest.mark.parametrize(
    "more",
    ["mount --bind HOME HOME && mount -o remount,ro,bind HOME", "rm -rf HOME"],
    ids=["read-only", "missing"],
)
def test_a_home_that_takes_nothing_costs_only_the_cache(python: str, more: str, tmp_path: Path) -> None:
    home = _make_home(tmp_path, python, more.replace("HOME", f'"{tmp_path / "home"}"'))
    for name in ("first", "second"):
        assert home.play(_big(name)).records == ({"ran": name},)
    assert home.play(payload("import os; ctx.emit({'cwd': os.getcwd()})")).records == (
        {"cwd": "/" if more.startswith("rm ") else str(home.folder)},
    )


# --- the compiled program ---


def test_the_compiled_program_is_kept_and_used_again(home: Home) -> None:
    assert home.play(payload("ctx.emit({'n': 1})")).status is Status.OK
    (kept,) = home.code.iterdir()
    assert _modes(kept) == [0o600, 0o700, 0o700]
    before = home.files()
    assert home.play(payload("ctx.emit({'n': 1})")).status is Status.OK
    assert home.files() == before


def _forged(path: Path) -> None:
    """Put other code in its place, signed as well as one can who does not have the key."""
    evil = compile(f"open({str(path.parent.parent / 'evil')!r}, 'w')", "evil", "exec")
    data = marshal.dumps([evil, evil])
    path.write_bytes(hashlib.sha256(hashlib.sha256(data).digest()).digest() + data)


@pytest.mark.parametrize("tamper", [_flip, _longer, _shorter, _empty, _forged, _link])
def test_a_tampered_program_never_runs_and_is_replaced(home: Home, tamper: Callable[[Path], None]) -> None:
    home.play(payload("ctx.emit({'n': 1})"))
    (kept,) = home.code.iterdir()
    tamper(kept)
    tampered = kept.read_bytes()
    assert home.play(payload("ctx.emit({'n': 2})")).records == ({"n": 2},)
    # Marshalling one code twice need not give the same bytes; what is kept now is used, and so it is right.
    assert kept.read_bytes() != tampered
    assert not kept.is_symlink()
    before = home.files()
    home.play(payload("ctx.emit({'n': 3})"))
    assert home.files() == before
    assert not list(home.folder.rglob("evil")) or tamper is _link


def test_few_compiled_programs_are_kept(home: Home) -> None:
    home.play(payload("ctx.emit({'n': 1})"))
    (kept,) = home.code.iterdir()
    for number in range(40):
        old = home.code / f"old-{number}"
        old.write_bytes(b"x")
        os.utime(old, (number + 1, number + 1))
    kept.unlink()
    home.play(payload("ctx.emit({'n': 1})"))
    assert len(list(home.code.iterdir())) == 24
    assert kept.exists()


# --- compiled packs ---


def _work(name: str = "first") -> PayloadWork:
    """Make a payload that says where its code came from, and what its source is."""
    return packed({
        "look/__init__.py": b"from .inner import run\n",
        "look/inner.py": f"""
import inspect
def run(ctx):
    ctx.emit({{"ran": {name!r}, "from": run.__code__.co_filename, "source": inspect.getsource(run).count(chr(10))}})
{'#' * 20_000}
""".encode(),
        "look/data": random.Random(name).randbytes(60_000),
    })  # fmt: skip


def _compiled(home: Home) -> Path:
    (kept,) = (path for path in home.code.iterdir() if path.name.startswith(_work().pack.sha256))
    return kept


def _came_compiled(outcome: Outcome) -> bool:
    (record,) = outcome.records
    assert record["ran"] == "first"
    assert record["source"] == 2
    return bool(record["from"] == "look/inner.py")


def test_a_pack_is_compiled_once(home: Home) -> None:
    assert not _came_compiled(home.play(_work()))
    assert _modes(_compiled(home)) == [0o600, 0o700, 0o700]
    before = home.files()
    assert _came_compiled(home.play(_work()))
    assert home.files() == before
    # It is enough by itself.
    (home.packs / _work().pack.sha256).unlink()
    assert _came_compiled(home.play(_work()))
    assert not list(home.packs.iterdir())


def _of_another_pack(path: Path) -> None:
    """Put another pack's compiled form in its place, signed by the right controller."""
    (other,) = (each for each in path.parent.iterdir() if each.name.startswith(_work("evil").pack.sha256))
    other.rename(path)


@pytest.mark.parametrize("tamper", [_flip, _longer, _shorter, _empty, _another, _fifo, _link, _of_another_pack])
def test_a_tampered_compiled_pack_never_runs_and_is_replaced(home: Home, tamper: Callable[[Path], None]) -> None:
    home.play(_work())
    home.play(_work("evil"))
    kept = _compiled(home)
    good = kept.read_bytes()
    tamper(kept)
    assert not _came_compiled(home.play(_work()))
    assert not kept.is_symlink()
    assert len(kept.read_bytes()) == len(good)
    assert _came_compiled(home.play(_work()))


def test_a_small_pack_is_compiled_by_its_loader(home: Home) -> None:
    assert home.play(payload("ctx.emit({'n': 1})")).status is Status.OK
    assert len(list(home.code.iterdir())) == 1


@oldest_and_newest
def test_what_does_not_compile_stays_source(python: str, tmp_path: Path) -> None:
    home = _make_home(tmp_path, python)
    work = packed({
        "look/__init__.py": b"def run(ctx):\n  ctx.emit({'from': run.__code__.co_filename})\n  from . import newer\n",
        "look/newer.py": b"def (:\n" + b"#" * 20_000,
    })  # fmt: skip
    first, outcome = home.play(work), home.play(work)
    for error in (first.error, outcome.error):
        assert error is not None
        assert error.code == "payload_crashed"
        assert "SyntaxError" in error.message
    assert outcome.records == ({"from": "look/__init__.py"},)


_CURIOUS = {
    "look/__init__.py": b"from .main import run\n",
    "look/main.py": b"""
import importlib.util, inspect, pkgutil, sys, traceback
import look.inner.deep, look
from look import inner

def whence(module):
    spec = module.__spec__
    place = sys.path[0]
    return [spec.name, spec.parent, str(spec.origin).replace(place, ""), bool(spec.submodule_search_locations),
        str(module.__file__).replace(place, ""), module.__package__, [str(each).replace(place, "") for each in
        getattr(module, "__path__", [])]]

def run(ctx):
    ctx.emit({"modules": [whence(each) for each in (look, inner, look.inner.deep)]})
    ctx.emit({"source": inspect.getsource(look.inner.deep), "doc": inner.__doc__})
    ctx.emit({"text": pkgutil.get_data("look", "data.txt").decode(), "in": sorted(
        [each.name, each.ispkg] for each in pkgutil.walk_packages(look.__path__, "look."))})
    if sys.version_info >= (3, 9):
        from importlib.resources import files
        ctx.emit({"resource": (files("look.inner") / "more.txt").read_text("ascii")})
    ctx.emit({"none": importlib.util.find_spec("look.nothing") is None})
    try:
        from look import broken
    except SyntaxError as error:
        ctx.emit({"broken": error.lineno, "text": error.text})
    try:
        look.inner.deep.fail()
    except ZeroDivisionError:
        ctx.emit({"trace": traceback.format_exc().splitlines()[-2]})
    import multiprocessing
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        ctx.emit({"spawned": pool.apply(look.inner.deep.double, (21,))})
    from look import far
    ctx.emit({"word": far.WORD})
    import json.decoder, wave
    ctx.emit({"shadowed": wave.__doc__, "json": json.decoder.__name__})
""",
    "look/inner/__init__.py": b'"""Inner."""\n',
    "look/inner/deep.py": b"def fail():\n    return 1 / 0\n\ndef double(x):\n    return 2 * x\n",
    "look/inner/more.txt": b"more",
    "look/broken.py": b"\ndef (:\n",
    "look/data.txt": b"text",
    "wave.py": b'"""Not the standard library\'s."""\n',
    "look/far.py": "# coding: latin-1\nWORD = 'd\xe9j\xe0'\n".encode("latin-1"),
    "look/filler.py": b"# " + b"x" * 20_000 + b"\n",
    "noise": random.Random(0).randbytes(60_000),
}


@pytest.mark.parametrize("python", SUPPORTED)
def test_modules_are_the_same_in_whatever_way_they_came(python: str, tmp_path: Path) -> None:
    home = _make_home(tmp_path, python)
    small = packed({**_CURIOUS, "look/filler.py": b"", "noise": b""})
    plain, compiled, told = home.play(packed(_CURIOUS)), home.play(packed(_CURIOUS)), home.play(small)
    assert plain.status is Status.OK, plain
    assert list(compiled.records) == list(plain.records)
    assert list(told.records) == list(plain.records)
    assert any(path.name.startswith(packed(_CURIOUS).pack.sha256) for path in home.code.iterdir())


# --- a home full of traps ---


def test_stray_modules_in_the_home_are_not_imported(home: Home) -> None:
    for name in (
        "json",
        "marshal",
        "os",
        "sys",
        "linecache",
        "traceback",
        "zipimport",
        "struct",
        "select",
        "sitecustomize",
    ):
        (home.folder / f"{name}.py").write_text("raise SystemExit('a stray module was imported')\n")
    work = payload(
        "import json, struct, traceback, os\nctx.emit({'cwd': os.getcwd(), 'path': '' in __import__('sys').path})"
    )
    outcome = home.play(work)
    assert outcome.records == ({"cwd": str(home.folder), "path": False},), (
        outcome.error,
        outcome.stderr,
        outcome.noise,
    )


def test_the_account_that_is_asked_is_the_real_one(home: Home) -> None:
    assert home.folder != Path(pwd.getpwuid(os.geteuid()).pw_dir)
    outcome = home.play(ExecWork(argv=(b"/bin/sh", b"-c", b'printf "%s" "$HOME"')))
    assert outcome.stdout.data == os.fsencode(home.folder)
