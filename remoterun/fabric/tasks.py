"""Ready-made tasks for `fab`: ``from remoterun.fabric.tasks import check_ckpt, probe`` in a fabfile is all it takes."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any

from fabric import Connection, task
from invoke.exceptions import Exit

from remoterun.errors import ConfigError
from remoterun.fabric import play

if TYPE_CHECKING:
    from remoterun.model import Json, Run

_HELP = {
    "guest": "VMID of the guest to look into; the host itself when left out.",
    "venv": "The virtual environment there.",
    "python": "The interpreter there, in place of a virtual environment.",
    "json": "Print the run as JSON.",
    "keep-going": "Go on with the next host, whatever was found on this one.",
}


@task(name="check-ckpt", help={"root": "The folder of checkpoints there.", **_HELP})  # type: ignore[untyped-decorator]
def check_ckpt(
    c: Any,
    root: str,
    guest: str = "",
    venv: str = "",
    python: str = "",
    json: bool = False,  # noqa: FBT001, FBT002  # how fab's tasks take flags
    keep_going: bool = False,  # noqa: FBT001, FBT002
) -> None:
    """Audit the checkpoints of a training container, loading and executing none."""
    _play(c, "check-ckpt", {"root": root}, (guest, venv, python), as_json=json, keep_going=keep_going)


@task(help=_HELP)  # type: ignore[untyped-decorator]
def probe(
    c: Any,
    guest: str = "",
    venv: str = "",
    python: str = "",
    json: bool = False,  # noqa: FBT001, FBT002
    keep_going: bool = False,  # noqa: FBT001, FBT002
) -> None:
    """Say what a host or guest is: Python, torch, GPUs, disks, memory, limits."""
    _play(c, "probe", {}, (guest, venv, python), as_json=json, keep_going=keep_going)


def _play(
    c: Any, name: str, params: dict[str, Json], where: tuple[str, str, str], *, as_json: bool, keep_going: bool
) -> None:
    """Play a payload, print its run, and leave with its exit status."""
    if not isinstance(c, Connection):
        raise Exit("name the hosts: fab -H kpro6 ...", code=2)
    guest, venv, python = (word or None for word in where)
    try:
        run = play(c, name, guest=guest, venv=venv, python=python, params=params)
    except ConfigError as error:
        raise Exit(str(error), code=2) from error
    _print(run, as_json=as_json)
    if run.status.exit_code and not keep_going:
        raise Exit(code=run.status.exit_code)


def _print(run: Run, *, as_json: bool) -> None:
    from remoterun.report import table, to_json

    width = shutil.get_terminal_size().columns
    text = to_json(run).decode("ascii") if as_json else table(run, width=width, color=sys.stdout.isatty())
    sys.stdout.write(text)
