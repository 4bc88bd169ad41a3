"""From a plan to its run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remoterun.model import Manner

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from remoterun.errors import Problem
    from remoterun.events import OnEvent
    from remoterun.model import Host, Plan, Run
    from remoterun.runner import Control
    from remoterun.secrets import Vault
    from remoterun.transports.keyring import Ask
    from remoterun.transports.survey import HostKeys


async def carry_out(
    plan: Plan,
    on_event: OnEvent | None = None,
    control: Control | None = None,
    earlier: Run | None = None,
    *,
    vault: Vault | None = None,
    ask: Ask | None = None,
    manner: Manner = Manner.FOLLOW,
    fabric: Mapping[str, object] | None = None,
) -> Run:
    """Carry out a plan inside a running event loop.

    Cancelling the task leaves at once; `control` ends the run in an orderly way. `earlier` is what is known of a run
    that is taken up again. `vault` holds the plan's secrets, which are fetched here when it is left out; `ask` asks a
    person for passphrases of keys and passwords. In another
    `manner` than to follow the run, outcomes of targets still at work are `running`. `fabric` holds connections that a
    person has made with Fabric, by the key of the host.

    Raises:
        ConfigError: secrets cannot be had; nothing was started then.
    """
    from remoterun.runner import execute

    if vault is None:
        from remoterun.transports.dial import in_daemon

        vault = await in_daemon(lambda: secrets_of(plan, earlier))
    try:
        return await execute(
            plan, on_event or _ignore, control, earlier, vault=vault, manner=manner, ask=ask, fabric=fabric
        )
    except Exception as error:
        clean = vault.bug(error)
        if clean is error:
            raise
        raise clean from None


def secrets_of(plan: Plan, earlier: Run | None = None, on_missing: Callable[[Problem], None] | None = None) -> Vault:
    """Fetch the secrets that a plan needs, but for what `earlier` has done of it. Blocks.

    Where nothing is to be started, `on_missing` may take each one that cannot be had: it stays in the output then.

    Raises:
        ConfigError: with every one that cannot be had.
    """
    from remoterun.secrets import open_vault

    done = [(outcome.target, outcome.step) for outcome in (earlier.outcomes if earlier else ())]
    return open_vault(plan, done, on_missing)


async def look_at_host_keys(hosts: Sequence[Host], connect_s: float | None, ask: Ask | None = None) -> list[HostKeys]:
    """Look at the keys that hosts and the jump hosts on the way to them offer; only at jump hosts anybody logs in."""
    from remoterun.transports.pool import import_asyncssh

    import_asyncssh()
    from remoterun.transports.survey import survey

    return await survey(hosts, connect_s, ask)


def _ignore(event: object) -> None:
    """Take no note of events."""
