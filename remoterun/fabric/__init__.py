"""Payloads over the connections that a fabfile already has.

`run_payload` uses a `fabric.Connection` with its gateways, its keys and what fabric.yaml says of it;
`remoterun.fabric.tasks` has ready-made tasks for the command `fab`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from remoterun.api.blocking import wait_for
from remoterun.api.running import Options, Running, choice_of, project_of
from remoterun.errors import ConfigError
from remoterun.inventory import Overrides
from remoterun.model import Host, Target
from remoterun.transports.fabric import strict

if TYPE_CHECKING:
    from typing import Unpack

    from remoterun.model import Outcome, Run

__all__ = ["play", "run_payload", "strict"]


def run_payload(
    connection: Any,
    payload: str,
    *,
    guest: int | str | None = None,
    venv: str | None = None,
    python: str | None = None,
    trusts_anyone: bool = False,
    **options: Unpack[Options],
) -> Outcome:
    """Run a payload on the host of a `fabric.Connection`, or in one of its guests, and return what became of it.

    Args:
        connection: opened if need be, and left open.
        payload: its name, of the project or built in.
        guest: a VMID, or a container's name with ``overrides=Overrides(hop="lxc")``; None is the host itself.
        venv: the virtual environment there.
        python: the interpreter there, in place of `venv`.
        trusts_anyone: leaves a connection that is not open yet as Fabric makes it, which takes every host key; else
            known_hosts must know the host and its gateways.
        options: as `remoterun.play` takes them, but for `on`, `without` and `only`.

    Raises:
        ConfigError: when anything in the project or the options is wrong; nothing was started then.
    """
    run = play(connection, payload, guest=guest, venv=venv, python=python, trusts_anyone=trusts_anyone, **options)
    return run.outcomes[-1]


def play(
    connection: Any,
    playbook: str,
    *,
    guest: int | str | None = None,
    venv: str | None = None,
    python: str | None = None,
    trusts_anyone: bool = False,
    **options: Unpack[Options],
) -> Run:
    """Play a whole playbook so, and return its run: one outcome for each step. The arguments are `run_payload`'s."""
    named = [name for name in ("on", "without", "only") if name in options]
    if named:
        raise ConfigError(f"{named[0]}: the connection says where to run; leave it out")
    if not trusts_anyone and not connection.is_connected:
        strict(connection)
    choice = choice_of(options)
    said = choice.overrides or Overrides()
    said = replace(said, venv=venv or said.venv, python=python or said.python)
    place = "local" if guest is None else f"local/{guest}"
    plan = project_of(options).plan_play(playbook, replace(choice, on=(place,), overrides=said))
    jobs = tuple(replace(job, target=_over(connection, job.target)) for job in plan.jobs)
    running = Running(
        replace(plan, jobs=jobs),
        options.get("on_event"),
        history=options.get("history", False),
        fabric={job.target.host.key: connection for job in jobs},
    )
    return wait_for(running)


def _over(connection: Any, target: Target) -> Target:
    """Return a target of this machine as one at the other end of a connection."""
    host = Host(
        key=connection.original_host,
        address=connection.host,
        port=connection.port,
        user=connection.user,
        transport="fabric",
        become=target.host.become,
        concurrency=target.host.concurrency,
    )
    return replace(target, id=host.key if target.guest is None else f"{host.key}/{target.guest}", host=host)
