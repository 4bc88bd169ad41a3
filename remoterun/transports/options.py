"""What asyncssh is told of a connection, so that it takes nothing from ssh_config or defaults of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncssh

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remoterun.transports.hostkeys import Judge
    from remoterun.transports.route import Route


class _Settings:
    """Hand to asyncssh what it would else read from ssh_config by itself, as the reader before it."""

    loaded = True

    def __init__(self, options: Mapping[str, object]) -> None:
        self._options = options

    def get_options(self, _reload: bool) -> dict[str, object]:  # noqa: FBT001 - asyncssh's signature
        return dict(self._options)


def _no_keys(route: Route) -> tuple[()] | None:
    # Keys on a card are asked for only where there could be others.
    return () if "PKCS11Provider" in route.options else None


def options_for(route: Route, judge: Judge, keys: Sequence[object]) -> dict[str, object]:
    """Return what asyncssh is to be told of a login with these keys: all that it would else look for by itself."""
    base = asyncssh.SSHClientConnectionOptions(config=None, client_keys=None, known_hosts=None)
    base.config = _Settings(route.options)  # type: ignore[assignment] # it asks no more of the one before
    return {
        "options": base,
        "config": None,
        "host": route.address,
        "port": route.port,
        "username": route.user,
        "proxy_command": None,
        "canonicalize_hostname": False,
        "known_hosts": judge.known_hosts,
        "host_key_alias": route.key_alias,
        "server_host_key_algs": judge.algorithms,
        "client_keys": [*keys] or _no_keys(route),
        "client_certs": (),
        "agent_path": None,
        "host_based_auth": False,
        "x509_trusted_certs": None,
        "x509_trusted_cert_paths": [],
        "agent_forwarding": False,
        "x11_forwarding": False,
        "request_pty": False,
        "command": None,
        "env": None,
        "send_env": None,
        "connect_timeout": None,
        "login_timeout": 0,
        "utf8_decode_errors": "replace",
        "encoding": None,
    }
