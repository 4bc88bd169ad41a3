"""Hosts that are written in one word: ``root@10.1.2.6:22``, and the chains of hosts to jump through."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from remoterun.errors import nearest, show
from remoterun.inventory import words
from remoterun.inventory.settings import Login
from remoterun.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from remoterun.model import Host

MOST_JUMPS: Final = 8
DIRECT: Final = "none"

_BRACKETED: Final = re.compile(r"\[(?P<address>[^\[\]]*)\](:(?P<port>.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Hold the parts of ``[user@]address[:port]``."""

    address: str
    user: str | None = None
    port: int | None = None


def parse_endpoint(text: str) -> Endpoint:
    """Read ``[user@]address[:port]``; an IPv6 address with a port stands in brackets.

    Raises:
        ValueError: a part is not what it should be.
    """
    if "://" in text:
        raise ValueError(f"{show(text)} is a URL: write user@address:port, without {text.partition('//')[0]}//")
    user, at, place = text.rpartition("@")
    if match := _BRACKETED.fullmatch(place):
        address, port = match["address"], match["port"]
        if ":" not in address:
            raise ValueError(f"{show(text)}: only an IPv6 address stands in brackets")
    elif place.count(":") == 1:
        address, _, port = place.partition(":")
    else:
        address, port = place, None
    return Endpoint(
        address=words.ADDRESS.check(address),
        user=words.LOGIN_USER.check(user) if at else None,
        port=None if port is None else parse_port(port),
    )


def parse_port(text: str) -> int:
    """Read a port number.

    Raises:
        ValueError: not a whole number from 1 to 65535.
    """
    number = int(text) if re.fullmatch(r"[0-9]{1,5}", text) else 0
    if not 1 <= number <= words.HIGHEST_PORT:
        raise ValueError(f"{show(text)} is not a port: write a number from 1 to {words.HIGHEST_PORT}")
    return number


def split_jump(written: str | Iterable[str]) -> tuple[str, ...]:
    """Split a jump chain into its hosts, the first to be reached first; () is a direct connection.

    Raises:
        ValueError: an empty chain or part, or `none` beside other hosts.
    """
    text = written if isinstance(written, str) else ",".join(written)
    parts = tuple(part.strip() for part in text.split(","))
    if parts == (DIRECT,):
        return ()
    if "" in parts:
        raise ValueError("a jump host is missing: write a host, a chain such as gate,bastion, or none")
    if DIRECT in parts:
        raise ValueError("`none` means a direct connection and stands alone")
    return parts


def jump_chain(
    parts: Sequence[str], find: Callable[[str], Host | None], defaults: Login, known: Iterable[str]
) -> tuple[Host, ...]:
    """Turn a split chain into hosts, each reached through those before it; the first brings the jumps of its own.

    Args:
        parts: keys of the inventory's hosts, or ``[user@]address[:port]``.
        find: gives the inventory's host of a key.
        defaults: what the inventory says of every host.
        known: the inventory's keys, to offer the nearest.

    Raises:
        ValueError: an unknown host, a host twice, a host without SSH, or too long a chain.
    """
    hosts = [find(part) or _outside(part, defaults, known) for part in parts]
    flat = [*(hosts[0].jump or ()), *hosts] if hosts else []
    if local := [host.key for host in hosts if host.transport == "local"]:
        raise ValueError(f"{local[0]} is this machine: there is nothing to jump through")
    if other := [host.key for host in hosts if host.transport == "fabric"]:
        raise ValueError(f"{other[0]} is reached by Fabric, which lets only its own connections through")
    if len({host.key for host in flat}) < len(flat):
        raise ValueError(f"the chain {' > '.join(host.key for host in flat)} goes through a host twice")
    if len(flat) > MOST_JUMPS:
        raise ValueError(f"the chain is longer than {MOST_JUMPS} hosts")
    chain: list[Host] = []
    for host in flat:
        chain.append(replace(host, jump=tuple(chain)) if chain else host)
    return tuple(chain)


def _outside(text: str, defaults: Login, known: Iterable[str]) -> Host:
    """Describe a jump host that the inventory does not have."""
    if not any(mark in text for mark in "@.:"):
        near = " or ".join(nearest(text, known))
        guess = f"; did you mean {near}?" if near else ""
        elsewhere = "for another machine write user@address"
        raise ValueError(f"the inventory has no host {show(text)} to jump through ({elsewhere}){guess}")
    endpoint = parse_endpoint(text)
    login = Login(user=endpoint.user, port=endpoint.port, jump=()).over(defaults)
    return login.host(text, endpoint.address, jump=None)
