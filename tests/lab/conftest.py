"""The host that the tests of the lab itself share."""

from __future__ import annotations

import pytest

from tests.support.lab import Lab, LabHost, guest


@pytest.fixture(scope="session")
def standin(lab: Lab) -> LabHost:
    """Return a host with a running, a stopped and a locked guest, and a second node in its cluster."""
    return lab.host(
        "standin",
        node="pve1",
        guests=[
            guest(200, name="web", files={"/srv/only-inside/x": ""}),
            guest(201, name="db", state="stopped"),
            guest(202, name="locked", pve=("lock: backup",)),
        ],
        other_nodes={"pve2": [300]},
    )
