"""Calls of `pct` on a lab host without SSH in between, and what is seen of them from outside."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.lab import Guest, LabHost, Process


def pct(
    host: LabHost, *words: str, env: Mapping[str, str] | None = None, stdin: bytes = b"", folder: str = "/root"
) -> subprocess.CompletedProcess[str]:
    """Run pct on the host directly, with no environment but `env`."""
    environment = {"LANG": "C.UTF-8", "PATH": "/usr/sbin:/usr/bin"} if env is None else env
    settings = [f"{key}={value}" for key, value in environment.items()]
    return host.call("env", "-i", "-C", folder, *settings, "/usr/sbin/pct", *words, stdin=stdin, check=False)


@contextmanager
def knobs(host: LabHost, **settings: str) -> Iterator[None]:
    """Set the stand-in's knobs for a while."""
    host.set_pct(**settings)
    try:
        yield
    finally:
        host.set_pct()


def attached(host: LabHost, word: str) -> list[Process]:
    """List the outer processes of calls whose command line holds `word`; not the helper on its way into the guest."""
    found = [p for p in host.processes() if p.cmdline[:1] == ("lxc-attach",) and word in " ".join(p.cmdline)]
    return [p for p in found if p.parent not in {other.pid for other in found}]


def inner(guest: Guest, word: str) -> list[Process]:
    """List the processes in a guest whose command line holds `word`."""
    return [p for p in guest.processes() if p.state != "Z" and word in " ".join(p.cmdline)]
