"""The words of the project as frozen records: targets, limits, work, outcomes, runs, events. No I/O."""

from __future__ import annotations

import re
from dataclasses import field, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal, Self, TypeAlias

from remoterun.errors import ConfigError, TargetError
from remoterun.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
"""A JSON value; numbers are finite."""


class Status(StrEnum):
    """Say what became of one target and step."""

    OK = "ok"
    FINDINGS = "findings"
    FAILED = "failed"
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    LOST = "lost"
    CANCELLED = "cancelled"
    NOT_STARTED = "not_started"
    RUNNING = "running"


class Phase(StrEnum):
    """Name the part of a target's way that an outcome ended in."""

    PLAN = "plan"
    CONNECT = "connect"
    ENTER = "enter"
    UPLOAD = "upload"
    RUN = "run"
    COLLECT = "collect"


class RunStatus(StrEnum):
    """Say what became of a whole run; `exit_code` maps it for the shell."""

    OK = "ok"
    FINDINGS = "findings"
    INVALID = "invalid"
    INCOMPLETE = "incomplete"
    ERROR = "error"
    INTERRUPTED = "interrupted"
    TERMINATED = "terminated"
    DETACHED = "detached"

    @property
    def exit_code(self) -> int:
        """Map to the process's exit status, as the README lists them."""
        codes = {"ok": 0, "findings": 1, "invalid": 2, "incomplete": 3, "error": 4, "interrupted": 130}
        return {**codes, "terminated": 143, "detached": 0}[self.value]


class Severity(StrEnum):
    """Rank a finding: info < suspect < bad."""

    INFO = "info"
    SUSPECT = "suspect"
    BAD = "bad"

    @property
    def rank(self) -> int:
        """Order severities: 0 info, 1 suspect, 2 bad."""
        return ("info", "suspect", "bad").index(self.value)


class Manner(StrEnum):
    """Say how a run is dealt with: followed to its end, or not."""

    FOLLOW = "follow"
    """Start what does not go on yet, and follow it."""
    LEAVE = "leave"
    """Start it, and leave it to itself."""
    ATTACH = "attach"
    """Follow what goes on."""
    COLLECT = "collect"
    """Take what is done, and leave the rest to itself."""
    CANCEL = "cancel"
    """End what goes on."""

    @property
    def starts(self) -> bool:
        """Tell whether something may be started."""
        return self in (Manner.FOLLOW, Manner.LEAVE)


# --- limits -----------------------------------------------------------------------------------------------------------

_DURATION = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,9})?)(?P<unit>ms|s|m|h|d)")
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(text: object) -> float | None:
    """Read `500ms`, `30s`, `20m`, `2h` or `1d` as seconds, `none` as no limit.

    Raises:
        ConfigError: for anything else, bare numbers and zero included.
    """
    if text == "none":
        return None
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    seconds = float(match["number"]) * _UNIT_S[match["unit"]] if match else 0.0
    if seconds <= 0:
        raise ConfigError(f"{text!r} is not a duration: write 500ms, 30s, 20m, 2h or none")
    return seconds


def format_duration(seconds: float | None) -> str:
    """Write seconds the way `parse_duration` reads them, in the largest unit that is exact."""
    if seconds is None:
        return "none"
    for unit in ("h", "m", "s"):
        if seconds >= _UNIT_S[unit] and seconds % _UNIT_S[unit] == 0:
            return f"{seconds / _UNIT_S[unit]:.0f}{unit}"
    return f"{seconds * 1000:.0f}ms" if seconds < 1 else f"{seconds:g}s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bound each phase of a target's way, in seconds; None is no limit."""

    connect: float | None = field(
        default=15.0, metadata={"help": "resolve, TCP, key exchange and authentication, jump hosts included"}
    )
    enter: float | None = field(
        default=30.0, metadata={"help": "from the exec request until Python answers on the target"}
    )
    upload: float | None = field(default=60.0, metadata={"help": "sending the payload's code"})
    idle: float | None = field(default=45.0, metadata={"help": "silence: no frame at all from the target"})
    stall: float | None = field(default=600.0, metadata={"help": "no progress, record or output of the payload"})
    run: float | None = field(
        default=1800.0, metadata={"help": "the payload's running time, by the target's own clock"}
    )
    lease: float | None = field(
        default=120.0,
        metadata={
            "help": "how long the target goes on without a sign of life from here, after a lost connection; "
            "none: not at all"
        },
    )
    total: float | None = field(
        default=None, metadata={"help": "everything for one target and step, waiting for a slot left out"}
    )

    def merged(self, nearer: Mapping[str, float | None]) -> Self:
        """Return these limits with the nearer ones laid over them."""
        return replace(self, **nearer)


LIMIT_NAMES: Final = tuple(item.name for item in fields(Limits))


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """Bound what one host is asked at once.

    `logins`: unauthenticated connections (OpenSSH's MaxStartups 10:30:100 drops more); `enter`: hops starting at once
    (`pct` is a heavy Perl program); `sessions`: open sessions per connection (OpenSSH's MaxSessions is 10).
    """

    logins: int = 6
    enter: int = 4
    sessions: int = 8


# --- where
# --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Describe how a host is reached. Everything left None is ssh_config's business.

    `host_key`: pinned fingerprints (``SHA256:...``); when given, nothing else is trusted. `accept_new`: where nothing
    at all is known of its key, the first one is taken and written to known_hosts. `jump`: hosts to tunnel through, the
    nearest first; None lets ssh_config's ProxyJump decide, an empty tuple means a direct connection. `ssh_config`: a
    file to read instead of ~/.ssh/config, or "none". `transport`: "local" runs here without SSH.
    """

    key: str
    address: str
    port: int | None = None
    user: str | None = None
    identity_files: tuple[str, ...] = ()
    known_hosts: tuple[str, ...] = ()
    host_key: tuple[str, ...] = ()
    accept_new: bool = False
    ssh_config: str | None = None
    jump: tuple[Host, ...] | None = None
    transport: Literal["ssh", "local"] = "ssh"
    become: Literal["sudo"] | None = None
    concurrency: Concurrency = Concurrency()


HopKind: TypeAlias = Literal["none", "pct", "lxc"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Name one place where payloads run, with everything needed to get there.

    `id` is ``host`` or ``host/guest``; `name` a friendly name or None; `interpreter` an absolute path or a bare name
    looked up on the target's PATH; `venv` the environment that `interpreter` belongs to, when one was named; `user`
    the account inside the guest (None: root); `limits` holds only what the inventory says.
    """

    id: str
    host: Host
    name: str | None = None
    guest: str | None = None
    hop: HopKind = "none"
    user: str | None = None
    interpreter: str = "python3"
    venv: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    vars: Mapping[str, Json] = field(default_factory=dict)
    tags: frozenset[str] = frozenset()
    limits: Mapping[str, float | None] = field(default_factory=dict)


# --- what
# ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadRef:
    """Identify the code that ran: its name, version and the sha256 of its pack."""

    name: str
    version: str | None
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """Carry a payload's code: `data` is an uncompressed, canonical zip, `sha256` the hash of exactly these bytes.

    `entry` is ``module:function`` called with the context; `program` instead names a member of the pack to execute,
    which reads the parameters as JSON on stdin and writes JSON records on stdout. `requires` are modules that must be
    importable, `python` is the oldest version that will do. `shadows` names the payload that this one hides.
    `code_size` counts the bytes of Python source in it.
    """

    ref: PayloadRef
    data: bytes = field(repr=False)
    code_size: int = 0
    entry: str | None = None
    program: str | None = None
    requires: tuple[str, ...] = ()
    python: tuple[int, int] = (3, 8)
    shadows: str | None = None

    @property
    def sha256(self) -> str:
        """Return the hash that names this pack on every machine."""
        return self.ref.sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadWork:
    """Run a payload with checked parameters."""

    pack: Pack
    params: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptWork:
    """Run one Python file as `__main__`; `args` are exact bytes."""

    name: str
    source: bytes = field(repr=False)
    args: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecWork:
    """Run a program by its argv; words are exact bytes of at most 131,071 each."""

    argv: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheWork:
    """Empty the target's cache of packs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherWork:
    """Look after what somebody else has started; what it is, its target says: a payload, or a program that streams."""

    payload: PayloadRef | None = None
    streams: bool = False


Work: TypeAlias = PayloadWork | ScriptWork | ExecWork | CacheWork | OtherWork


@dataclass(frozen=True, slots=True, kw_only=True)
class VarRef:
    """Refer to a target's variable; without a default, a target that lacks it is a configuration problem."""

    var: str
    default: Json = None
    has_default: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRef:
    """Refer to a secret of the playbook, whose value is fetched when the run starts."""

    secret: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSource:
    """Say where a secret comes from on this machine: a variable's name, an absolute path, or a program's argv.

    `folder` is where a program is started.
    """

    kind: Literal["env", "file", "command"]
    words: tuple[str, ...]
    folder: str | None = None

    def __str__(self) -> str:
        return f"{self.kind} {' '.join(self.words)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleChanges:
    """Say what findings of some rules count for: those of `ignore` nothing, those of `severity` as much as it says."""

    ignore: tuple[str, ...] = ()
    severity: Mapping[str, Severity] = field(default_factory=dict)

    def over(self, weaker: Self) -> Self:
        """Return these changes laid over weaker ones, rule by rule."""
        own = {*self.ignore, *self.severity}
        return replace(
            self,
            ignore=(*(rule for rule in weaker.ignore if rule not in own), *self.ignore),
            severity={**{rule: value for rule, value in weaker.severity.items() if rule not in own}, **self.severity},
        )

    def among(self, rules: Collection[str]) -> Self:
        """Return what is said of these rules only."""
        return replace(
            self,
            ignore=tuple(rule for rule in self.ignore if rule in rules),
            severity={rule: value for rule, value in self.severity.items() if rule in rules},
        )

    def document(self) -> dict[str, Json]:
        """Tell the changes as a payload gets them; empty when there are none."""
        severity: dict[str, Json] = {rule: value.value for rule, value in self.severity.items()}
        parts: dict[str, Json] = {"ignore": [*self.ignore], "severity": severity}
        return {key: value for key, value in parts.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Name one payload of a playbook, by ``name`` or ``name@constraint``; parameters as before targets are known."""

    payload: str
    params: Mapping[str, Json | VarRef | SecretRef] = field(default_factory=dict)
    rules: RuleChanges = RuleChanges()
    env: Mapping[str, str | SecretRef] = field(default_factory=dict)
    limits: Mapping[str, float | None] = field(default_factory=dict)
    fail_on: Severity = Severity.SUSPECT


@dataclass(frozen=True, slots=True, kw_only=True)
class Playbook:
    """Say which payloads run where. `sha256` is that of the file's bytes; `source` its path, None when implicit."""

    name: str
    steps: tuple[Step, ...]
    description: str = ""
    targets: tuple[str, ...] = ()
    secrets: Mapping[str, SecretSource] = field(default_factory=dict)
    limits: Mapping[str, float | None] = field(default_factory=dict)
    sha256: str | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Plan one target and step, with everything resolved: what runs where, under which limits, judged how.

    `secret_params` and `secret_env` name the secrets that parameters and variables of the environment stand for.
    """

    target: Target
    step: int
    work: Work = field(repr=False)
    limits: Limits = Limits()
    env: Mapping[str, str] = field(default_factory=dict)
    secret_params: Mapping[str, str] = field(default_factory=dict)
    secret_env: Mapping[str, str] = field(default_factory=dict)
    fail_on: Severity = Severity.SUSPECT


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Hold everything a run will do, decided before any login."""

    run_id: str
    playbook: str
    playbook_sha256: str | None
    jobs: tuple[Job, ...]
    secrets: Mapping[str, SecretSource] = field(default_factory=dict)
    targets_at_once: int = 64
    use_cache: bool = True


# --- what became of it ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Say what is wrong with a subject.

    `subject` is what the finding is about (a checkpoint's name, mostly); `evidence` holds the numbers that show it;
    `data` whatever more the payload said of it (tensor, file, byte range, counts).
    """

    rule: str
    severity: Severity
    subject: str
    message: str
    next_step: str = ""
    evidence: Json = None
    data: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitHit:
    """Name the limit that ended something, its value in seconds and the key that changes it."""

    name: str
    value_s: float
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInfo:
    """Tell the cause of an outcome that is neither ok nor findings; `code` is a key of `errors.CODES`."""

    code: str
    message: str
    hint: str
    limit: LimitHit | None = None

    @classmethod
    def of(cls, error: TargetError) -> Self:
        """Turn the exception of one target into a value."""
        hit = LimitHit(name=error.limit[0], value_s=error.limit[1], key=error.limit[2]) if error.limit else None
        return cls(code=error.code, message=error.message, hint=error.hint, limit=hit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """Keep the head and tail of a captured byte stream; `total` bytes were seen."""

    head: bytes = b""
    tail: bytes = b""
    total: int = 0

    @property
    def truncated(self) -> bool:
        """Tell whether bytes in the middle were left out."""
        return self.total > len(self.head) + len(self.tail)

    @property
    def data(self) -> bytes:
        """Return what was kept, with a visible mark where bytes were left out."""
        left_out = self.total - len(self.head) - len(self.tail)
        mark = b"\n[... %d bytes left out ...]\n" % left_out if left_out > 0 else b""
        return self.head + mark + self.tail


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Tell what became of one target and step, whole enough to be judged without the machine.

    `timings_s` maps queued, connect, enter, upload, run, total to seconds; `exit_status` is the program's own,
    negative for a signal, None when unknown; `survivors` counts processes of the run that could not be killed, None
    when nobody could look; `noise` is what stood outside the frames; `connections` counts those that it took,
    `resumable` tells whether another could have been made, None where nothing was started.
    """

    target: str
    name: str | None
    step: int
    status: Status
    phase: Phase
    error: ErrorInfo | None = None
    payload: PayloadRef | None = None
    facts: Mapping[str, Json] = field(default_factory=dict)
    timings_s: Mapping[str, float] = field(default_factory=dict)
    connections: int = 0
    resumable: bool | None = None
    records: tuple[Mapping[str, Json], ...] = ()
    findings: tuple[Finding, ...] = ()
    exit_status: int | None = None
    survivors: int | None = None
    stdout: Captured = Captured()
    stderr: Captured = Captured()
    noise: Captured = Captured()
    log: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Hold one execution of a playbook: every selected target and step has exactly one outcome, in the plan's order.

    `started_at` and `finished_at` are ISO 8601 in UTC with milliseconds and a Z.
    """

    run_id: str
    playbook: str
    playbook_sha256: str | None
    started_at: str
    finished_at: str
    status: RunStatus
    outcomes: tuple[Outcome, ...]


_INCOMPLETE: Final = frozenset(
    {Status.FAILED, Status.TIMEOUT, Status.UNREACHABLE, Status.LOST, Status.CANCELLED, Status.NOT_STARTED}
)


def judge(outcomes: tuple[Outcome, ...], *, ended_as: RunStatus | None = None) -> RunStatus:
    """Give a run its status: incomplete beats findings beats ok, an end from outside (`ended_as`) beats all.

    A person's own script or program that ended with a non-zero status is a finding: it ran, and said no.
    """
    seen = {Status.FINDINGS if _said_no(outcome) else outcome.status for outcome in outcomes}
    if ended_as is not None:
        return ended_as
    if seen & _INCOMPLETE or not outcomes:
        return RunStatus.INCOMPLETE
    if Status.RUNNING in seen:
        return RunStatus.DETACHED
    return RunStatus.FINDINGS if Status.FINDINGS in seen else RunStatus.OK


def _said_no(outcome: Outcome) -> bool:
    return outcome.status is Status.FAILED and outcome.payload is None and (outcome.exit_status or 0) > 0
