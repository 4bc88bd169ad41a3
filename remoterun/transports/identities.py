"""The keys that are offered to a host, in OpenSSH's order: a server counts each that it refuses, and hangs up.

First those of the agent that files name, then the agent's others, then those that are in files only.
"""

from __future__ import annotations

import contextlib
import copy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import asyncssh

from remoterun.transports.dial import in_daemon

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from asyncssh import SSHCertificate, SSHKeyPair

    from remoterun.transports.route import Route

# As OpenSSH tries them.
_USUAL: Final = ("id_rsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk")


def key_files(route: Route) -> tuple[str, ...]:
    """Return the key files of a way: those that are named, or the usual ones."""
    if route.identity_files is not None:
        return route.identity_files
    folder = Path("~/.ssh").expanduser()
    return tuple(str(folder / name) for name in _USUAL if (folder / name).exists())


@contextlib.asynccontextmanager
async def offered(route: Route) -> AsyncIterator[list[SSHKeyPair]]:
    """Hold the keys for a way, and the agent that signs with its own; an agent that gives none is no obstacle."""
    files, certificates = await in_daemon(partial(_of_files, route))
    async with contextlib.AsyncExitStack() as stack:
        held: Sequence[SSHKeyPair] = ()
        if route.agent is not None:
            with contextlib.suppress(OSError, ValueError):
                agent = await stack.enter_async_context(asyncssh.SSHAgentClient(route.agent))
                held = await agent.get_keys()
        yield _in_order(route, files, certificates, held)


def _of_files(route: Route) -> tuple[list[tuple[set[bytes], Sequence[SSHKeyPair]]], list[SSHCertificate]]:
    """Read what each file names and what it has, and all certificates; what cannot be used is passed over."""
    paths = key_files(route)
    certificates: list[SSHCertificate] = []
    for path in (*route.certificate_files, *(f"{path}-cert.pub" for path in paths)):
        with contextlib.suppress(OSError, ValueError):
            certificates += asyncssh.load_certificates(path)
    files = []
    for path in paths:
        pairs: Sequence[SSHKeyPair] = ()
        with contextlib.suppress(OSError, ValueError):
            pairs = asyncssh.load_keypairs(path, None, certificates, ignore_encrypted=True)
        named = {data for pair in pairs for data in (pair.public_data, pair.key_public_data)}
        for public in () if pairs else (f"{path}.pub", path):
            with contextlib.suppress(OSError, ValueError):
                named.add(asyncssh.read_public_key(public).public_data)
        files.append((named, pairs))
    return files, certificates


def _in_order(
    route: Route,
    files: Sequence[tuple[set[bytes], Sequence[SSHKeyPair]]],
    certificates: Sequence[SSHCertificate],
    held: Sequence[SSHKeyPair],
) -> list[SSHKeyPair]:
    certified = []
    for certificate in certificates:
        for key in held:
            if key.public_data == certificate.key.public_data:
                certified.append(copy.copy(key))
                certified[-1].set_certificate(certificate)
    named = [key for names, _ in files for key in held if key.public_data in names]
    others = () if route.only_named else held
    alone = [key for _, pairs in files for key in pairs]
    unique: dict[bytes, SSHKeyPair] = {}
    for key in (*certified, *named, *others, *alone):
        unique.setdefault(key.public_data, key)
    return list(unique.values())
