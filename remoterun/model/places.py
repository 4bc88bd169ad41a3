"""Where something runs: hosts and targets."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Literal, TypeAlias

from remoterun.model.limits import Concurrency
from remoterun.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remoterun.model.words import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Describe how a host is reached. Everything left None is ssh_config's business.

    `host_key`: pinned fingerprints (``SHA256:...``); when given, nothing else is trusted. `accept_new`: where nothing
    at all is known of its key, the first one is taken and written to known_hosts. `jump`: hosts to tunnel through, the
    nearest first; None lets ssh_config's ProxyJump decide, an empty tuple means a direct connection. `ssh_config`: a
    file to read instead of ~/.ssh/config, or "none". `transport`: "local" runs here without SSH, "fabric" by Fabric's
    connections, as fabric.yaml has them. `flags`: the words of a command line that lead there, beside its `--on`:
    commands that hints tell people to type have them, too.
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
    transport: Literal["ssh", "local", "fabric"] = "ssh"
    become: Literal["sudo"] | None = None
    concurrency: Concurrency = Concurrency()
    flags: tuple[str, ...] = ()


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
