"""Bring a lab up for benchmarks and for playing with: ``python -m tests.support.lab up --hosts 10 --guests 4 --dir D``.

Writes ``D/inventory.yaml`` and ``D/lab.json``, prints ``ready``, and removes the lab on SIGTERM, SIGINT or the end of
stdin.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.support.lab import Lab, LabHost, guest, missing

VENV = "/root/venv"


def main() -> int:
    """Run the command line; exit status 2 when this machine can not carry a lab."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.lab")
    up = parser.add_subparsers(required=True).add_parser("up", help="bring a lab up and keep it until stdin ends")
    up.add_argument("--hosts", type=int, default=1)
    up.add_argument("--guests", type=int, default=4, help="guests per host, ids from 200 on")
    up.add_argument("--unprivileged", action="store_true", help="make unprivileged guests")
    up.add_argument("--dir", type=Path, required=True, help="where inventory.yaml and lab.json go")
    options = parser.parse_args()
    if missing():
        print(f"no lab on this machine: {'; '.join(missing())}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    with Lab() as lab:
        ctids = range(200, 200 + options.guests)
        specs = [guest(ctid, venv=VENV, unprivileged=options.unprivileged) for ctid in ctids]
        hosts = lab.hosts_at_once({f"kpro{number}": specs for number in range(1, options.hosts + 1)})
        options.dir.mkdir(parents=True, exist_ok=True)
        (options.dir / "inventory.yaml").write_text(yaml.safe_dump(inventory(hosts), sort_keys=False))
        (options.dir / "lab.json").write_text(json.dumps(description(hosts), indent=2))
        print("ready", flush=True)
        sys.stdin.buffer.read()
    return 0


def inventory(hosts: list[LabHost]) -> dict[str, Any]:
    """Return the hosts as an inventory file of remoterun."""
    return {"hosts": {host.name: _entry(host) for host in hosts}}


def _entry(host: LabHost) -> dict[str, Any]:
    return {
        "address": host.address,
        "port": host.port,
        "user": "root",
        "identity_file": str(host.identity_file),
        "known_hosts": str(host.known_hosts),
        "guests": {ctid: {"name": f"{host.name}-{each.name}", "venv": VENV} for ctid, each in host.guests.items()},
    }


def description(hosts: list[LabHost]) -> dict[str, Any]:
    """Return what a benchmark needs besides: fingerprints, and where each guest's root is seen from here."""
    return {
        host.name: _entry(host)
        | {"fingerprint": host.fingerprint, "init_pid": host.init_pid}
        | {"roots": {ctid: str(each.root) for ctid, each in host.guests.items()}}
        for host in hosts
    }


if __name__ == "__main__":
    sys.exit(main())
