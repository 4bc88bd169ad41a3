"""The lock of a project's audits: one at a time, and who was cut has left its words."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from remoterun.audit.lock import BusyError, Lock, audit_folder, refuse_if_held
from remoterun.errors import ConfigError

HOLD = """\
import sys
from pathlib import Path
from remoterun.audit.lock import Lock
with Lock.take(Path(sys.argv[1]), Path("/srv/fleet")) as lock:
    lock.note("run-1")
    lock.note("run-2")
    print("held", flush=True)
    sys.stdin.read()
"""

NO_ROOM = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"


@pytest.fixture
def holder(tmp_path: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def test_who_holds_it_is_told(tmp_path: Path, holder: subprocess.Popen[bytes]) -> None:
    for attempt in (lambda: Lock.take(tmp_path, Path("/srv/fleet")), lambda: refuse_if_held(tmp_path, Path("/srv"))):
        with pytest.raises(BusyError) as caught:
            attempt()
        found = caught.value.holder
        assert (found.pid, found.host) == (holder.pid, os.uname().nodename)
        assert found.runs == ("run-1", "run-2")
        assert f"process {holder.pid} on {found.host}, since {found.started_at}, at work on run run-2" in str(
            caught.value
        )
    holder.communicate()
    with Lock.take(tmp_path, Path("/srv/fleet")) as lock:
        assert lock.left.cut == ()


def test_who_was_killed_is_told_once(tmp_path: Path, holder: subprocess.Popen[bytes]) -> None:
    end_of(holder)
    refuse_if_held(tmp_path, Path("/srv/fleet"))
    with Lock.take(tmp_path, Path("/srv/fleet")) as lock:
        (cut,) = lock.left.cut
        assert (cut.pid, cut.runs) == (holder.pid, ("run-1", "run-2"))
        lock.told()
    with Lock.take(tmp_path, Path("/srv/fleet")) as lock:
        assert lock.left.cut == ()


def test_two_may_look_at_once(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        refuse_if_held(tmp_path, Path("/srv/fleet"))
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BusyError):
            refuse_if_held(tmp_path, Path("/srv/fleet"))


def test_a_full_disk_keeps_nobody_from_the_lock(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", NO_ROOM + HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(BusyError, match="a process that has not said who it is"):
            Lock.take(tmp_path, Path("/srv/fleet"))
    assert process.returncode == 0


def test_who_leaves_its_words_was_cut(tmp_path: Path) -> None:
    with Lock.take(tmp_path, Path("/srv/fleet")) as lock:
        lock.note("run-1")
        lock.keep_words()
    with Lock.take(tmp_path, Path("/srv/fleet")) as lock:
        (cut,) = lock.left.cut
        assert cut.runs == ("run-1",)


def test_of_all_that_were_cut_the_next_one_tells(tmp_path: Path) -> None:
    for number in range(60):
        with Lock.take(tmp_path, Path("/srv/fleet")) as lock:
            lock.note(f"run-{number}")
            lock.keep_words()
    with Lock.take(tmp_path, Path("/srv/fleet")) as lock:
        assert [cut.runs for cut in lock.left.cut] == [(f"run-{number}",) for number in range(10, 60)]
        assert lock.left.more == 10
        # This one comes to its end, but can't tell anybody.
    with Lock.take(tmp_path, Path("/srv/fleet")) as lock:
        assert (len(lock.left.cut), lock.left.more) == (50, 10)
        lock.told()
    assert (tmp_path / "lock").read_bytes() == b""


def test_a_disk_that_is_full_by_now_takes_no_words_away(tmp_path: Path, holder: subprocess.Popen[bytes]) -> None:
    end_of(holder)
    second = subprocess.Popen(
        [sys.executable, "-c", NO_ROOM + HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert second.stdout is not None
    assert second.stdout.readline() == b"held\n"
    end_of(second)
    with Lock.take(tmp_path, Path("/srv/fleet")) as lock:
        assert [cut.pid for cut in lock.left.cut] == [holder.pid]


def end_of(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_an_error_is_no_cut(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Lock.take(tmp_path, Path("/srv/fleet")):
        raise ZeroDivisionError
    with Lock.take(tmp_path, Path("/srv/fleet")) as lock:
        assert lock.left.cut == ()


@pytest.mark.parametrize(
    "words", [b"{", b"[1]", b'{"pid": null}', b"\xff" * 40, b'{"pid": 1, "runs": 3}', b"[" * 9000, b'{"more": 1e999}']
)
def test_words_that_nobody_can_read(tmp_path: Path, words: bytes) -> None:
    (tmp_path / "lock").write_bytes(words)
    with Lock.take(tmp_path, Path("/srv/fleet")) as lock:
        (cut,) = lock.left.cut
        assert cut.pid is None


def test_a_folder_that_can_not_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for attempt in (Lock.take, refuse_if_held):
        with pytest.raises(ConfigError, match="cannot be used: Not a directory"):
            attempt(tmp_path / "file" / "audits", Path("/srv/fleet"))


def test_each_project_has_a_folder_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "link").symlink_to("one")
    one, link, two = (audit_folder(tmp_path, tmp_path / name) for name in ("one", "link", "two"))
    assert one == link
    assert one != two


def test_nobody_else_may_read_what_audits_keep(tmp_path: Path) -> None:
    """An audit may be the first to use the folder of the history."""
    state = tmp_path / "new" / "remoterun"
    with Lock.take(audit_folder(state, Path("/srv/fleet")), Path("/srv/fleet")):
        assert state.stat().st_mode & 0o777 == 0o700
