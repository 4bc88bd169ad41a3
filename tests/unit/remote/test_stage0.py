"""Stage 0 through every login shell of this machine, into every Python of it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoterun.remote.stage0 import BOOT, FOUND, MARK, STAGE0, opening
from tests.support.lab.pythons import pythons
from tests.support.programs import let_all_enter

SHELLS = {
    "bash": ("bash",),
    "dash": ("dash",),
    "zsh": ("zsh",),
    "fish": ("fish",),
    "tcsh": ("tcsh",),
    "busybox": ("busybox", "sh"),
}
TOO_OLD = ("2.7", "3.6", "3.7")
NEW_ENOUGH = [version for version in pythons() if version not in TOO_OLD]
# Tells how it was started, and that all the bytes behind the program are still there to read.
PROGRAM = """
header = i.read(int(i.readline()))
print([sys.executable, sys.flags.ignore_environment, sys.flags.no_site, sys.path[:1] != [""], header, i.read()])
"""
KEY = b"a key of the controller"


def _enter(
    first: bytes, argv: tuple[str, ...] = ("/bin/sh", "-c", STAGE0), **options: object
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(argv, input=first, capture_output=True, timeout=60, check=False, **options)  # type: ignore[call-overload, no-any-return]


def _first(interpreter: str, program: str = PROGRAM) -> bytes:
    text = f"def leg_main(i, codes, key, place):\n{textwrap.indent(program, ' ')}"
    return opening(interpreter, zlib.compress(text.encode() + b"\0runtime = 1"), KEY, b"a header") + b"requests"


def _told(executable: str) -> bytes:
    return f"{FOUND}\n{[executable, 1, 1, True, b'a header', b'requests']}\n".encode()


def _old(version: str) -> str:
    if version not in pythons():
        pytest.skip(f"there is no Python {version} on this machine")
    return pythons()[version]


def _shell(name: str) -> tuple[str, ...]:
    if shutil.which(SHELLS[name][0]) is None:
        pytest.skip(f"there is no {SHELLS[name][0]} on this machine")
    return SHELLS[name]


def test_one_layer_of_single_quotes_carries_it() -> None:
    assert not set("'\n\r!") & set(STAGE0)
    # In fish's single quotes a backslash is special before another one and before a quote.
    assert "\\\\" not in STAGE0
    assert STAGE0.isascii()
    assert STAGE0.isprintable()
    assert shlex.quote(STAGE0) == f"'{STAGE0}'"


@pytest.mark.parametrize("name", SHELLS)
def test_it_starts_python_through_the_login_shell(name: str, tmp_path: Path) -> None:
    command = shlex.join(("/bin/sh", "-c", STAGE0))
    done = _enter(_first(sys.executable), (*_shell(name), "-c", command), cwd=tmp_path)
    assert done.stdout == _told(sys.executable)
    assert (done.stderr, done.returncode) == (b"", 0)


@pytest.mark.parametrize("version", NEW_ENOUGH)
def test_it_starts_each_python(version: str) -> None:
    done = _enter(_first(pythons()[version]))
    assert done.stdout == _told(pythons()[version])


@pytest.mark.parametrize("version", TOO_OLD)
def test_an_old_python_says_what_it_is(version: str) -> None:
    path = _old(version)
    done = _enter(_first(path))
    found, told = done.stdout.decode().splitlines()
    mark, what, full, where = told.split()
    assert (found, mark, what, where) == (FOUND, MARK, "python-too-old", path)
    assert full.startswith(f"{version}.")
    assert (done.returncode, done.stderr) == (126, b"")


def test_boot_is_small_and_parses_everywhere() -> None:
    assert len(BOOT) <= 1024
    for path in pythons().values():
        subprocess.run([path, "-c", "import sys; compile(sys.stdin.read(), 'boot', 'exec')"], input=BOOT, check=True)


@pytest.mark.parametrize(
    "folder",
    [
        "with space",
        "caf\u00e9 \U0001f40d",
        'it\'s "quoted"',
        "$HOME `id` $(id)",
        "back\\slash \\n",
        "  ends with  ",
        "*?[a]",
        "-n",
        "raw\udcff\udcfe",
    ],
)
def test_the_interpreters_path_is_bytes(folder: str, tmp_path: Path) -> None:
    place = tmp_path / folder
    place.mkdir()
    (place / "python").symlink_to(sys.executable)
    program = "import os\nsys.stdout.buffer.write(os.fsencode(sys.executable))"
    done = _enter(_first(str(place / "python"), program))
    assert done.stdout == f"{FOUND}\n".encode() + os.fsencode(place / "python")


def test_a_bare_name_is_looked_up_on_the_path(tmp_path: Path) -> None:
    (tmp_path / "our-python").symlink_to(sys.executable)
    done = _enter(_first("our-python"), env={"PATH": str(tmp_path)})
    assert done.stdout == _told(str(tmp_path / "our-python"))


def test_a_bare_name_is_found_without_any_path() -> None:
    found = shutil.which("python3", path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    if found is None:
        pytest.skip("there is no python3 in the usual folders of this machine")
    done = _enter(_first("python3"), env={})
    assert done.returncode == 0
    assert os.path.realpath(eval(done.stdout.splitlines()[1])[0]) == os.path.realpath(found)


@pytest.mark.parametrize("path", ["/no/such/python", "no-such-python", "/usr", "cd", "/dev/null", "%s\\n", "$(id)"])
def test_what_is_no_interpreter_is_named(path: str) -> None:
    done = _enter(_first(path))
    first, *found = done.stdout.decode().splitlines()
    assert first == f"{MARK} no-interpreter {path}"
    assert all(line.startswith(f"{MARK} found /") and line.endswith("/bin/python") for line in found)
    assert done.returncode == 127


def _marks(path: str) -> list[str]:
    """Return what is said of a path that is no interpreter, without the environments that were found."""
    lines = _enter(_first(path)).stdout.decode("utf-8", "surrogateescape").splitlines()
    return [line for line in lines if not line.startswith(f"{MARK} found")]


def test_a_file_that_cannot_be_executed_is_told_from_none() -> None:
    assert _marks("/etc/passwd") == [f"{MARK} no-interpreter /etc/passwd", f"{MARK} not-executable"]


def test_a_link_that_leads_nowhere_is_followed_to_its_end(tmp_path: Path) -> None:
    python, python3, loop = tmp_path / "python", tmp_path / "python3", tmp_path / "loop"
    python.symlink_to("python3")
    python3.symlink_to(tmp_path / "gone 'it'")
    loop.symlink_to("loop")
    assert _marks(str(python))[1:] == [f"{MARK} leads-to {tmp_path / 'gone'} 'it'"]
    assert _marks(str(loop))[1:] == [f"{MARK} leads-to loop"]
    python3.unlink()
    python3.symlink_to("/no/such/folder/python3")
    assert _marks(str(python))[1:] == [f"{MARK} leads-to python3"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody who may not enter a folder")
def test_a_folder_that_may_not_be_entered_is_named(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "bin").mkdir(parents=True)
    (closed / "bin/python3").symlink_to(sys.executable)
    let_all_enter(tmp_path)
    closed.chmod(0o700)
    for name, to in (("python", "python3"), ("python3", closed / "bin/python3")):
        (tmp_path / name).symlink_to(to)
    for path in (closed / "bin/python3", tmp_path / "python", tmp_path / "python3"):
        lines = _enter(_first(str(path)), user=65534, group=65534, extra_groups=()).stdout.decode().splitlines()
        assert f"{MARK} closed {closed}" in lines
        assert _marks(str(path))[0] == FOUND, "who may enter it gets in"


def test_nothing_is_read_from_a_terminal() -> None:
    master, terminal = os.openpty()
    try:
        done = subprocess.run(["/bin/sh", "-c", STAGE0], stdin=terminal, capture_output=True, timeout=20, check=False)
    finally:
        os.close(master)
        os.close(terminal)
    assert (done.returncode, done.stdout) == (126, f"{MARK} terminal\n".encode())


def test_an_end_before_the_program_starts_nothing(tmp_path: Path) -> None:
    first = _first(sys.executable, f"open({str(tmp_path / 'ran')!r}, 'w')")
    for size in (0, 5, len(os.fsencode(sys.executable)) + 1, len(first) - 60):
        assert _enter(first[:size]).returncode != 0
    assert not list(tmp_path.iterdir())


def test_a_leaked_environment_changes_nothing(tmp_path: Path) -> None:
    for name in ("os", "json", "zlib", "marshal", "sitecustomize", "usercustomize"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a stray module was imported')")
    leaked = {
        "PYTHONHOME": "/nonexistent",
        "PYTHONPATH": str(tmp_path),
        "PYTHONSTARTUP": str(tmp_path / "os.py"),
        "PYTHONINSPECT": "1",
        "PYTHONIOENCODING": "utf-16",
        "PATH": str(tmp_path),
    }
    program = "import json, marshal, os, zlib\nprint(json.dumps('whole'))"
    done = _enter(_first(sys.executable, program), env=leaked, cwd=tmp_path)
    assert (done.stdout, done.stderr) == (f'{FOUND}\n"whole"\n'.encode(), b"")


_paths = st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"]), min_size=1)


@given(_paths, st.binary(), st.binary(), st.binary())
def test_opening_is_read_back_by_lengths(interpreter: str, program: bytes, key: bytes, header: bytes) -> None:
    rest = opening(interpreter, program, key, header)
    line, _, rest = rest.partition(b"\n")
    assert line.decode() == interpreter
    for blob in (BOOT, program, key, header):
        size, _, rest = rest.partition(b"\n")
        assert rest[: int(size)] == blob
        rest = rest[int(size) :]
    assert rest == b""


@pytest.mark.parametrize("path", ["", "/a\nb", "/a\0b"])
def test_a_path_that_cannot_stand_on_a_line_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="cannot stand on one line"):
        opening(path, b"", b"", b"")
