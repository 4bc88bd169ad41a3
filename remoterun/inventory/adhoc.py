"""Targets written out in full, with no file: ``root@10.1.2.6/200``, ``[::1]:22``, ``local``."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from remoterun.errors import show
from remoterun.inventory.endpoints import Endpoint, parse_endpoint
from remoterun.inventory.overrides import inner_user
from remoterun.inventory.selection import is_glob
from remoterun.inventory.settings import GuestHop, Login, Settings, check_guest
from remoterun.model import Host, Target
from remoterun.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

LOCAL: Final = "local"
_BRACKETED: Final = re.compile(r"\[[^\[\]]*:[^\[\]]*\](:[^/]*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdHoc:
    """Hold the parts of ``[user@]address[:port][/guest]`` or ``local[/guest]``; `endpoint` is None for this machine."""

    key: str
    endpoint: Endpoint | None
    guest: str | None

    @property
    def id(self) -> str:
        """Return the id of the target."""
        return self.key if self.guest is None else f"{self.key}/{self.guest}"


def recognise(text: str, hosts: Mapping[str, Host]) -> AdHoc | None:
    """Read a text that describes a target by itself; None when it is a pattern for the inventory.

    Args:
        text: what stands after --on.
        hosts: the inventory's, which go first.

    Raises:
        ValueError: it describes a target, but wrongly, or a host of the inventory under another address.
    """
    key, slash, guest = text.partition("/")
    if not _is_written_out(text, key, slash, hosts):
        return None
    if text.startswith("@"):
        from shlex import quote

        way = f"write - for them here, and < {quote(text[1:] or 'FILE')} behind the command"
        raise ValueError(f"{show(text)} is no target; a file of targets is read from standard input: {way}")
    if slash and not guest:
        raise ValueError(f"{show(text)}: a guest's id is missing after the slash")
    inner = guest if slash else None
    if key == LOCAL:
        return AdHoc(key=key, endpoint=None, guest=inner)
    # A URL is told as that, not by what is wrong with the part before its slashes.
    endpoint = parse_endpoint(text if "://" in text else key)
    known = hosts.get(endpoint.address)
    if known is not None and known.address != endpoint.address:
        place = f"{known.key}{slash}{guest}"
        raise ValueError(
            f"{show(text)}: {known.key} is a host of the inventory at {known.address}; "
            f"write {place} to use what is said there, or the address itself"
        )
    return AdHoc(key=key, endpoint=endpoint, guest=inner)


def _is_written_out(text: str, key: str, slash: str, hosts: Mapping[str, Host]) -> bool:
    if key in hosts or text.startswith("tag:"):
        return False
    if "@" in text or key == LOCAL or _BRACKETED.fullmatch(key):
        return True
    like_address = "." in key or ":" in key or key == "localhost"
    return bool(slash) and like_address and not is_glob(text)


def build(adhoc: AdHoc, *, login: Login, settings: Settings, jump: tuple[Host, ...] | None, user: str | None) -> Target:
    """Build the target that a text describes; its own user and port beat those of `login`, `user` is the guest's.

    Raises:
        ValueError: the guest's key is nothing that the hop takes.
    """
    if adhoc.endpoint is None:
        host = login.local_host(adhoc.key)
    else:
        written = Login(user=adhoc.endpoint.user, port=adhoc.endpoint.port)
        host = written.over(login).host(adhoc.key, adhoc.endpoint.address, jump=jump)
    target = Target(
        id=adhoc.id,
        host=host,
        interpreter=settings.interpreter,
        venv=settings.venv,
        env=settings.env,
        vars=settings.vars,
        tags=settings.tags,
        limits=settings.limits,
    )
    if adhoc.guest is None:
        return target
    hop: GuestHop = "lxc" if settings.hop == "lxc" else "pct"
    check_guest(adhoc.guest, hop)
    return replace(target, guest=adhoc.guest, hop=hop, user=inner_user(user))
