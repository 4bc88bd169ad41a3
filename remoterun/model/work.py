"""What runs: payloads, scripts and programs, the playbooks that name them, and the plan made of both."""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

from remoterun.model.limits import Limits
from remoterun.model.words import Severity
from remoterun.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from remoterun.model.places import Target
    from remoterun.model.words import Json


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
    `limits_set_by` says of limits that are not the defaults where they were set.
    """

    target: Target
    step: int
    work: Work = field(repr=False)
    limits: Limits = Limits()
    limits_set_by: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    secret_params: Mapping[str, str] = field(default_factory=dict)
    secret_env: Mapping[str, str] = field(default_factory=dict)
    fail_on: Severity = Severity.SUSPECT


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Hold everything a run will do, decided before any login; `project` is the folder it comes from, if any."""

    run_id: str
    playbook: str
    playbook_sha256: str | None
    jobs: tuple[Job, ...]
    secrets: Mapping[str, SecretSource] = field(default_factory=dict)
    targets_at_once: int = 64
    use_cache: bool = True
    project: str = ""
