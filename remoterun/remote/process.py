"""The payload's process: its code in memory, its environment built from nothing, its pipes."""

from __future__ import annotations

import marshal
import os
import sys

from remoterun.remote.system import (
    MARKER,
    account,
    die_with_parent,
    private_folder,
    remove_tree,
    sealed,
    signal,
    write_all,
)
from remoterun.remote.wire import STDERR, STDERR_TAIL, STDOUT, STDOUT_TAIL, to_json

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NICE = 10
_PAGE = 4096
# Reads the configuration, then runs the runtime's code from it. It is started as a file: with `-c`, Python 3.13 imports
# linecache from the working directory, the user's home. Without __file__, multiprocessing's spawn leaves it alone.
START = (
    "import sys,marshal;del __file__;sys.path[:1]=[];f=open(sys.argv[1],'rb');c=marshal.load(f);f.close();"
    "n={'__name__':'remoterun_runtime'};exec(marshal.loads(c['runtime']),n);n['main'](c)"
)


class PayloadError(Exception):
    """Say why the payload's process could not be started."""


class Capture:
    """Pass on the head of a stream as it comes, keep its tail, count the rest; no `head_room` passes all on."""

    def __init__(self, fd: int, kind: int, tail_kind: int, head_room: int | None, tail_room: int) -> None:
        self.fd = fd
        self.kind = kind
        self.tail_kind = tail_kind
        self.total = 0
        self.tail = bytearray()
        self._head_room = head_room
        self._tail_room = tail_room

    def take(self, data: bytes) -> bytes:
        """Count bytes and return what of them is to be sent now."""
        self.total += len(data)
        if self._head_room is None:
            return data
        head, rest = data[: self._head_room], data[self._head_room :]
        self._head_room -= len(head)
        if rest:
            self.tail += rest
            if len(self.tail) > self._tail_room:
                del self.tail[: len(self.tail) - self._tail_room]
        return head


class Payload:
    """Start one payload and hold what belongs to it."""

    def __init__(self, key: str, name: str, request: dict[str, object], code: bytes) -> None:
        self._key = key
        self._name = name
        self._request = request
        self._code = code
        self._held: list[int] = []
        self._folder = ""
        self._pipes: set[int] = set()
        self.token = os.urandom(8)
        self.pid = 0
        self.start_fd = -1
        self.trouble = ""
        self.record_fd = -1
        self.wake_fd = -1
        self.stdout = Capture(-1, STDOUT, STDOUT_TAIL, 0, 0)
        self.stderr = Capture(-1, STDERR, STDERR_TAIL, 0, 0)

    def open_pipes(self) -> list[int]:
        """Return the descriptors that may still bring something; before the start is known, nothing else counts."""
        return [self.start_fd] if self.start_fd in self._pipes else list(self._pipes)

    def close_pipe(self, fd: int) -> None:
        """Forget a pipe that has ended."""
        self._pipes.discard(fd)
        os.close(fd)

    def hurry(self) -> None:
        """Take what is in the pipes as their end: whoever could still write is dead, or will never be waited for."""
        for fd in self.open_pipes():
            if not _readable(fd):
                self.close_pipe(fd)

    def start(self) -> None:
        """Fork the process. Whether it could be executed comes through `start_fd`: a file system may hang there.

        Raises:
            OSError, PayloadError: when something on the way cannot be done.
        """
        self._watch_children()
        stdout, stderr, records, status = (os.pipe() for _ in range(4))
        config = {"token": self.token, "fd": records[1]}
        stdin, argv = self._command(config)
        # Not in the child: a directory service is to be asked but once, and by no half of a process.
        environment, home = self._environment()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.set_inheritable(records[1], True)
                _become(parent, stdin, stdout[1], stderr[1], home)
                os.execvpe(argv[0], argv, environment)
            except BaseException as error:
                trouble = "%s: %s" % (os.fsdecode(argv[0])[:500], getattr(error, "strerror", None) or error)
                write_all(status[1], trouble.encode("utf-8", "replace"))
            finally:
                os._exit(127)
        for fd in (stdout[1], stderr[1], records[1], status[1], stdin):
            os.close(fd)
        self._adopt(stdout[0], stderr[0], records[0], status[0])

    def _adopt(self, stdout: int, stderr: int, records: int, status: int) -> None:
        keep: tuple[int | None, int] = self._request["keep"]  # type: ignore[assignment]
        head, tail = keep
        self.stdout = Capture(stdout, STDOUT, STDOUT_TAIL, head, tail)
        self.stderr = Capture(stderr, STDERR, STDERR_TAIL, head, tail)
        self.record_fd = records
        self.start_fd = status
        self._pipes = {stdout, stderr, records, status}
        for fd in self._pipes:
            os.set_blocking(fd, False)

    def _watch_children(self) -> None:
        """Make the death of a child wake the poll."""
        self.wake_fd, wake = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def _command(self, config: dict[str, object]) -> tuple[int, list[bytes]]:
        """Return the descriptor for stdin and the argv."""
        request = self._request
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        if request["mode"] == "exec":
            return nothing, list(request["argv"])  # type: ignore[call-overload]
        if request.get("program"):
            os.close(nothing)
            return self._program_command(str(request["program"]))
        for name in ("mode", "entry", "params", "requires", "name", "source", "args", "runtime", "modules"):
            config[name] = request.get(name)
        code = self._code if request["mode"] == "payload" else request["source"]
        config["path"] = self._place("remoterun-code", code)  # type: ignore[arg-type]
        path = self._place("remoterun-config", marshal.dumps(config))
        start = self._place("remoterun-start", START.encode())
        return nothing, [os.fsencode(word) for word in (sys.executable, "-u", start, path)]

    def _program_command(self, program: str) -> tuple[int, list[bytes]]:
        """Unpack a payload that is a program: it reads its parameters on stdin and may open the files beside it."""
        import io
        import zipfile

        with zipfile.ZipFile(io.BytesIO(self._code)) as pack:
            room = sum(member.file_size + _PAGE for member in (*pack.infolist(), pack.getinfo(program)))
            self._folder = private_folder(self._name, room + self._besides(), runs=True)
            for name in pack.namelist():
                parts = name.split("/")
                if name.startswith("/") or ".." in parts or not parts[-1]:
                    raise PayloadError("the pack names a file outside itself: %r" % name)
                os.makedirs(os.path.join(self._folder, *parts[:-1]), 0o700, exist_ok=True)
                fd = os.open(
                    os.path.join(self._folder, *parts), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o700
                )
                try:
                    write_all(fd, pack.read(name))
                finally:
                    os.close(fd)
            # Memory can be executed where every disk is mounted noexec.
            path = self._place("remoterun-program", pack.read(program))
        params = self._place("remoterun-params", to_json(self._request["params"]).encode("ascii"))
        stdin = os.open(params, os.O_RDONLY | os.O_CLOEXEC)
        return stdin, [os.fsencode(path)]

    def _place(self, name: str, data: bytes) -> str:
        """Put bytes where the payload and its children can open them by path, in memory if at all possible."""
        try:
            fd = sealed(name, data)
        except (OSError, AttributeError):
            self._folder = self._folder or private_folder(self._name, len(self._code) + self._besides(), runs=False)
            path = os.path.join(self._folder, name)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o700)
            try:
                write_all(fd, data)
            finally:
                os.close(fd)
            return path
        self._held.append(fd)
        return "/proc/%d/fd/%d" % (os.getpid(), fd)

    def _besides(self) -> int:
        """Return about what else than code there is to be put on a disk: a handful of files."""
        return len(marshal.dumps(self._request)) + 8 * _PAGE

    def _environment(self) -> tuple[dict[bytes, bytes], str]:
        """Build the environment from nothing, since what a hop passes on differs between versions; and the home."""
        request = self._request
        name, home, shell = account()
        folder = os.path.dirname(sys.executable)
        prefix = os.path.dirname(folder)
        path = _PATH
        result = {
            "HOME": home,
            "USER": name,
            "LOGNAME": name,
            "SHELL": shell or "/bin/sh",
            "LANG": "C.UTF-8",
            "PYTHONUTF8": "1",
        }
        if os.path.exists(os.path.join(prefix, "pyvenv.cfg")):
            path = folder + ":" + path
            result["VIRTUAL_ENV"] = prefix
        elif os.path.isdir(os.path.join(prefix, "conda-meta")):
            path = folder + ":" + path
            result["CONDA_PREFIX"] = prefix
        result["PATH"] = path
        if self._folder:
            result["REMOTERUN_FOLDER"] = self._folder
        pack = self._request["pack"]
        if isinstance(pack, dict) and not pack["cache"]:
            # The payload is to leave no more behind than we do.
            result["REMOTERUN_NO_CACHE"] = "1"
        mark = os.fsencode(MARKER), os.fsencode(self._key)
        # The mark stands first, where whoever sweeps finds it however large the rest is.
        exact = dict([mark])
        exact.update({os.fsencode(key): os.fsencode(value) for key, value in result.items()})
        exact.update(request["env"])  # type: ignore[call-overload]
        exact.update([mark])
        return exact, home

    def clean(self) -> None:
        """Remove what was put on disk, if anything was."""
        if self._folder:
            remove_tree(self._folder)


def _lower_priority() -> None:
    os.nice(_NICE)


def _die_first() -> None:
    fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    os.write(fd, b"1000")
    os.close(fd)


def _become(parent: int, stdin: int, stdout: int, stderr: int, home: str) -> None:
    """Turn the fresh child into what a payload expects: own session, low priority, first victim of a full memory."""
    os.setsid()
    die_with_parent(parent)
    for source, number in ((stdin, 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, number)
    # An ignored signal stays ignored over exec: those that Python ignores, and those that whoever started us did.
    for number in range(1, signal.NSIG):
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            pass
    for act in (_lower_priority, _die_first):
        try:
            act()
        except OSError:
            pass
    try:
        os.chdir(home)
    except OSError:
        os.chdir("/")


def _readable(fd: int) -> bool:
    import select

    return bool(select.select([fd], [], [], 0)[0])
