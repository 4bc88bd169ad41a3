"""A network in user space: a packet between two links comes here, and arrives late, out of order, twice, or never.

For kernels without netem. Run as a program, it makes both links (TAP devices), which are there for as long as it runs:

    rough_link.py SEED LEFT RIGHT RIGHT_PID [LEFT_PID]     the names, and a process in the network namespace of each

Each line on standard input is one JSON object, ``{"ways": ["there", "back"], "terms": {...}}`` with the fields of
`Terms`, or empty; for each it answers, once it holds, what it has done so far. It ends with its standard input.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import struct
import sys
import time
from pathlib import Path
from typing import NamedTuple

_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_CLONE_NEWNET = 0x40000000
_FRAME = 65536
_AT_ONCE = 64
# How much later than its time a packet arrives that others are to overtake.
_HELD_BACK_S = (0.01, 0.06)
# What would wait longer than this for its turn on a narrow way has no place in its queue.
_QUEUE_S = 2.0


class Terms(NamedTuple):
    """Say what becomes of the packets of one direction.

    `rate` is in bytes a second, 0 for no bound. With `dropped` nothing arrives any more, not even what is on its way.
    """

    latency_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    reorder: float = 0.0
    duplicate: float = 0.0
    rate: float = 0.0
    dropped: bool = False


class Way:
    """Decide what becomes of each packet of one direction, and count it."""

    def __init__(self, seed: str) -> None:
        self.terms = Terms()
        self.counts = {"passed": 0, "lost": 0, "held_back": 0, "doubled": 0}
        self._chance = random.Random(seed)
        self._free_at = 0.0
        self._latest = 0.0

    def arrivals(self, size: int, now: float) -> list[float]:
        """Return when a packet that is sent now arrives: never, once or twice."""
        terms = self.terms
        if terms.dropped or self._chance.random() < terms.loss or not self._has_room(size, now):
            self.counts["lost"] += 1
            return []
        at = max(now, self._free_at) + terms.latency_s + self._chance.uniform(-terms.jitter_s, terms.jitter_s)
        if self._chance.random() < terms.reorder:
            self.counts["held_back"] += 1
            at += self._chance.uniform(*_HELD_BACK_S)
        else:
            # Only who is held back is overtaken.
            at = self._latest = max(at, self._latest)
        self.counts["passed"] += 1
        if self._chance.random() < terms.duplicate:
            self.counts["doubled"] += 1
            return [at, at + self._chance.uniform(*_HELD_BACK_S)]
        return [at]

    def _has_room(self, size: int, now: float) -> bool:
        if not self.terms.rate:
            return True
        if self._free_at > now + _QUEUE_S:
            return False
        self._free_at = max(now, self._free_at) + size / self.terms.rate
        return True


class _RoughLink:
    """Carry packets between two links until standard input ends."""

    def __init__(self, left: int, right: int, seed: str) -> None:
        self._ways = {"there": Way(f"{seed} there"), "back": Way(f"{seed} back")}
        self._from = {left: (self._ways["there"], right), right: (self._ways["back"], left)}
        self._queue: list[tuple[float, int, int, bytes]] = []
        self._to = {out: way for way, out in self._from.values()}
        self._number = 0
        self._said = b""

    def run(self) -> None:
        poll = select.poll()
        for fd in (0, *self._from):
            os.set_blocking(fd, False)
            poll.register(fd, select.POLLIN)
        while True:
            wait = None if not self._queue else max(0.0, self._queue[0][0] - time.monotonic()) * 1000
            for fd, _ in poll.poll(wait):
                if fd in self._from:
                    self._take(fd)
                elif not self._obey():
                    return
            self._deliver()

    def _take(self, fd: int) -> None:
        way, out = self._from[fd]
        for _ in range(_AT_ONCE):
            try:
                frame = os.read(fd, _FRAME)
            except BlockingIOError:
                return
            for at in way.arrivals(len(frame), time.monotonic()):
                self._number += 1
                heapq.heappush(self._queue, (at, self._number, out, frame))

    def _deliver(self) -> None:
        while self._queue and self._queue[0][0] <= time.monotonic():
            _, _, out, frame = heapq.heappop(self._queue)
            if self._to[out].terms.dropped:
                continue  # cut while it was on its way
            try:
                os.write(out, frame)
            except OSError:
                continue  # that link is down: nobody is there any more

    def _obey(self) -> bool:
        data = os.read(0, _FRAME)
        self._said += data
        *lines, self._said = self._said.split(b"\n")
        for line in lines:
            said = json.loads(line)
            for name in said.get("ways", ()):
                self._ways[name].terms = Terms(**said["terms"])
            answer = {name: way.counts for name, way in self._ways.items()}
            os.write(1, json.dumps(answer).encode() + b"\n")
        return bool(data)


def _open_link(name: str, pid: str) -> int:
    """Make a link in the network namespace of a process, and return what its packets go through."""
    namespace = os.open(Path("/proc", pid, "ns/net"), os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"the network namespace of {pid}")
    tun = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    os.close(namespace)
    return tun


def main(seed: str, left: str, right: str, right_pid: str, left_pid: str = "self") -> None:
    """Make the links, say so, and carry packets."""
    ends = _open_link(left, left_pid), _open_link(right, right_pid)
    os.write(1, b"up\n")
    _RoughLink(*ends, seed).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
