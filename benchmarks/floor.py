"""The floor: the least asyncssh program that runs one script in every guest and collects a JSON line from each.

One connection per host, the script on stdin of ``pct exec ID -- PYTHON -``, eight sessions at a time: no limits, no
retries, no clean-up.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import asyncssh

SCRIPT = b"import json,sys\nprint(json.dumps({'kind': 'trivial', 'python': sys.version.split()[0]}))\n"


async def one_host(host: dict[str, Any], gate: asyncio.Semaphore) -> list[Any]:
    """Run the script in every guest of a host."""
    async with (
        gate,
        asyncssh.connect(
            host["address"],
            host["port"],
            username="root",
            client_keys=[host["identity_file"]],
            known_hosts=host["known_hosts"],
            config=None,
        ) as connection,
    ):
        sessions = asyncio.Semaphore(8)

        async def one_guest(guest: dict[str, Any]) -> Any:
            command = f"/usr/sbin/pct exec {guest['ctid']} -- {guest['python']} -"
            async with sessions:
                done = await connection.run(command, input=SCRIPT, encoding=None, check=True)
            assert isinstance(done.stdout, bytes)
            return json.loads(done.stdout)

        return await asyncio.gather(*(one_guest(guest) for guest in host["guests"]))


async def main(hosts: list[dict[str, Any]]) -> None:
    """Run the script everywhere and print what came back."""
    gate = asyncio.Semaphore(64)
    results = await asyncio.gather(*(one_host(host, gate) for host in hosts))
    json.dump(results, sys.stdout)


asyncio.run(main(json.loads(Path(sys.argv[1]).read_text("utf-8"))))
