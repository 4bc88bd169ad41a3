"""`remoterun hostkeys show` and `accept`: what hosts offer, what is known of them, and trusting new ones."""

from __future__ import annotations

import asyncio
import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from remoterun.api import Choice, Project, look_at_host_keys
from remoterun.cli.asking import Asker, can_ask
from remoterun.cli.options import Flags, Format, no_junit
from remoterun.cli.output import tell, write, write_json
from remoterun.cli.sharing import taking
from remoterun.errors import ConfigError, Problem, clean
from remoterun.model import Limits, RunStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remoterun.model import Host, Json
    from remoterun.transports.survey import HostKeys

app = typer.Typer(help="The keys by which hosts are known.", no_args_is_help=True)

SCHEMA = "remoterun/hostkeys/1"
_FLAGS = (
    *("on", "without", "only", "project", "user", "port", "identity", "known_hosts", "host_key", "ssh_config", "jump"),
    *("limit", "output"),
)


@app.command()
@taking(Flags, *_FLAGS)
def show(*, flags: Flags) -> int:
    """Show the keys that hosts and their jump hosts offer, and whether they are known or pinned.

    Nothing is written, and nobody logs in but at jump hosts. Exit status 1: a key is new or has changed.
    """
    no_junit(flags.output)
    choice = flags.choice()
    found = _look(_hosts(flags, choice, ("all",)), choice)
    status = _tell(found, {}, flags.output)
    if flags.output is Format.TABLE and any(item.state == "new" for item in found):
        write("To trust what is new, once it is what the host itself says (`ssh-keygen -lf` of its key's .pub file):\n")
        write(f"  {clean(_accepting(flags, choice))}\n")
    return status


def _accepting(flags: Flags, choice: Choice) -> str:
    chosen = (("--on", choice.on or ("all",)), ("--not", choice.without), ("--and", choice.only))
    words = (word for flag, patterns in chosen for pattern in patterns for word in (flag, pattern))
    return shlex.join(("remoterun", "hostkeys", "accept", *words, *flags.overrides().typed))


@app.command()
@taking(Flags, *_FLAGS)
def accept(
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Trust what is offered now without being asked.")] = False,
    flags: Flags,
) -> int:
    """Trust the keys of hosts that nothing is known of, and of the jump hosts on the way: known_hosts takes them.

    Compare the fingerprints with the hosts' own (`ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub`). A key that has
    changed is never accepted.
    """
    no_junit(flags.output)
    if not flags.on:
        raise ConfigError(Problem(path="--on", message="name the hosts whose keys are to be trusted"))
    choice = flags.choice()
    hosts = _hosts(flags, choice, ())
    written: dict[str, str] = {}
    refused: set[str] = set()
    while True:
        found = _look(hosts, choice)
        # One that is new all the same after it was written down was written to where nothing is kept.
        new = [item for item in found if item.state == "new" and _name(item) not in {*refused, *written}]
        if new and not yes and not can_ask():
            raise _nobody_to_ask(new)
        for item in new:
            if yes or _agrees(item):
                written[_name(item)] = _accepted(item)
            else:
                refused.add(_name(item))
        # What stands behind a jump host can be looked at once that is trusted.
        if not any(_name(item) in written for item in new):
            return _tell(found, written, flags.output)


def _hosts(flags: Flags, choice: Choice, default: Sequence[str]) -> list[Host]:
    targets = Project.load(flags.project).select(choice, default)
    hosts = [*dict.fromkeys(target.host for target in targets if target.host.transport == "ssh")]
    if not hosts:
        raise ConfigError(Problem(path="--on", message="none of these targets is reached by SSH"))
    return hosts


def _look(hosts: Sequence[Host], choice: Choice) -> list[HostKeys]:
    async def look() -> list[HostKeys]:
        connect = Limits().merged(choice.limits).connect
        return await look_at_host_keys(hosts, connect, Asker() if can_ask() else None)

    return asyncio.run(look())


def _accepted(item: HostKeys) -> str:
    try:
        return item.accept()
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise ConfigError(f"{where}the key of {_name(item)} can't be written: {error.strerror or error}") from error


def _nobody_to_ask(new: Sequence[HostKeys]) -> ConfigError:
    names = ", ".join(map(_name, new))
    return ConfigError(
        Problem(path="--yes", message=f"not known: {names}; there is no terminal to ask on: give --yes to trust all")
    )


def _agrees(item: HostKeys) -> bool:
    tell("".join(f"{line}\n" for line in _lines(item)))
    tell(f"Trust {_name(item)}? [y/N] ")
    answer = sys.stdin.readline()
    return answer.strip().lower() in {"y", "yes"}


# --- telling ----------------------------------------------------------------------------------------------------------


def _tell(found: Sequence[HostKeys], written: dict[str, str], output: Format) -> int:
    status = _status(found)
    if output is Format.TABLE:
        for item in found:
            write("".join(f"{line}\n" for line in _lines(item, written.get(_name(item)))))
    else:
        hosts: list[Json] = [_document(item, written.get(_name(item))) for item in found]
        document: dict[str, Json] = {"schema": SCHEMA, "status": status.value, "exit_code": status.exit_code}
        write_json({**document, "hosts": hosts}, indent=output.indent)
    return status.exit_code


def _status(found: Sequence[HostKeys]) -> RunStatus:
    states = {item.state for item in found}
    if "failed" in states:
        return RunStatus.INCOMPLETE
    return RunStatus.FINDINGS if states & {"new", "changed"} else RunStatus.OK


def _name(item: HostKeys) -> str:
    place = f"[{item.address}]:{item.port}" if item.port != 22 else item.address
    return place if item.host.key == item.address else f"{item.host.key} ({place})"


def _lines(item: HostKeys, written: str | None = None) -> list[str]:
    through = f" through {', '.join(item.through)}" if item.through else ""
    said = {
        "known": "known",
        "pinned": "known by its pin",
        "new": "not known",
        "changed": "NOT WHAT IS KNOWN",
        "failed": "cannot be looked at",
    }[item.state]
    lines = [f"{_name(item)}{through}: {said}"]
    lines += [f"  {key.kind:<20} {key.fingerprint}  {key.state}" for key in item.keys]
    offered = {key.fingerprint for key in item.keys}
    lines += [f"  {'expected':<20} {fingerprint}" for fingerprint in item.expected if fingerprint not in offered]
    if item.error is not None:
        lines += [f"  {item.error.message}", f"  {item.error.hint}"]
    if written is not None:
        lines.append(f"  written to {written}")
    elif item.state == "changed":
        lines.append(f"  {_remedy(item)}")
    return [clean(line) for line in lines]


def _remedy(item: HostKeys) -> str:
    """Say what to do about keys that are not what is known; it is never done here."""
    if item.host.host_key:
        return "Find out why. If the host was reinstalled, change `host_key` in the inventory."
    name, port = item.place
    place = f"[{name}]:{port}" if port else name
    files = "".join(f"{shlex.join(('ssh-keygen', '-R', place, '-f', file))}; " for file in item.files[:1])
    return f"Find out why. If the host was reinstalled: {files}then accept the new key."


def _document(item: HostKeys, written: str | None) -> dict[str, Json]:
    error = item.error
    return {
        "host": item.host.key,
        "address": item.address,
        "port": item.port,
        "through": [*item.through],
        "state": item.state,
        "keys": [{"type": key.kind, "fingerprint": key.fingerprint, "state": key.state} for key in item.keys],
        "expected": [*item.expected],
        "known_hosts": [*item.files],
        "written_to": written,
        "remedy": _remedy(item) if item.state == "changed" else None,
        "error": None if error is None else {"code": error.code, "message": error.message, "hint": error.hint},
    }
