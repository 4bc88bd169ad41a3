"""What leg and supervisor need of the operating system, at the least start-up cost.

The C modules behind `signal`, `socket` and `hashlib` are imported directly: the Python layers above them pull in
`enum` and `re`, which cost more than everything else a leg does. Where an implementation lacks one, the public module
takes its place.
"""

from __future__ import annotations

import errno
import os
import pwd

try:
    import _signal as signal  # type: ignore[import-not-found]
except ImportError:
    import signal
try:
    import _socket as socket
except ImportError:
    import socket  # type: ignore[no-redef]
try:
    from _sha2 import sha256  # type: ignore[import-not-found]
except ImportError:
    try:
        from _sha256 import sha256  # type: ignore[import-not-found]
    except ImportError:
        from hashlib import sha256

__all__ = [
    "MARKER",
    "account",
    "become_subreaper",
    "close_all_but",
    "descendants",
    "die_with_parent",
    "folder_name",
    "is_full",
    "kill_groups",
    "kill_quietly",
    "marked",
    "own_children",
    "private_folder",
    "private_paths",
    "read_small",
    "remove_tree",
    "sealed",
    "sha256",
    "signal",
    "socket",
    "worst_state",
    "write_all",
]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_F_ADD_SEALS = 1033
_SEAL_ALL = 0xF
MARKER = "REMOTERUN_RUN"


def _prctl(option: int, value: int) -> bool:
    """Call prctl(2); False where it cannot be called at all."""
    try:
        import _ctypes

        address = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
        return bool(_ctypes.call_function(address, (option, value, 0, 0, 0)) == 0)
    except (ImportError, AttributeError, OSError, TypeError, ValueError):
        pass
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)
    except (ImportError, AttributeError, OSError):
        return False


def become_subreaper() -> bool:
    """Make every orphan below this process its own child, so that none gets lost."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies; leave at once when it already has."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(125)


def account() -> tuple[str, str, str]:
    """Return name, home and shell of the user this process runs as."""
    try:
        entry = pwd.getpwuid(os.geteuid())
    except KeyError:
        return str(os.geteuid()), "/", "/bin/sh"
    return entry.pw_name, entry.pw_dir, entry.pw_shell


def read_small(path: str, limit: int = 65536) -> bytes:
    """Read the beginning of a file, b"" when it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, limit)
    except OSError:
        return b""
    finally:
        os.close(fd)


def close_all_but(keep: set[int]) -> None:
    """Close every descriptor except the named ones. An inherited one would hold the SSH channel open for ever."""
    try:
        numbers = [int(name) for name in os.listdir("/dev/fd")]
    except OSError:
        numbers = list(range(1024))
    for number in numbers:
        if number not in keep:
            try:
                os.close(number)
            except OSError:
                pass


# --- processes
# ---------------------------------------------------------------------------------------------------------


def _all_pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _stat(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the state on: state, ppid, pgrp, ..."""
    data = read_small("/proc/%d/stat" % pid)
    return data[data.rfind(b")") + 2 :].split()


def descendants(root: int) -> dict[int, bytes]:
    """Return the pids of all living descendants of a process, with their state letters; zombies are left out."""
    children: dict[int, list[tuple[int, bytes]]] = {}
    for pid in _all_pids():
        stat = _stat(pid)
        if len(stat) > 1:
            children.setdefault(int(stat[1]), []).append((pid, stat[0]))
    found: dict[int, bytes] = {}
    waiting = [root]
    while waiting:
        for pid, state in children.get(waiting.pop(), ()):
            if pid not in found:
                waiting.append(pid)
                found[pid] = state
    return {pid: state for pid, state in found.items() if state not in (b"Z", b"X")}


def marked(key: str) -> list[int]:
    """Return the pids of all processes whose environment carries this run's marker, this process left out."""
    needle = ("%s=%s" % (MARKER, key)).encode()
    mine = os.getpid()
    return [
        pid
        for pid in _all_pids()
        if pid != mine and needle in read_small("/proc/%d/environ" % pid, 1 << 20).split(b"\0")
    ]


def own_children() -> list[int]:
    """Return the pids of this process's children, zombies among them, in far less time than it takes to fork."""
    pid = os.getpid()
    return [int(word) for word in read_small("/proc/%d/task/%d/children" % (pid, pid)).split()]


def kill_groups(pids: list[int]) -> None:
    """Kill the process groups of processes, where it is not our own: nobody forks away from a killed group."""
    groups = set()
    for pid in pids:
        try:
            groups.add(os.getpgid(pid))
        except OSError:
            pass
    for group in groups - {os.getpgrp()}:
        try:
            os.killpg(group, signal.SIGKILL)
        except OSError:
            pass


def kill_quietly(pids: list[int], number: int) -> None:
    """Send a signal to processes that may be gone by now."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def worst_state(states: list[bytes]) -> str:
    """Return the letter that says most of why processes get no further: D before R before the others."""
    return next((letter for letter in "DRTSI" if letter.encode() in states), "?")


# --- code in memory or in a private folder --------------------------------------------------------------------------


def sealed(name: str, data: bytes) -> int:
    """Put bytes into an anonymous file that nobody can change any more, and return its descriptor.

    Raises:
        OSError, AttributeError: where there is no memfd.
    """
    import fcntl

    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        write_all(fd, data)
        fcntl.fcntl(fd, _F_ADD_SEALS, _SEAL_ALL)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def write_all(fd: int, data: bytes) -> None:
    """Write every byte to a blocking descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def folder_name(key: str) -> str:
    """Return what a run's private folder is called, which every leg of the run can find out."""
    name: str = sha256(key.encode()).hexdigest()[:16]
    return name


def private_paths(name: str) -> list[str]:
    """Return where a run's private folder may lie, the best place first."""
    places = [os.environ.get("XDG_RUNTIME_DIR", ""), "/run", "/dev/shm", "/tmp"]
    return ["%s/remoterun-%s" % (place, name) for place in places if place.startswith("/")]


def private_folder(name: str, room: int, *, runs: bool) -> str:
    """Make a new folder that only this user can enter, in the first place with room for so many bytes.

    With `runs`, places that nothing can be executed from come last: Debian mounts /run so.

    Raises:
        OSError: when no place takes it, of one without room if there was one.
    """
    places = private_paths(name)
    if runs:
        places.sort(key=_is_noexec)
    trouble = OSError("no place for a private folder")
    for path in places:
        try:
            os.mkdir(path, 0o700)
        except OSError as refused:
            error = refused
        else:
            try:
                _take_room(path, room)
                return path
            except OSError as refused:
                error = refused
                os.rmdir(path)
        trouble = trouble if is_full(trouble) else error
    raise trouble


def is_full(error: Exception) -> bool:
    """Tell that something failed for want of room."""
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)


def _is_noexec(path: str) -> bool:
    try:
        return bool(os.statvfs(os.path.dirname(path)).f_flag & os.ST_NOEXEC)
    except (OSError, AttributeError):
        return False


def _take_room(folder: str, size: int) -> None:
    """Try out whether there is room: what a file system says of itself knows nothing of quotas.

    Raises:
        OSError: when there is none, or no file can be made at all.
    """
    path = os.path.join(folder, "room")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
    except (OSError, AttributeError) as error:
        # Not every system can try.
        if is_full(error):
            raise OSError(errno.ENOSPC, "no room for %d bytes" % size, folder) from error
    finally:
        os.close(fd)
        os.unlink(path)


def remove_tree(path: str) -> None:
    """Remove a folder of ours and everything in it, following no link."""
    try:
        with os.scandir(path) as entries:
            for entry in list(entries):
                if entry.is_dir(follow_symlinks=False):
                    remove_tree(entry.path)
                else:
                    os.unlink(entry.path)
        os.rmdir(path)
    except OSError:
        pass
