"""The way to one host, as the inventory and the files of this machine say it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoterun.errors import TargetError
from remoterun.model import Host
from remoterun.transports.route import resolve


@pytest.fixture
def shut() -> Iterator[Path]:
    """Return a key in a folder that may not be looked into, as long as a test lasts; root looks everywhere."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        inner = Path(folder, "shut")
        inner.mkdir()
        (inner / "key").touch()
        inner.chmod(0)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        try:
            yield inner / "key"
        finally:
            if root:
                os.seteuid(0)
            inner.chmod(0o700)


def test_an_identity_file_where_nobody_may_look_is_no_bug(shut: Path) -> None:
    with pytest.raises(TargetError) as caught:
        resolve(Host(key="h", address="h", identity_files=(str(shut),), ssh_config="none"))
    assert caught.value.code == "auth_failed"
    assert caught.value.message == f"the identity file {shut} can't be looked at: Permission denied"
    assert "`identity_file`" in caught.value.hint


def test_one_that_only_ssh_config_names_is_passed_over_as_openssh_does(shut: Path) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as config:
        config.write(f"IdentityFile {shut}\nCertificateFile {shut}-cert.pub\n")
        config.flush()
        route = resolve(Host(key="h", address="h", ssh_config=config.name))
    assert (route.identity_files, route.certificate_files) == ((), ())
