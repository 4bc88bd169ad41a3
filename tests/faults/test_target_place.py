"""What a payload finds on the target: its environment, memory or a folder for its code, and the caches in the home."""

from __future__ import annotations

import hashlib
import os
import platform
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from remoterun.model import ExecWork, Outcome, Pack, PayloadRef, PayloadWork, Status
from tests.support.here import ENDS, SUPPORTED, packed, payload, play, program, script
from tests.support.lab.pythons import pythons

each_python = pytest.mark.parametrize("python", SUPPORTED)
oldest_and_newest = pytest.mark.parametrize("python", ENDS)


def _code(outcome: Outcome) -> str | None:
    return outcome.error.code if outcome.error else None


def _wrapper(folder: Path, text: str) -> str:
    """Make an interpreter that does something first: what it does holds for leg, supervisor and payload."""
    path = folder / "python"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


# --- environment ---


@oldest_and_newest
def test_the_environment_is_built_from_nothing(python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", "REMOTERUN_RUN", "LC_ALL", "X"):
        monkeypatch.setenv(name, "/leaked")
    env = {"X": "given", "RAW": "\udcff \udcfe=", "LANG": "de_DE.UTF-8", "REMOTERUN_RUN": "forged", "EMPTY": ""}
    outcome = play(ExecWork(argv=(b"/usr/bin/env", b"-0")), python, env=env)
    got = dict(line.split(b"=", 1) for line in outcome.stdout.data.split(b"\0") if line)
    account = _account()
    assert got.pop(b"REMOTERUN_RUN").endswith(b"/here/0")
    assert got == {
        b"HOME": account[1].encode(),
        b"USER": account[0].encode(),
        b"LOGNAME": account[0].encode(),
        b"SHELL": account[2].encode(),
        b"LANG": b"de_DE.UTF-8",
        b"PYTHONUTF8": b"1",
        b"PATH": b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        b"X": b"given",
        b"RAW": b"\xff \xfe=",
        b"EMPTY": b"",
    }


def _account() -> tuple[str, str, str]:
    import pwd

    entry = pwd.getpwuid(os.geteuid())
    return entry.pw_name, entry.pw_dir, entry.pw_shell or "/bin/sh"


@each_python
def test_a_virtual_environment_is_active(python: str, tmp_path: Path) -> None:
    venv = tmp_path / "my venv"
    subprocess.run([pythons()[python], "-m", "venv", "--without-pip", str(venv)], check=True)
    (next(venv.glob("lib/python*/site-packages")) / "only_here.py").write_text("where = 'in the environment'\n")
    source = """
        import os, shutil, sys, only_here
        ctx.emit({
            "prefix": sys.prefix, "venv": os.environ["VIRTUAL_ENV"], "python": shutil.which("python"),
            "where": only_here.where, "utf8": sys.flags.utf8_mode, "encoding": sys.stdout.encoding,
        })
        """
    outcome = play(payload(source), str(venv / "bin/python"))
    assert outcome.records == (
        {
            "prefix": str(venv),
            "venv": str(venv),
            "python": str(venv / "bin/python"),
            "where": "in the environment",
            "utf8": 1,
            "encoding": "utf-8",
        },
    )


# The C library keeps 32 and 33 to itself: nobody who calls it can change what becomes of them, so whoever started the
# tests may have them ignored for good.
_RESERVED = 0b11 << 31

_STATE = """
import os, signal, stat

def describe(fd):
    state = os.fstat(fd)
    return "pipe" if stat.S_ISFIFO(state.st_mode) else "null" if state.st_rdev == os.makedev(1, 3) else "something else"

status = dict(line.split(":", 1) for line in open("/proc/self/status"))
supervisor = "/proc/%d/" % os.getppid()
# The listing itself has one open for a moment.
fds = [fd for fd in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + fd)]
theirs = [os.readlink(supervisor + "fd/" + fd) for fd in os.listdir(supervisor + "fd")]
ctx.emit({
    "nice": os.nice(0),
    "oom": int(open("/proc/self/oom_score_adj").read()),
    "supervisor_oom": int(open(supervisor + "oom_score_adj").read()),
    "session": os.getsid(0) == os.getpid() == os.getpgrp(),
    "cwd": os.getcwd(),
    "ignored": int(status["SigIgn"], 16) & ~(1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1 | RESERVED),
    "blocked": int(status["SigBlk"], 16),
    "supervisor_blocked": "SigBlk:\t0000000000000000" not in open(supervisor + "status").read(),
    "stdin": describe(0), "stdout": describe(1), "stderr": describe(2),
    "fds": len(fds),
    "supervisor_leaks": "INHERITED" in theirs,
})
"""


def _state(leaked: Path) -> str:
    return _STATE.replace("INHERITED", str(leaked)).replace("RESERVED", str(_RESERVED))


@oldest_and_newest
def test_the_state_of_a_payloads_process(python: str, tmp_path: Path) -> None:
    # Whoever starts the leg leaks descriptors, and signals ignored and blocked.
    wrapper = _wrapper(
        tmp_path,
        f"""#!{sys.executable}
import os, signal, sys
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR2, signal.SIGCHLD])
for fd in (7, 33, 600):
    os.dup2(os.open({str(tmp_path / "leaked")!r}, os.O_RDWR | os.O_CREAT), fd)
os.execv({pythons()[python]!r}, [{pythons()[python]!r}, *sys.argv[1:]])
""",
    )
    outcome = play(payload(_state(tmp_path / "leaked")), wrapper)
    (record,) = outcome.records
    assert record == {
        "nice": min(19, os.nice(0) + 10),
        "oom": 1000,
        "supervisor_oom": record["supervisor_oom"],
        "session": True,
        "cwd": _account()[1] if Path(_account()[1]).is_dir() else "/",
        "ignored": 0,
        "blocked": 0,
        "supervisor_blocked": False,
        "stdin": "null",
        "stdout": "pipe",
        "stderr": "pipe",
        # Three and the pipe for records.
        "fds": 4,
        "supervisor_leaks": False,
    }
    assert record["supervisor_oom"] == int(Path("/proc/self/oom_score_adj").read_text())


@oldest_and_newest
def test_a_program_gets_no_signal_ignored(python: str) -> None:
    # Python ignores SIGPIPE and SIGXFSZ, and what is ignored stays so in what it executes.
    outcome = play(ExecWork(argv=(b"/bin/grep", b"Sig[IB]", b"/proc/self/status")), python)
    states = dict(line.split(b":") for line in outcome.stdout.data.splitlines())
    assert int(states[b"SigBlk"], 16) == 0
    assert int(states[b"SigIgn"], 16) & ~_RESERVED == 0
    outcome = play(ExecWork(argv=(b"/bin/sh", b"-c", b"yes | head -n 1; exit 0")), python)
    assert (outcome.stdout.data, outcome.stderr.data) == (b"y\n", b"")


# --- code in memory, or where there is none ---

_BARRIER = '''#!{python}
"""Refuse system calls, as a hardened or older kernel does, and go on."""
import ctypes, os, platform, struct, sys
memfd, prctl = {{"x86_64": (319, 157), "aarch64": (279, 167)}}[platform.machine()]
LOAD, EQUAL, RETURN, ERRNO, ALLOW = 0x20, 0x15, 0x06, 0x50000, 0x7FFF0000
code = [(LOAD, 0, 0, 0), (EQUAL, 0, 1, memfd), (RETURN, 0, 0, ERRNO | 38)]
if {no_subreaper}:
    code += [(EQUAL, 0, 3, prctl), (LOAD, 0, 0, 16), (EQUAL, 0, 1, 36), (RETURN, 0, 0, ERRNO | 1)]
code += [(RETURN, 0, 0, ALLOW)]
data = b"".join(struct.pack("HBBI", *line) for line in code)
buffer = ctypes.create_string_buffer(data)
program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(buffer))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.c_char_p(program), 0, 0) == 0
os.execv({target!r}, [{target!r}, *sys.argv[1:]])
'''


def _behind_barrier(folder: Path, python: str, *, no_subreaper: bool = False) -> str:
    if platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip(f"the numbers of system calls of {platform.machine()} are not known here")
    text = _BARRIER.format(python=sys.executable, target=pythons()[python], no_subreaper=no_subreaper)
    return _wrapper(folder, text)


_SPAWNS = b"""
import multiprocessing

def double(n):
    return n * 2

def run(ctx):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        ctx.emit({"got": pool.map(double, [1, 2]), "path": __file__})
"""


@oldest_and_newest
@pytest.mark.parametrize("memfd", [True, False], ids=["memory", "folder"])
def test_code_lies_in_memory_and_in_a_private_folder_where_there_is_none(
    python: str, memfd: bool, tmp_path: Path
) -> None:
    where = pythons()[python] if memfd else _behind_barrier(tmp_path, python)
    place = "/proc/" if memfd else os.environ["XDG_RUNTIME_DIR"] + "/remoterun-"
    outcome = play(packed({"look/__init__.py": _SPAWNS}), where)
    assert outcome.status is Status.OK, outcome.stderr.data
    assert outcome.records[0]["got"] == [2, 4]
    assert str(outcome.records[0]["path"]).startswith(place)
    outcome = play(script("import os; print(__file__, os.stat(os.path.dirname(__file__)).st_mode & 0o77)"), where)
    assert outcome.stdout.data.startswith(place.encode())
    assert memfd or outcome.stdout.data.endswith(b" 0\n")
    outcome = play(program('#!/bin/sh\necho "{\\"params\\": $(cat)}"', x="y"), where)
    assert outcome.records == ({"params": {"x": "y"}},)
    outcome = play(_cat(), where)
    assert outcome.records == ({"x": "y"},)


@pytest.mark.parametrize(
    ("limit", "told"), [("-n 12", "Too many open files: see `ulimit -n` there"), ("-f 0", "see `ulimit -f` there")]
)
def test_a_limit_of_the_login_is_told_as_that_and_leaves_nothing(limit: str, told: str, tmp_path: Path) -> None:
    where = _wrapper(tmp_path, f'#!/bin/sh\nulimit {limit}\nexec {sys.executable} "$@"\n')
    outcome = play(script("print(1)"), where)
    assert outcome.error is not None
    assert outcome.error.code == "start_failed"
    assert told in outcome.error.message
    assert not list(Path(os.environ["XDG_RUNTIME_DIR"]).glob("remoterun-*"))


@pytest.mark.parametrize("files", range(8, 30, 2))
def test_too_few_open_files_are_no_full_disk(files: int, tmp_path: Path) -> None:
    where = _wrapper(tmp_path, f'#!/bin/sh\nulimit -n {files}\nexec {sys.executable} "$@"\n')
    outcome = play(script("print(1)"), where)
    assert _code(outcome) in {None, "start_failed"}, outcome.error
    assert not list(Path(os.environ["XDG_RUNTIME_DIR"]).glob("remoterun-*"))


def _cat() -> PayloadWork:
    """A program that is no script: it gives its parameters back."""
    from remoterun.catalog.packing import Member, canonical_zip

    data = canonical_zip([Member(name="cat", data=Path(shutil.which("cat") or "").read_bytes(), program=True)])
    ref = PayloadRef(name="cat", version="1.0.0", sha256=hashlib.sha256(data).hexdigest())
    return PayloadWork(pack=Pack(ref=ref, data=data, program="cat"), params={"x": "y"})


@oldest_and_newest
def test_without_a_subreaper_leftovers_are_found_by_their_mark(python: str, tmp_path: Path) -> None:
    source = """
        import os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(1000)
            os._exit(0)
        os.wait()
        ctx.emit({"n": 1})
        """
    outcome = play(payload(source), _behind_barrier(tmp_path, python, no_subreaper=True))
    assert (outcome.status, outcome.records, outcome.survivors) == (Status.OK, ({"n": 1},), 0)


# --- what arrives is verified ---


@oldest_and_newest
@pytest.mark.parametrize("size", [100, 200_000], ids=["sent along", "asked for"])
def test_code_that_arrives_with_another_hash_never_runs(python: str, size: int, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    good = packed(
        {"look/__init__.py": f"open({str(mark)!r}, 'w')\ndef run(ctx): pass\n".encode(), "data": _noise(size)}
    )
    data = good.pack.data
    for changed in (data[:-1], data + b"\0", data[:50] + b"\xff" + data[51:]):
        pack = Pack(ref=good.pack.ref, data=changed, entry=good.pack.entry)
        outcome = play(PayloadWork(pack=pack, params={}), python)
        assert _code(outcome) == "upload_damaged"
    assert not mark.exists()


def _noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)
