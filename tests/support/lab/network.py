"""Wires of the lab: a bridge in the tests' network namespace, more behind jump hosts, one veth pair per host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.lab.machine import run


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Describe one bridge: where it lives (`netns_pid` None: where the tests run) and the addresses on it."""

    bridge: str
    prefix: str
    mac_prefix: str
    netns_pid: int | None = None

    @property
    def gateway(self) -> str:
        """Return the bridge's own address."""
        return f"{self.prefix}.1"

    def mac(self, number: int) -> str:
        """Return the hardware address that goes with host `number`."""
        return f"{self.mac_prefix}:{number:02x}"

    def create(self) -> None:
        """Make the bridge."""
        self.ip(
            f"link add {self.bridge} address {self.mac(1)} type bridge",
            f"addr add {self.gateway}/24 dev {self.bridge}",
            f"link set {self.bridge} up",
        )

    def ip(self, *commands: str) -> None:
        """Run `ip` commands in the namespace that the bridge lives in."""
        ip_batch(commands, netns_pid=self.netns_pid)

    def call(self, *argv: str, check: bool = True) -> None:
        """Run a program in the namespace that the bridge lives in."""
        run((*_enter(self.netns_pid), *argv), check=check)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """Connect a host to a segment. Neighbour entries are permanent: a cut wire is silence, never `no route to host`."""

    segment: Segment
    number: int

    @property
    def port(self) -> str:
        """Name the bridge's end of the wire."""
        return f"{self.segment.bridge}h{self.number}"

    @property
    def address(self) -> str:
        """Return the host's address."""
        return f"{self.segment.prefix}.{self.number}"

    def create(self, netns_pid: int) -> None:
        """Lay the wire into a host's network namespace and bring both ends up."""
        self.segment.ip(f"link add {self.port} type veth peer name eth0 netns {netns_pid}")
        self.bring_up(netns_pid)

    def bring_up(self, netns_pid: int) -> None:
        """Bring both ends up, once they are there."""
        mac, gateway_mac = self.segment.mac(self.number), self.segment.mac(1)
        self.segment.ip(
            f"link set {self.port} master {self.segment.bridge} up",
            f"neigh replace {self.address} lladdr {mac} dev {self.segment.bridge} nud permanent",
        )
        ip_batch(
            (
                "link set lo up",
                f"link set eth0 address {mac}",
                f"addr add {self.address}/24 dev eth0",
                "link set eth0 up",
                f"neigh replace {self.segment.gateway} lladdr {gateway_mac} dev eth0 nud permanent",
            ),
            netns_pid=netns_pid,
        )

    def cut(self) -> None:
        """Drop every packet, both ways, without telling either side."""
        self.segment.call("bridge", "link", "set", "dev", self.port, "state", "0")

    def mend(self) -> None:
        """Let packets pass again, at full speed."""
        self.segment.call("bridge", "link", "set", "dev", self.port, "state", "3")
        self.segment.call("tc", "qdisc", "del", "dev", self.port, "root", check=False)

    def narrow(self, rate: str) -> None:
        """Bound what goes to the host; `rate` in the words of tc, such as ``800kbit``."""
        self.segment.call(
            "tc", "qdisc", "replace", "dev", self.port, "root", "tbf", "rate", rate, "burst", "16k", "latency", "5s"
        )


def ip_batch(commands: Sequence[str], *, netns_pid: int | None) -> None:
    """Run several `ip` commands at once, stopping at the first that fails."""
    run((*_enter(netns_pid), "ip", "-batch", "-"), stdin="\n".join(commands).encode())


def _enter(netns_pid: int | None) -> tuple[str, ...]:
    return () if netns_pid is None else ("nsenter", "-t", str(netns_pid), "-n", "--")
