"""Keys and servers for the conformance tests, away from the keys, agent and settings of whoever runs them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import asyncssh
import pytest

from tests.conformance.servers import Keys, Sshd, StartSshd, free_port, running_sshd
from tests.support.programs import needed


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    """Generate the keys once."""
    folder = tmp_path_factory.mktemp("keys")
    kinds = {"client": "ssh-ed25519", "other": "ssh-ed25519", "ca": "ssh-ed25519", "host_ed25519": "ssh-ed25519"}
    kinds |= {"host_ecdsa": "ecdsa-sha2-nistp256", "host_rsa": "ssh-rsa"}
    for name, kind in kinds.items():
        key = asyncssh.generate_private_key(kind)
        key.write_private_key(folder / name)
        key.write_public_key(folder / f"{name}.pub")
        (folder / name).chmod(0o600)
    return Keys(folder=folder)


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the tests away from the keys, agent and settings of whoever runs them."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.fixture
def sshd(keys: Keys, tmp_path: Path) -> Iterator[StartSshd]:
    """Start real servers: `sshd("MaxSessions 1", host_keys=("host_ed25519",))`."""
    program = needed("sshd", f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if os.geteuid() == 0:
        # What the service would do; it stays, because another sshd may be using it by then.
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    with contextlib.ExitStack() as stack:

        def start(*options: str, host_keys: tuple[str, ...] = ("host_ed25519",), listen: str = "127.0.0.1") -> Sshd:
            folder = tmp_path / f"sshd-{time.monotonic_ns()}"
            folder.mkdir()
            server = Sshd(port=free_port(), keys=keys, folder=folder, host_keys=host_keys)
            stack.enter_context(running_sshd(program, server, options, listen))
            return server

        yield start
