"""The flags that several commands share, and what they mean together.

Annotations are evaluated here as they stand: as texts, typer would have each compiled, at every start.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from remoterun.api import Choice
from remoterun.cli import completing
from remoterun.cli.given import StandardInput, params_of, patterns
from remoterun.cli.sharing import Shared
from remoterun.cli.values import limits, pairs, secret_sources
from remoterun.errors import ConfigError, Problem
from remoterun.inventory import Overrides
from remoterun.model import RuleChanges


class Format(StrEnum):
    """Name an output format."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    JUNIT = "junit"

    @property
    def indent(self) -> int | None:
        """Return how a single document of this format is indented: for people, or on one line."""
        return 2 if self is Format.JSON else None


class Hop(StrEnum):
    """Name a way of entering guests."""

    PCT = "pct"
    LXC = "lxc"


class Become(StrEnum):
    """Name a way of becoming root."""

    SUDO = "sudo"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Showing:
    """Say how a run is to be shown."""

    output: Format = Format.TABLE
    events: str | None = None
    metrics: Path | None = None
    quiet: bool = False
    verbose: int = 0


_WHERE = "Where"
_HOW = "How to get there"
_RUN = "The run"

ProjectOption = Annotated[
    Path | None,
    typer.Option(
        "--project", metavar="DIR", help="Folder with inventory.yaml; default: the nearest parent that has one."
    ),
]


def no_junit(output: Format) -> Format:
    """Return a format that every document has.

    Raises:
        ConfigError: when it is the one of tests, which only runs are like.
    """
    if output is Format.JUNIT:
        raise ConfigError(Problem(path="--output", message="junit tells of runs; here there are table, json and jsonl"))
    return output


OutputOption = Annotated[
    Format,
    typer.Option(
        "--output",
        help="What standard output carries: table, json or jsonl.",
        metavar="FORMAT",
        callback=no_junit,
        rich_help_panel=_RUN,
    ),
]
RunOutputOption = Annotated[
    Format,
    typer.Option(
        "--output",
        help="What standard output carries: table, json, jsonl or junit.",
        metavar="FORMAT",
        rich_help_panel=_RUN,
    ),
]
FileOption = Annotated[
    str | None,
    typer.Option("-o", metavar="FILE", help="Write that to a file instead, whole or not at all.", rich_help_panel=_RUN),
]


def _option(panel: str, *names: str, help: str, **more: Any) -> Any:  # noqa: A002  # typer's own words
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


ParamsOption = Annotated[
    list[str] | None,
    _option(
        _RUN, "--params", metavar="@FILE", help="Parameters of the payload from a YAML or JSON file; @- reads stdin."
    ),
]
SetOption = Annotated[
    list[str] | None,
    _option(
        _RUN,
        "--set",
        metavar="NAME=VALUE",
        help="A parameter of the payload; `remoterun payload show PAYLOAD` lists them.",
        autocompletion=completing.parameters,
    ),
]
IgnoreOption = Annotated[
    list[str] | None,
    _option(
        _RUN,
        "--ignore",
        metavar="RULE",
        help="Let findings of this rule count for nothing; how many is told.",
        autocompletion=completing.rules,
    ),
]
SeverityOption = Annotated[
    list[str] | None,
    _option(_RUN, "--severity", metavar="RULE=LEVEL", help="Let this rule's findings be info, suspect or bad."),
]


DetachOption = Annotated[
    bool,
    _option(
        _RUN,
        "--detach",
        help="Start everything and leave it to itself; `remoterun collect` fetches what is done. Lease: 24h.",
    ),
]


MetricsOption = Annotated[
    Path | None,
    _option(
        _RUN,
        "--metrics",
        metavar="FILE",
        help="Write OpenMetrics text too, for node_exporter's textfile collector: whole or not at all.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags(Shared):
    """Hold the flags that `play`, `run` and `exec` share, and other commands in part."""

    FIRST: ClassVar = frozenset({"on", "without", "only", "project"})

    on: Annotated[
        list[str] | None,
        _option(
            _WHERE,
            "--on",
            metavar="PATTERN",
            help="Targets: id, name, glob, group, tag:x, or ad hoc root@10.1.2.6/200. Repeat for more; - reads stdin.",
            autocompletion=completing.targets,
        ),
    ] = None
    without: Annotated[
        list[str] | None,
        _option(_WHERE, "--not", metavar="PATTERN", help="Leave these out.", autocompletion=completing.targets),
    ] = None
    only: Annotated[
        list[str] | None,
        _option(_WHERE, "--and", metavar="PATTERN", help="Keep only these.", autocompletion=completing.targets),
    ] = None
    project: ProjectOption = None
    venv: Annotated[
        str | None, _option(_HOW, "--venv", metavar="PATH", help="The virtual environment on the target.")
    ] = None
    python: Annotated[
        str | None, _option(_HOW, "--python", metavar="PATH", help="The Python on the target: a path or a bare name.")
    ] = None
    user: Annotated[str | None, _option(_HOW, "--user", metavar="NAME", help="The account to log in with.")] = None
    guest_user: Annotated[
        str | None, _option(_HOW, "--guest-user", metavar="NAME", help="The account inside the guest.")
    ] = None
    port: Annotated[int | None, _option(_HOW, "--port", metavar="N", min=1, max=65535, help="The SSH port.")] = None
    identity: Annotated[
        list[str] | None, _option(_HOW, "--identity", metavar="FILE", help="Private key for the login.")
    ] = None
    known_hosts: Annotated[
        list[str] | None, _option(_HOW, "--known-hosts", metavar="FILE", help="Read host keys from here.")
    ] = None
    host_key: Annotated[
        list[str] | None, _option(_HOW, "--host-key", metavar="SHA256:...", help="Trust only this fingerprint.")
    ] = None
    accept_new: Annotated[
        bool,
        _option(_HOW, "--accept-new", help="Trust and keep the first key of a host that nothing is known of."),
    ] = False
    ssh_config: Annotated[
        str | None,
        _option(_HOW, "--ssh-config", metavar="FILE", help="Read this instead of ~/.ssh/config; none for nothing."),
    ] = None
    jump: Annotated[
        str | None,
        _option(
            _HOW,
            "--jump",
            metavar="HOST",
            help="Tunnel through user@host:port, or a chain of them; none for a direct connection.",
        ),
    ] = None
    hop: Annotated[Hop | None, _option(_HOW, "--hop", help="How guests are entered.")] = None
    become: Annotated[Become | None, _option(_HOW, "--become", help="Enter guests through sudo -n.")] = None
    env: Annotated[
        list[str] | None, _option(_RUN, "--env", metavar="NAME=VALUE", help="Environment of the program.")
    ] = None
    secret: Annotated[
        list[str] | None,
        _option(
            _RUN,
            "--secret",
            metavar="NAME[=SOURCE]",
            help="Variable of the program's environment, kept out of all output. From here: env:VAR (default: NAME) "
            "or file:PATH.",
        ),
    ] = None
    limit: Annotated[
        list[str] | None,
        _option(
            _RUN,
            "--limit",
            metavar="NAME=DURATION",
            help="Bound a phase: connect, enter, upload, idle, stall, run, lease, total. 30s, 20m, 2h, none.",
            autocompletion=completing.limits,
        ),
    ] = None
    lease: Annotated[
        str | None,
        _option(
            _RUN,
            "--lease",
            metavar="DURATION",
            help="How long a target goes on without a word from here, as when a connection is lost; the same as "
            "--limit lease=DURATION.",
        ),
    ] = None
    at_once: Annotated[
        int,
        _option(
            _RUN, "--targets-at-once", metavar="N", min=1, max=10_000, help="How many targets run at the same time."
        ),
    ] = 64
    no_cache: Annotated[
        bool, _option(_RUN, "--no-cache", help="Send all code anew and leave no copy of it on the target.")
    ] = False
    output: RunOutputOption = Format.TABLE
    file: FileOption = None
    events: Annotated[
        str | None,
        _option(
            _RUN,
            "--events",
            metavar="FILE|fd:N",
            help="Write what happens as JSON lines there too, as it happens.",
        ),
    ] = None
    quiet: Annotated[bool, _option(_RUN, "--quiet", "-q", help="Say nothing while it runs.")] = False
    verbose: Annotated[
        int,
        _option(
            _RUN,
            "--verbose",
            "-v",
            count=True,
            metavar="",
            show_default=False,
            help="Say more: phases and logs; twice: noise too.",
        ),
    ] = 0
    dry_run: Annotated[
        bool,
        _option(
            _RUN, "--dry-run", help="Show every resolved target, parameter, limit and command line; log in nowhere."
        ),
    ] = False

    def around(self, given: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Let the file of -o take the result."""
        from remoterun.cli.apart import files_of, into_file

        return into_file(self.file, files_of(self, given))

    def choice(
        self,
        *,
        params: Sequence[str] | None = None,
        files: Sequence[str] | None = None,
        rules: RuleChanges | None = None,
        reads_stdin: str | None = None,
    ) -> Choice:
        """Put the flags together as the API takes them.

        `files` holds what ``--params`` says; `reads_stdin` names what takes standard input already.

        Raises:
            ConfigError: when one of them is not of its form.
        """
        stdin = StandardInput(reads_stdin)
        return Choice(
            on=patterns(self.on, "--on", stdin),
            without=patterns(self.without, "--not", stdin),
            only=patterns(self.only, "--and", stdin),
            values=params_of(files, stdin),
            params=pairs(params, "--set"),
            rules=rules or RuleChanges(),
            limits=limits([*(self.limit or ()), *([f"lease={self.lease}"] if self.lease is not None else ())]),
            env=pairs(self.env, "--env"),
            secrets=secret_sources(self.secret),
            overrides=self.overrides(),
            targets_at_once=self.at_once,
            use_cache=not self.no_cache,
        )

    def overrides(self) -> Overrides:
        """Return what the flags say about how targets are reached."""
        return Overrides(
            venv=self.venv,
            python=self.python,
            user=self.user,
            guest_user=self.guest_user,
            port=self.port,
            hop=self.hop.value if self.hop else None,
            become=self.become.value if self.become else None,
            identity_file=tuple(self.identity) if self.identity else None,
            known_hosts=tuple(self.known_hosts) if self.known_hosts else None,
            host_key=tuple(self.host_key) if self.host_key else None,
            accept_new=self.accept_new,
            ssh_config=self.ssh_config,
            jump=self.jump,
            typed=self._typed(),
        )

    def _typed(self) -> tuple[str, ...]:
        """Return the flags that lead to a host, for commands that people are told to type: those of `hostkeys`."""
        given = (
            ("--project", [self.project]),
            ("--user", [self.user]),
            ("--port", [self.port]),
            ("--identity", self.identity or ()),
            ("--known-hosts", self.known_hosts or ()),
            ("--ssh-config", [self.ssh_config]),
            ("--jump", [self.jump]),
        )
        pairs_of = ((flag, str(value)) for flag, values in given for value in values if value is not None)
        return tuple(word for pair in pairs_of for word in pair)

    def showing(self, metrics: Path | None = None) -> Showing:
        """Return how the run is to be shown."""
        return Showing(output=self.output, events=self.events, metrics=metrics, quiet=self.quiet, verbose=self.verbose)
