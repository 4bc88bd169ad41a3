"""The wire of a rough host, from the tests' side: what it does to packets is changed while they travel."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Literal

from tests.support.lab.machine import CLEAN_ENV, LabError
from tests.support.lab.network import Wire
from tests.support.lab.rough_link import Terms

_PROGRAM = Path(__file__).parent / "rough_link.py"

Direction = Literal["there", "back"]
"""Towards the host, or back from it."""


class RoughWire:
    """Hold the program that all packets of one host go through; see `rough_link` for what it can do to them."""

    def __init__(self, wire: Wire, netns_pid: int, seed: str) -> None:
        pids = [str(pid) for pid in (netns_pid, wire.segment.netns_pid) if pid is not None]
        self._process = subprocess.Popen(
            [sys.executable, str(_PROGRAM), seed, wire.port, "eth0", *pids],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=CLEAN_ENV,
            start_new_session=True,
        )
        if self._pipe(self._process.stdout).readline() != b"up\n":
            raise LabError(f"the wire {wire.port} was not laid: {self._reason()}")
        wire.bring_up(netns_pid)

    def shape(self, terms: Terms, *ways: Direction) -> None:
        """Treat packets like this from now on, both ways or only those named."""
        self._say({"ways": ways or ("there", "back"), "terms": terms._asdict()})

    def drop(self, way: Direction) -> None:
        """Drop every packet of one direction, silently."""
        self.shape(Terms(dropped=True), way)

    def heal(self) -> None:
        """Let everything pass at once."""
        self.shape(Terms())

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Return by direction how many packets passed, were lost, held back and doubled so far."""
        return self._say({})

    def _say(self, order: Mapping[str, object]) -> dict[str, dict[str, int]]:
        stdin = self._pipe(self._process.stdin)
        stdin.write(json.dumps(order).encode() + b"\n")
        stdin.flush()
        answer = self._pipe(self._process.stdout).readline()
        if not answer:
            raise LabError(f"the wire has ended: {self._reason()}")
        counts: dict[str, dict[str, int]] = json.loads(answer)
        return counts

    def _reason(self) -> str:
        return self._pipe(self._process.stderr).read().decode(errors="replace").strip()

    def _pipe(self, pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None
        return pipe

    def close(self) -> None:
        """Take the wire away."""
        self._process.communicate(timeout=20)
