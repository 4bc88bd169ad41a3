"""Look at the keys that hosts offer, without logging in at them, and write down those that a user trusts."""

from __future__ import annotations

import asyncio
from dataclasses import field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from remoterun.errors import TargetError
from remoterun.model import format_duration
from remoterun.records import dataclass
from remoterun.transports.hostkeys import Survey, fingerprint_of, keep_keys, load_known_hosts
from remoterun.transports.link import Stage
from remoterun.transports.pool import MAX_JUMPS, Pool
from remoterun.transports.ssh import look

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncssh import SSHKey

    from remoterun.model import Host
    from remoterun.transports.keyring import Ask
    from remoterun.transports.route import Route

KeyState: TypeAlias = Literal["known", "pinned", "new", "changed", "revoked"]

_Place: TypeAlias = "tuple[str, str, int, tuple[str, ...], tuple[str, ...]]"

_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedKey:
    """Tell of one key that a host offers; of a certificate, its authority."""

    kind: str
    fingerprint: str
    state: KeyState


@dataclass(frozen=True, slots=True, kw_only=True)
class HostKeys:
    """Tell what a host offers, and what is known of it.

    `state`: known, pinned, new (nothing at all is known of it), changed (something else is known or pinned, or a key is
    revoked) or failed, with an `error`. `expected` are the fingerprints that are pinned or in the known_hosts `files`.
    `through` are the addresses of its jump hosts, the nearest to us first.
    """

    host: Host
    address: str
    port: int
    through: tuple[str, ...] = ()
    state: Literal["known", "pinned", "new", "changed", "failed"]
    keys: tuple[OfferedKey, ...] = ()
    expected: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    error: TargetError | None = None
    place: tuple[str, int | None] = ("", None)
    new: tuple[SSHKey, ...] = field(default=(), repr=False)

    def accept(self) -> str:
        """Trust the new keys from now on, and return the file that they were written to.

        Raises:
            OSError: it can't be written.
        """
        return keep_keys(self.files, *self.place, self.new)


async def survey(hosts: Sequence[Host], connect_s: float | None, ask: Ask | None = None) -> list[HostKeys]:
    """Look at hosts and at the jump hosts on the way to them, each before those behind it; hosts stand once."""
    async with Pool(ask=ask) as pool:
        found: dict[_Place, HostKeys | Route] = {}
        for host in hosts:
            try:
                way = await _way(pool, host, connect_s)
            except TargetError as error:
                failed = _failed(host, error, address=host.address, port=host.port or 22)
                found.setdefault((host.key, host.address, failed.port, (), host.host_key), failed)
                continue
            for number, route in enumerate(way):
                through = tuple(hop.address for hop in way[:number])
                found.setdefault((route.host.key, route.address, route.port, through, route.host.host_key), route)
        slots = asyncio.Semaphore(_AT_ONCE)

        async def one(item: HostKeys | Route, through: tuple[str, ...]) -> HostKeys:
            if isinstance(item, HostKeys):
                return item
            async with slots:
                return await _look(pool, item, through, connect_s)

        return await asyncio.gather(*(one(item, through) for (*_, through, _pins), item in found.items()))


async def _way(pool: Pool, host: Host, connect_s: float | None) -> list[Route]:
    """Return the routes of a host and of its jump hosts, the nearest to us first."""
    way = [await pool.route(host, connect_s)]
    while (via := way[0].via) is not None:
        if len(way) > MAX_JUMPS:
            raise TargetError("connect_failed", f"more than {MAX_JUMPS} jump hosts: do they lead in a circle?")
        way.insert(0, await pool.route(via, connect_s))
    return way


async def _look(pool: Pool, route: Route, through: tuple[str, ...], connect_s: float | None) -> HostKeys:
    judge = Survey(route.host, load_known_hosts(route.known_hosts), alias=route.key_alias)
    stage = Stage()
    try:
        via = await pool.connection(route.via, connect_s) if route.via is not None else None
        async with asyncio.timeout(connect_s):
            await look(route, judge, via, stage)
    except TimeoutError:
        limit = connect_s or 0.0
        text = f"no key was offered within {format_duration(limit)}: still {stage.text}"
        error = TargetError("connect_timeout", text, limit=("connect", limit, "limits.connect"))
        return _failed(route.host, error, address=route.address, port=route.port, through=through)
    except TargetError as error:
        return _failed(route.host, error, address=route.address, port=route.port, through=through)
    return _judged(route, judge, through)


def _failed(host: Host, error: TargetError, *, address: str, port: int, through: tuple[str, ...] = ()) -> HostKeys:
    return HostKeys(host=host, address=address, port=port, through=through, state="failed", error=error)


def _judged(route: Route, judge: Survey, through: tuple[str, ...]) -> HostKeys:
    keys, authorities, revoked = judge.trusted
    pins = judge.pins

    def state_of(key: SSHKey) -> KeyState:
        if pins:
            return "pinned" if fingerprint_of(key) in pins else "changed"
        if key in revoked:
            return "revoked"
        if key in keys:
            return "known"
        return "changed" if any(each.get_algorithm() == key.get_algorithm() for each in keys) else "new"

    offered = [
        OfferedKey(kind=key.get_algorithm(), fingerprint=fingerprint_of(key), state=state_of(key)) for key in judge.keys
    ]
    offered += [
        OfferedKey(kind="authority", fingerprint=fingerprint_of(key), state="known")
        for key in judge.authorities
        if key in authorities
    ]
    return HostKeys(
        host=route.host,
        address=route.address,
        port=route.port,
        through=through,
        state=_state([key.state for key in offered], something_known=bool(keys)),
        keys=tuple(offered),
        expected=tuple(sorted(pins or {fingerprint_of(key) for key in keys})),
        files=route.known_hosts,
        place=judge.place,
        new=tuple(key for key in judge.keys if state_of(key) == "new"),
    )


def _state(states: Sequence[KeyState], *, something_known: bool) -> Literal["known", "pinned", "new", "changed"]:
    if "pinned" in states:
        return "pinned"
    if "revoked" in states or "changed" in states:
        return "changed"
    if "known" in states:
        return "known"
    return "changed" if something_known else "new"
