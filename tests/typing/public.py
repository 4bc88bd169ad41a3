"""What a type checker knows of the public interface: checked by mypy, never run.

A wrong use that mypy no longer finds makes an ignore superfluous, which is an error as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import remoterun
from remoterun.events import Event, OutcomeReady


def blocking() -> None:
    """Call what blocks."""
    run = remoterun.play("check-ckpt", on=["kpro6/200"], params={"root": "/data", "deep": False}, limits={"run": "20m"})
    assert_type(run, remoterun.Run)
    assert_type(run.status, remoterun.RunStatus)
    assert_type(run.status.exit_code, int)
    assert_type(run.outcomes[0], remoterun.Outcome)
    assert_type(run.outcomes[0].status, remoterun.Status)
    assert_type(run.outcomes[0].error, remoterun.ErrorInfo | None)
    assert_type(run.outcomes[0].findings[0], remoterun.Finding)
    assert_type(run.outcomes[0].findings[0].severity, remoterun.Severity)
    assert_type(run.outcomes[0].stdout.data, bytes)
    assert_type(remoterun.to_json(run), bytes)
    assert_type(remoterun.run_script(Path("look.py"), ["a", b"\xff"], on=["kpro6"]), remoterun.Run)
    assert_type(remoterun.run_program(["nvidia-smi", "-L"], on=["kpro6"], history=True), remoterun.Run)


async def asynchronous() -> None:
    """Await, iterate, listen."""
    assert_type(await remoterun.aplay("probe"), remoterun.Run)
    async with remoterun.aplay("probe", on_event=listen) as running:
        assert_type(running, remoterun.Running)
        async for outcome in running:
            assert_type(outcome, remoterun.Outcome)
    assert_type(running.run, remoterun.Run)
    assert_type(await remoterun.arun_script(b"pass"), remoterun.Run)


def listen(event: Event) -> None:
    """Take events."""
    if isinstance(event, OutcomeReady):
        assert_type(event.outcome, remoterun.Outcome)


def parts() -> None:
    """Put a playbook together."""
    project = remoterun.Project.load(Path())
    assert_type(project.inventory, remoterun.Inventory)
    playbook = remoterun.Playbook(name="nightly", steps=(remoterun.Step(payload="probe"),), targets=("train",))
    secret = remoterun.SecretSource(kind="env", words=("TOKEN",))
    remoterun.play(playbook, project=project, secrets={"TOKEN": secret})


def wrong() -> None:
    """Use it as it is not meant."""
    remoterun.play("probe", targets=["kpro6"])  # type: ignore[call-arg]
    remoterun.play("probe", limits={"run": b"20m"})  # type: ignore[dict-item]
    remoterun.play(on=["kpro6"])  # type: ignore[call-arg]
    remoterun.play("probe").outcomes.append(None)  # type: ignore[attr-defined]
    remoterun.run_program([1])  # type: ignore[list-item]
