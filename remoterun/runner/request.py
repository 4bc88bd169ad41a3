"""Put a job into the bytes that a leg understands."""

from __future__ import annotations

import io
import json
import marshal
import re
import struct
import zipfile
import zlib
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from os import urandom
from typing import TYPE_CHECKING, Final

from remoterun.model import (
    CacheWork,
    ExecWork,
    Job,
    OtherWork,
    Pack,
    PayloadRef,
    PayloadWork,
    ScriptWork,
    Severity,
)
from remoterun.remote.bundle import program
from remoterun.remote.stage0 import code_key, opening
from remoterun.remote.wire import ACK, PACK, REQUEST, Encoder
from remoterun.store import key_for

if TYPE_CHECKING:
    from collections.abc import Mapping

INLINE_MAX: Final = 24 * 1024
"""Packs smaller than this once compressed are sent along; asking first whether the target has them costs more."""
# Sources shrink to a fifth at best: larger packs are not compressed only to see whether they are small.
_PLAIN_MAX: Final = 8 * INLINE_MAX
COMPILE_MIN: Final = 16 * 1024
"""Less code than this is compiled faster than its compiled form is looked for: the target is told where it stands."""
GRACE_S: Final = 5.0
"""Between TERM and KILL, on the target."""
_SILENCE_S: Final = 45.0
_BEAT_S: Final = 5.0
_KEEP_PAYLOAD: Final = (512 * 1024, 512 * 1024)
# Those that the target itself has an eye on, and what each can be in seconds: it is no friend who tells of them.
_KEPT_LIMITS: Final = ("run", "stall", "lease")
_LEAST_S, _MOST_S = 0.01, 1e14
_KEEP_ALONE: Final = (4 << 20, 4 << 20)
# Bytes of messages that wait on the target to be acknowledged before the payload has to, and bytes that it keeps at
# all. A run that goes on without us has room for everything that an outcome may hold.
_SPOOL: Final = (4 << 20, 16 << 20)
_SPOOL_ALONE: Final = (96 << 20, 96 << 20)
_CONTROLLER_STREAM: Final = 0
# Bytes in front of a member's name, which its data follow.
_ZIP_HEADER: Final = 30
_LONGEST_TOLD: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach:
    """Say by which connection a run is talked with, and what is wanted of it.

    `generation` counts the connections of one controller; `number` is that of the next message; `only`: nothing is to
    be started where the run does not go on any more.
    """

    controller: bytes
    generation: int = 0
    number: int = 0
    only: bool = False


@dataclass(slots=True)
class Packed:
    """Compress a pack when it is first sent: most targets have the larger ones, and it takes a while."""

    _done: dict[tuple[str, bool], bytes] = field(default_factory=dict)
    _modules: dict[str, dict[str, tuple[bool, str, int, int]]] = field(default_factory=dict)

    def get(self, pack: Pack, *, bz2: bool = False) -> bytes:
        """Return the pack compressed by zlib, or, if it may be and can be, by bz2, which makes a fifth less of code."""
        key = pack.sha256, bz2
        if key not in self._done:
            compress = zlib.compress
            with suppress(ImportError):
                compress = import_module("bz2").compress if bz2 else compress
            self._done[key] = compress(pack.data, 9)
        return self._done[key]

    def modules(self, pack: Pack) -> dict[str, tuple[bool, str, int, int]]:
        """Return where the modules stand in a pack, in the form that `remote.importer` takes."""
        if pack.sha256 not in self._modules:
            self._modules[pack.sha256] = _modules(pack.data)
        return self._modules[pack.sha256]

    def is_small(self, pack: Pack) -> bool:
        """Tell whether asking the target first would take longer than sending it."""
        return len(pack.data) <= _PLAIN_MAX and len(self.get(pack)) <= INLINE_MAX


class Request:
    """Hold what is sent for one job over one connection: the opening at once, the code when the target asks for it.

    `alone`: the run is to go on without us, so that the target keeps what it would else only pass on.

    Marshal (format 2, the same in every Python 3) carries the request: it is C code without an import on the target,
    holds bytes as they are, and only ever travels towards the target, which trusts its controller.
    """

    def __init__(
        self,
        job: Job,
        key: str,
        packed: Packed,
        *,
        use_cache: bool,
        attach: Attach | None = None,
        alone: bool = False,
    ) -> None:
        self._attach = attach or Attach(controller=urandom(8))
        self._alone = alone
        self.nonce = urandom(8)
        self._encoder = Encoder(self.nonce, _CONTROLLER_STREAM)
        self._job = job
        self._packed = packed
        self._inline = not use_cache or (isinstance(job.work, PayloadWork) and packed.is_small(job.work.pack))
        self._use_cache = use_cache
        self.key = key

    def opening(self) -> bytes:
        """Return everything that is sent without waiting for an answer."""
        header = marshal.dumps({"nonce": self.nonce, "key": self.key}, 2)
        key = code_key(self._secret(), program()) if self._use_cache else b""
        parts = [opening(self._job.target.interpreter, program(), key, header)]
        parts += self._encoder.frames(REQUEST, marshal.dumps(self._body(), 2))
        if isinstance(self._job.work, PayloadWork) and self._inline and not self._attach.only:
            parts.append(self.code())
        return b"".join(parts)

    def _secret(self) -> bytes:
        """Return a secret for this target alone: on another, one that it learns is worth nothing."""
        target, host = self._job.target, self._job.target.host
        # Not the target's id: paths that are checked on one machine are targets by themselves.
        place = (host.address, str(host.port), host.key, target.guest or "", target.user or "")
        return key_for("\0".join(("code", *place)))

    def code(self, need: bytes = b"") -> bytes:
        """Return the frames that carry the code, none of it where a target asks for what there is not.

        `need` is what a target said when it asked: that it has bz2, which not every Python was built with.
        """
        work, bz2 = self._job.work, b'"bz2"' in need
        code = self._packed.get(work.pack, bz2=bz2) if isinstance(work, PayloadWork) else b""
        return b"".join(self._encoder.frames(PACK, code))

    def frame(self, kind: int) -> bytes:
        """Return a frame without a body: a ping or a cancellation."""
        return b"".join(self._encoder.frames(kind))

    def acknowledgement(self, number: int) -> bytes:
        """Return the frame which says that all messages before a number have arrived."""
        return b"".join(self._encoder.frames(ACK, struct.pack(">Q", number)))

    def _body(self) -> dict[str, object]:
        job = self._job
        limits = {
            "run": job.limits.run,
            "stall": job.limits.stall,
            "silence": job.limits.idle if job.limits.idle is not None else _SILENCE_S,
            "beat": beat_s(job),
            "grace": GRACE_S,
        }
        attach = self._attach
        body: dict[str, object] = {
            "limits": limits,
            "env": _environment(job.env),
            "pack": None,
            "program": None,
            "lease": job.limits.lease,
            "spool": _SPOOL_ALONE if self._alone else _SPOOL,
            "attach": (attach.controller, attach.generation, attach.number, attach.only),
            "about": describe(job),
        }
        return body | self._work()

    @property
    def _keep(self) -> tuple[int | None, int]:
        """Return how much of a program's output passes at once, and how much is kept of its end."""
        return _KEEP_ALONE if self._alone else (None, 0)

    def _work(self) -> dict[str, object]:
        work = self._job.work
        if isinstance(work, CacheWork):
            return {"mode": "gc"}
        if isinstance(work, OtherWork):
            return {"mode": "attach"}
        if isinstance(work, ExecWork):
            return {"mode": "exec", "argv": list(work.argv), "keep": self._keep}
        if isinstance(work, ScriptWork):
            return {
                "mode": "script",
                "name": work.name,
                "source": work.source,
                "args": list(work.args),
                "keep": self._keep,
            }
        pack = work.pack
        return {
            "mode": "payload",
            "pack": {
                "sha256": pack.sha256,
                "size": len(pack.data),
                "cache": self._use_cache,
                "inline": self._inline,
                "compile": self._use_cache and not pack.program and pack.code_size >= COMPILE_MIN,
            },
            "modules": self._packed.modules(pack) if pack.code_size < COMPILE_MIN and not pack.program else None,
            "entry": pack.entry,
            "program": pack.program,
            "requires": list(pack.requires),
            "python": pack.python,
            "params": dict(work.params),
            "keep": _KEEP_PAYLOAD,
        }


def _modules(data: bytes) -> dict[str, tuple[bool, str, int, int]]:
    """Find the Python files of a zip that compresses nothing; none in what is no zip, as its target will say."""
    found = {}
    with suppress(zipfile.BadZipFile), zipfile.ZipFile(io.BytesIO(data)) as archive:
        for member in archive.infolist():
            if member.filename.endswith(".py"):
                *folders, last = member.filename[:-3].split("/")
                package = last == "__init__"
                name = ".".join(folders if package else (*folders, last))
                start = member.header_offset + _ZIP_HEADER + len(member.filename)
                found[name] = package, member.filename, start, start + member.file_size
    return found


def _environment(env: Mapping[str, str]) -> dict[bytes, bytes]:
    return {
        key.encode("utf-8", "surrogateescape"): value.encode("utf-8", "surrogateescape") for key, value in env.items()
    }


def beat_s(job: Job) -> float:
    """Return how often controller and target give a sign of life: several times within the limits on silence."""
    limits = (job.limits.idle, job.limits.lease)
    return min([_BEAT_S, *(limit / 3 for limit in limits if limit is not None)])


def streams(job: Job) -> bool:
    """Tell whether this job's output is passed on as it comes: a person's script or program, not a payload."""
    return isinstance(job.work, (ScriptWork, ExecWork)) or (isinstance(job.work, OtherWork) and job.work.streams)


def payload_of(job: Job) -> PayloadRef | None:
    """Identify the payload of a job; None for a person's own script or program."""
    if isinstance(job.work, OtherWork):
        return job.work.payload
    return job.work.pack.ref if isinstance(job.work, PayloadWork) else None


def describe(job: Job) -> bytes:
    """Write down what a controller that has no plan of a run must know to follow it: for the target to keep."""
    ref = payload_of(job)
    about = {
        "payload": None if ref is None else {"name": ref.name, "version": ref.version, "sha256": ref.sha256},
        "streams": streams(job),
        "fail_on": job.fail_on.value,
        "limits": {name: getattr(job.limits, name) for name in _KEPT_LIMITS},
    }
    return json.dumps(about, separators=(",", ":")).encode("ascii")


def described(job: Job, about: object) -> Job:
    """Return a job with what its target kept of `describe`; a target is free to lie about its own outcome.

    Raises:
        ValueError: when that is not of its form.
    """
    try:
        value = json.loads(str(about))
        ref, limits = value["payload"], value["limits"]
        known = {name: None if limits[name] is None else _seconds(limits[name]) for name in _KEPT_LIMITS}
        payload = None
        if ref is not None:
            version = None if ref["version"] is None else str(ref["version"])[:64]
            payload = PayloadRef(name=str(ref["name"])[:200], version=version, sha256=_hash(ref["sha256"]))
        work = OtherWork(payload=payload, streams=value["streams"] is True)
        return replace(
            job,
            work=work,
            fail_on=Severity(value["fail_on"]),
            limits=job.limits.merged(known),
            # Whoever planned it knows where they were set.
            limits_set_by={**job.limits_set_by, **dict.fromkeys(_KEPT_LIMITS, "")},
        )
    except (TypeError, KeyError, ValueError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}"[:_LONGEST_TOLD]) from error


def _hash(value: object) -> str:
    # Documents promise that it is one.
    if not isinstance(value, str) or re.fullmatch("[0-9a-f]{64}", value) is None:
        raise ValueError("the hash of the payload is none")
    return value


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not _LEAST_S <= value <= _MOST_S:
        raise ValueError("a limit is no number of seconds that can be one")
    return float(value)
