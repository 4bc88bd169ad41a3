"""The lab's machine: which program a command line starts there, as a Proxmox host with a few containers would have it.

Pure: words in, a program to start or a reply out. No shell reads the command line; a guest's program is one of this
machine, and what tells a guest from another is only what the inventory says of it. The texts and exit statuses are
those of pve-container 6 with LXC 6.
"""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remoterun.model import Json

_PATH: Final = "/sbin:/bin:/usr/sbin:/usr/bin"  # pct's own; the shells of a host have more
_PATH_OF_HOST: Final = f"/usr/local/sbin:/usr/local/bin:{_PATH}"
_ENTRY: Final = re.compile(r"(?:/usr/sbin/)?(pct|lxc-info)|/bin/sh")
_VMID: Final = re.compile(r"[1-9][0-9]{2,8}")
_USAGE: Final = "pct exec <vmid> [<extra-args>] [OPTIONS]\n"

HELP: Final = (
    "This is remoterun's lab. It understands `/usr/sbin/pct exec ID -- PROGRAM ARGS...`, `lxc-info -n ID -s -H` and "
    "`/bin/sh -c TEXT`.\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """Describe a container of the lab and what the inventory says of it.

    Args:
        id: its VMID, from 100 on.
        name: its friendly name.
        running: a stopped one is there, and can not be entered.
        python: the interpreter that runs payloads; the one running now when left out.
        vars: what playbooks refer to by ``{var: NAME}``.
        tags: what ``tag:NAME`` selects by.
    """

    id: int
    name: str
    running: bool = True
    python: str = field(default_factory=lambda: sys.executable)
    vars: Mapping[str, Json] = field(default_factory=dict)
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Hold what the machine says by itself, and the exit status it says it with."""

    status: int
    stdout: str = ""
    stderr: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Hold a program to start; `guest` is the VMID it runs in, None for the host itself."""

    argv: tuple[str, ...]
    guest: str | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Return all it finds in its environment."""
        return {"PATH": _PATH_OF_HOST} if self.guest is None else {"PATH": _PATH, "container": "lxc"}

    def failed(self, error: OSError) -> Reply:
        """Say that it could not be started, as lxc-attach or a shell would."""
        missing = isinstance(error, FileNotFoundError)
        status = 127 if missing else 126
        why = "No such file or directory" if missing else error.strerror or str(error)
        if self.guest is None:
            return Reply(status=status, stderr=f"bash: line 1: {self.argv[0]}: {why}\n")
        where = "../src/lxc/attach.c: lxc_attach_run_command: 1841"
        text = f'lxc-attach: {self.guest}: {where} {why} - Failed to exec "{self.argv[0]}"\n'
        return Reply(status=status, stderr=text)


Answer: TypeAlias = Program | Reply


def answer(command: str | None, guests: Mapping[str, Guest], *, node: str) -> Answer:
    """Say what a command line does, taken apart as a login shell takes one without variables or patterns apart.

    Args:
        command: the text of the exec request; None for an interactive shell.
        guests: the containers of the node, by VMID.
        node: the host's name.
    """
    try:
        words = shlex.split(command or "")
    except ValueError as error:
        return Reply(status=2, stderr=f"bash: -c: line 1: {error}\n")
    if not words:
        return Reply(status=1, stderr=HELP)
    entry = _ENTRY.fullmatch(words[0])
    if entry is None:
        return Reply(status=127, stderr=f"bash: line 1: {words[0]}: command not found\n{HELP}")
    if entry[1] == "pct":
        return _pct(words[1:], guests, node)
    if entry[1] == "lxc-info":
        return _lxc_info(words[1:], guests)
    return Program(argv=tuple(words))


def _pct(words: Sequence[str], guests: Mapping[str, Guest], node: str) -> Answer:
    if words[:1] != ["exec"]:
        said = f"unknown command 'pct {words[0]}'" if words else "no command specified"
        return Reply(status=255, stderr=f"ERROR: {said}\nUSAGE: pct <COMMAND> [ARGS] [OPTIONS]\n")
    if len(words) == 1:
        return Reply(status=255, stderr=f"400 not enough arguments\n{_USAGE}")
    vmid, argv = words[1], words[2:]
    if argv[:1] == ["--"]:
        argv = argv[1:]
    elif dashed := next((word for word in (vmid, *argv) if word.startswith("-")), None):
        name = dashed.lstrip("-").lower()
        return Reply(status=255, stderr=f"Unknown option: {name}\n400 unable to parse option\n{_USAGE}")
    if not _VMID.fullmatch(vmid):
        why = "vmid: invalid format - value does not look like a valid VM ID"
        return Reply(status=255, stderr=f"400 Parameter verification failed.\n{why}\n\n{_USAGE}")
    guest = guests.get(vmid)
    if guest is None:
        return Reply(status=2, stderr=f"Configuration file 'nodes/{node}/lxc/{vmid}.conf' does not exist\n")
    if not guest.running:
        return Reply(status=255, stderr=f"container '{vmid}' not running!\n")
    if not argv:
        return Reply(status=255, stderr="missing command at /usr/share/perl5/PVE/CLI/pct.pm line 246.\n")
    return Program(argv=tuple(argv), guest=vmid)


def _lxc_info(words: Sequence[str], guests: Mapping[str, Guest]) -> Reply:
    if len(words) < 3 or words[0] != "-n" or [*words[2:]] not in (["-s", "-H"], ["-sH"]):
        return Reply(status=1, stderr=HELP)
    guest = guests.get(words[1])
    if guest is None:
        return Reply(status=1, stderr=f"{words[1]} doesn't exist\n")
    return Reply(status=0, stdout="RUNNING\n" if guest.running else "STOPPED\n")
