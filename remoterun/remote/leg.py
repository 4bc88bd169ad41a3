"""The leg: what stage 0 becomes. It answers, gets the code, starts the supervisor, and relays frames.

One leg per connection. With its relay, it is the only reader of fd 0 and the only writer of fd 1.
"""

from __future__ import annotations

import marshal
import os
import select
import sys
import time
import zlib

from remoterun.remote.cache import cached_pack, empty_caches, keep_code, keep_pack
from remoterun.remote.compiled import compiled_pack, keep_compiled
from remoterun.remote.link import ENDING, FORGOTTEN, OLDER, TAKEN_OVER, attach, peer, wait_until_ended
from remoterun.remote.relay import FLUSH_S, GoneError, Inbox, Relay
from remoterun.remote.supervisor import supervise
from remoterun.remote.system import (
    account,
    become_subreaper,
    close_all_but,
    descendants,
    folder_name,
    kill_groups,
    kill_quietly,
    marked,
    private_paths,
    read_small,
    remove_tree,
    sha256,
    signal,
    socket,
)
from remoterun.remote.wire import ATTACHED, HELLO, LEG_STREAM, NEED, PACK, PROBLEM, REQUEST, RESULT, Encoder, to_json

_SWEEPS = 100
# TERM, grace, KILL, and what a supervisor may take to drain its link.
_END_S = 45.0
_DEATH_S = 1.0

_REFUSALS = {
    OLDER: TAKEN_OVER,
    FORGOTTEN: ("output_forgotten", "the target keeps the beginning of what the payload said no more"),
}


class Leg:
    """Drive one request from hello to result."""

    def __init__(self, header: dict[str, object], already: bytes) -> None:
        nonce: bytes = header["nonce"]  # type: ignore[assignment]
        self.nonce = nonce
        self.key = str(header["key"])
        self._refused = False
        self._uncompiled = ""
        self._encoder = Encoder(nonce, LEG_STREAM)
        self._inbox = Inbox(nonce, already)

    def _say(self, kind: int, value: object) -> None:
        for frame in self._encoder.frames(kind, to_json(value).encode("ascii")):
            _write_frame(frame)

    def run(self, codes: list[object], key: bytes, place: str) -> None:
        """Answer, prepare, start, relay."""
        self._say(HELLO, _facts())
        try:
            request = marshal.loads(self._inbox.wait_message(REQUEST))
            if request["mode"] == "gc":
                removed, freed = empty_caches()
                self._say(RESULT, {"removed": removed, "freed": freed})
                return
            if request["lease"] is not None and self._attach(request["attach"]):
                return
            pack = request["pack"]
            code = self._code(pack, key) if self._fits(request) and pack else b""
            if code is None or self._refused:
                return
            self._inbox.still_wanted()
        except GoneError:
            return
        request["runtime"] = codes[1]
        link, child = self._start(request, code)
        # Not before: the payload is on its way, and nothing waits for this.
        if place:
            keep_code(place, key, marshal.dumps(codes))
        if self._uncompiled:
            keep_compiled(self._uncompiled, key, code)
        self._relay(link, child, resumable=request["lease"] is not None)

    def _attach(self, wanted: tuple[bytes, int, int, bool]) -> bool:
        """Take up a run that goes on here; False where there is none and one is to be started."""
        try:
            found = attach(self.key, self.nonce, wanted)
            if found == ENDING:
                wait_until_ended(self.key)
                found = None
        except OSError:
            # It was stopped, or has just ended: the controller asks again.
            return True
        if isinstance(found, tuple):
            link, first, count, about = found
            self._say(ATTACHED, {"first": first, "count": count, "about": about.decode("ascii")})
            self._relay(link, 0, resumable=True)
        elif found is not None:
            self._refuse(*_REFUSALS[found])
        elif wanted[3]:
            _sweep(self.key)
            self._refuse("lease_expired", "nothing is left there of this run")
        return found is not None or wanted[3]

    def _fits(self, request: dict[str, object]) -> bool:
        """Tell what is lacking here, instead of starting what nobody could end, or what dies of a syntax error."""
        wanted: tuple[int, int] = request.get("python", (0, 0))  # type: ignore[assignment]
        if sys.platform == "linux" and not os.path.exists("/proc/self/stat"):
            self._refuse("start_failed", "no /proc is mounted there, so nothing that is started could be kept track of")
        elif sys.version_info[:2] < wanted:
            message = "%s is Python %d.%d; the payload needs %d.%d or later"
            have = sys.version_info[0], sys.version_info[1]
            self._refuse("python_too_old", message % (sys.executable, *have, *wanted))
        return not self._refused

    def _refuse(self, code: str, message: str) -> None:
        self._say(PROBLEM, {"code": code, "message": message})
        self._refused = True

    def _code(self, wanted: dict[str, object], key: bytes) -> bytes | None:
        """Return the pack, compiled if that is kept here, else as it is; None after a problem was told."""
        sha = str(wanted["sha256"])
        compiled = compiled_pack(sha, key) if wanted["compile"] else None
        if compiled is not None and not wanted["inline"]:
            return compiled
        data = self._pack(wanted)
        if data is None or compiled is not None:
            return data and compiled
        if wanted["compile"] and key:
            self._uncompiled = sha
        return data

    def _pack(self, wanted: dict[str, object]) -> bytes | None:
        """Return the pack, from the cache or the controller, never unverified; None after a problem was told."""
        sha, size = str(wanted["sha256"]), int(wanted["size"])  # type: ignore[call-overload]
        use_cache = bool(wanted["cache"]) and not wanted["inline"]
        data = cached_pack(sha, size) if use_cache else None
        if data is not None:
            return data
        if not wanted["inline"]:
            self._say(NEED, {"sha256": sha, "packing": "bz2" if _has_bz2() else "zlib"})
        data = _unpacked(self._inbox.wait_message(PACK), size + 1)
        if len(data) != size or sha256(data).hexdigest() != sha:
            self._refuse("upload_damaged", "the code for %s arrived damaged" % sha[:12])
            return None
        if use_cache:
            keep_pack(sha, data)
        return data

    def _start(self, request: dict[str, object], code: bytes) -> tuple[socket.socket, int]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        # If the supervisor is killed, what it leaves behind becomes ours, whatever it has done to its environment.
        become_subreaper()
        child = os.fork()
        if child == 0:
            try:
                os.setsid()
                signal.signal(signal.SIGPIPE, signal.SIG_IGN)
                signal.pthread_sigmask(signal.SIG_SETMASK, ())
                close_all_but({theirs.fileno()})
                for _ in (0, 1, 2):
                    os.open(os.devnull, os.O_RDWR)
                reaper = become_subreaper()
                supervise(theirs.fileno(), self.nonce, self.key, request, code, reaper)
            finally:
                os._exit(0)
        theirs.close()
        ours.setblocking(False)
        return ours, child

    def _relay(self, link: socket.socket, child: int, *, resumable: bool) -> None:
        """Pass frames both ways until the supervisor is done or the controller is gone.

        `child` is the supervisor, 0 where another leg has started it.
        """
        relay = Relay(link, self._inbox)
        finished = relay.run()
        other = 0 if child else peer(link)
        link.close()
        if resumable and self._inbox.ended and not relay.cancelled:
            # The supervisor waits for another leg, by itself.
            return
        if resumable and not finished and not relay.silent and _lives_on(child, other):
            # Another leg has taken the run over, or nobody was expected to come back.
            return
        if relay.silent and other:
            kill_quietly([other], signal.SIGKILL)
        ended = _reap(child, 0.0 if relay.silent else _END_S) if child else True
        if not finished or not ended:
            killed = _sweep(self.key)
            if not self._inbox.ended:
                message = "the supervisor on the target was killed; %d processes it left were killed" % killed
                self._say(PROBLEM, {"code": "payload_killed", "message": message})


def _facts() -> dict[str, object]:
    system = os.uname()
    return {
        "hostname": system.nodename,
        "kernel": system.release,
        "machine": system.machine,
        "python": "%d.%d.%d" % tuple(sys.version_info[:3]),
        "interpreter": sys.executable,
        "user": account()[0],
        "boot_id": read_small("/proc/sys/kernel/random/boot_id").decode("ascii", "replace").strip(),
    }


def _write_frame(frame: bytes) -> None:
    """Write one frame to stdout, waiting for room; a controller that has gone is noticed by the reader."""
    while frame:
        try:
            frame = frame[os.write(1, frame) :]
        except BlockingIOError:
            if not select.select([], [1], [], FLUSH_S)[1]:
                return
        except OSError:
            return


def _sweep(key: str) -> int:
    """Kill what carries the mark of a run and remove its folder; return how many processes that were."""
    killed: set[int] = set()
    for _ in range(_SWEEPS):
        left = sorted({*marked(key), *descendants(os.getpid())})
        if not left:
            break
        kill_groups(left)
        kill_quietly(left, signal.SIGKILL)
        killed.update(left)
        time.sleep(0.02)
    for path in private_paths(folder_name(key)):
        remove_tree(path)
    return len(killed)


def _lives_on(child: int, other: int) -> bool:
    """Tell whether a supervisor that has closed its link still lives; one that was killed is gone in a moment."""
    give_up = time.monotonic() + _DEATH_S
    while time.monotonic() < give_up:
        try:
            if child and os.waitpid(child, os.WNOHANG)[0]:
                return False
            os.kill(child or other, 0)
        except OSError:
            return False
        time.sleep(0.01)
    return True


def _has_bz2() -> bool:
    """Tell whether this Python was built with bz2."""
    try:
        import _bz2  # noqa: F401
    except ImportError:
        return False
    return True


def _unpacked(packed: bytes, most: int) -> bytes:
    """Return what was compressed, so many bytes of it at most; none where it is damaged."""
    try:
        if packed.startswith(b"BZh"):
            from _bz2 import BZ2Decompressor

            return BZ2Decompressor().decompress(packed, most)
        return zlib.decompressobj().decompress(packed, most)
    except (zlib.error, ImportError, OSError, EOFError):
        return b""


def _reap(child: int, patience_s: float) -> bool:
    """Wait for the supervisor to end by itself; False when it did not, and has been killed."""
    give_up = time.monotonic() + patience_s
    # Mostly it is on its way out already, and the whole session waits for this.
    pause_s = 0.0005
    try:
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            if time.monotonic() >= give_up:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return False
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.05)
    except OSError:
        pass
    return True


def leg_main(stdin: object, codes: list[object], key: bytes, place: str) -> None:
    """Take over from stage 0.

    Args:
        stdin: the buffered reader, which may already hold bytes of what follows.
        codes: this program, compiled, and the payload's runtime, which is marshalled as well.
        key: what the compiled program is signed with.
        place: where it is to be kept; nothing when it came from there.
    """
    read = stdin.read  # type: ignore[attr-defined]
    header = marshal.loads(read(int(stdin.readline())))  # type: ignore[attr-defined]
    os.set_blocking(0, False)
    # What the reader holds in its buffer comes first; from here on only the inbox touches fd 0.
    already = stdin.peek()  # type: ignore[attr-defined]
    Leg(header, bytes(already)).run(codes, key, place)
    os._exit(0)
