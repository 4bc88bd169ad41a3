"""A byte stream that is cut, held up, split and damaged at random places: one true outcome, and nothing is left."""

from __future__ import annotations

import contextlib
import getpass
import os
import random
import selectors
import socket
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml

from tests.conformance.servers import StartSshd
from tests.support.campaign import turns
from tests.support.homes import keep_state_in
from tests.support.lab import wait_for
from tests.support.project import Project

_RECORDS = 30
_COUNT = f"""\
import os, time

def run(ctx):
    with open(os.environ["STARTED"], "a") as file:
        file.write("x")
    for number in range({_RECORDS}):
        ctx.emit({{"number": number, "text": "t" * 3000}})
        print("o" * 20000)
        time.sleep(0.02)
"""
_LIMITS = ("connect=8s", "enter=8s", "upload=8s", "idle=4s", "run=60s", "lease=6s")
_KINDS = ("cut", "reset", "half", "stall", "delay", "split", "damage")
_LASTS_S = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Mishap:
    """Say what befalls a connection once so many bytes have gone one way: 0 there, 1 back."""

    kind: str
    way: int
    after: int


class Relay:
    """Carry connections to a port; each has its own mishap, and from some number on none has."""

    def __init__(self, port: int, mishaps: list[Mishap]) -> None:
        self._port, self._mishaps = port, list(mishaps)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.connections = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self.connections += 1
                mishap = self._mishaps.pop(0) if self._mishaps else None
                threading.Thread(target=self._carry, args=(near, mishap), daemon=True).start()

    def _carry(self, near: socket.socket, mishap: Mishap | None) -> None:
        with near, socket.create_connection(("127.0.0.1", self._port)) as far, contextlib.suppress(OSError):
            ends, passed, open_ways = (near, far), [0, 0], {0, 1}
            with selectors.DefaultSelector() as ready:
                for way in (0, 1):
                    ready.register(ends[way], selectors.EVENT_READ, way)
                while open_ways:
                    for key, _ in ready.select():
                        way = key.data
                        data = ends[way].recv(32768)
                        if not data:
                            ready.unregister(ends[way])
                            open_ways.discard(way)
                            ends[1 - way].shutdown(socket.SHUT_WR)
                            continue
                        passed[way] += len(data)
                        if mishap is not None and way == mishap.way and passed[way] > mishap.after:
                            at = max(0, mishap.after - passed[way] + len(data))
                            if not _befall(mishap.kind, ends, way, data, at):
                                return
                            mishap = None
                        else:
                            ends[1 - way].sendall(data)


def _befall(kind: str, ends: tuple[socket.socket, socket.socket], way: int, data: bytes, at: int) -> bool:
    """Let it happen in the middle of these bytes, and tell whether the connection lives on."""
    to = ends[1 - way]
    if kind == "damage":
        to.sendall(data[:at] + bytes([data[at] ^ 0x20]) + data[at + 1 :])
    elif kind == "split":
        for number in range(len(data)):
            to.sendall(data[number : number + 1])
    else:
        to.sendall(data[:at])
        if kind == "reset":
            for end in ends:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        if kind in {"cut", "reset"}:
            return False
        if kind == "half":
            to.shutdown(socket.SHUT_WR)
            return True
        time.sleep(_LASTS_S if kind == "delay" else 10 * _LASTS_S)
        to.sendall(data[at:])
    return True


@pytest.fixture
def relayed(sshd: StartSshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Project, Path, int]:
    """Return a project with one host, the folder that is the home of what runs there, and its server's port."""
    keep_state_in(tmp_path / "state", monkeypatch)
    server = sshd()
    host = {"address": "127.0.0.1", "port": server.port, "user": getpass.getuser(), "ssh_config": "none"}
    host |= {"identity_file": server.keys["client"], "host_key": server.keys.fingerprint("host_ed25519")}
    host |= {"python": sys.executable, "env": {"STARTED": str(tmp_path / "started")}}
    (tmp_path / "inventory.yaml").write_text(yaml.safe_dump({"hosts": {"box": host}}))
    project = Project(folder=tmp_path)
    project.payload("count", _COUNT)
    return project, server.folder, server.port


def _ours(home: Path) -> list[str]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("HOME") == str(home) and process.pid != os.getpid():
                found.append(" ".join(process.cmdline())[:80])
    return found


@pytest.mark.parametrize("turn", turns(5, 200))
def test_whatever_befalls_the_bytes_there_is_one_true_outcome(
    relayed: tuple[Project, Path, int], tmp_path: Path, turn: int, seed: int
) -> None:
    project, home, port = relayed
    chance = random.Random(f"relay {seed} {turn}")
    sizes = (chance.randint(0, 3000), chance.randint(0, 20000), chance.randint(0, 900_000))
    mishaps = [
        Mishap(kind=chance.choice(_KINDS), way=chance.randint(0, 1), after=chance.choice(sizes))
        for _ in range(chance.randint(1, 3))
    ]
    print(f"round {turn} of seed {seed}: {mishaps}")
    relay = Relay(port, mishaps)
    words = [word for limit in _LIMITS for word in ("--limit", limit)]
    try:
        result = project.run("play", "count", "--on", "box", "--port", str(relay.port), "--output", "json", *words)
    finally:
        relay.close()
    outcome = result.outcome("box")
    code = outcome["error"] and outcome["error"]["code"]
    print(f"{code} with {len(outcome['records'])} records after {relay.connections} connections: {outcome['error']}")
    started = tmp_path / "started"
    assert not started.exists() or started.read_text() == "x", "it was started once at most"
    numbers = [record["number"] for record in outcome["records"]]
    assert numbers == list(range(len(numbers)))
    assert (outcome["status"] == "ok") == (result.status == 0) == (code is None)
    if outcome["status"] == "ok":
        assert len(numbers) == _RECORDS
        assert outcome["stdout"].count("o") == 20000 * _RECORDS
        assert started.exists()
    else:
        assert outcome["error"]["hint"]
        assert code != "result_damaged", "SSH lets no damage through"
    wait_for(lambda: not _ours(home), "nothing of ours to be left", limit_s=30)
