"""The lab: hosts on a private network, made on demand, reused by name, removed without a trace."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.lab import pythons, slots
from tests.support.lab.guest import GuestSpec
from tests.support.lab.host import LabHost
from tests.support.lab.machine import Content, LabError, run
from tests.support.lab.network import Segment, Wire
from tests.support.lab.seed import USERS, HostSpec, User


class Lab:
    """Make and remove hosts. A context manager; `host` may be called from several threads."""

    def __init__(self) -> None:
        self._slot = slots.take()
        self.folder = self._slot.folder
        self.hosts: dict[str, LabHost] = {}
        self._numbers = itertools.count(2)
        self._lock = threading.Lock()
        number = self._slot.number
        self._segment = Segment(
            bridge=self._slot.bridge, prefix=f"10.213.{number}", mac_prefix=f"02:00:0a:d5:{number:02x}"
        )
        self.identity_file = self.folder / "id_ed25519"
        try:
            self._segment.create()
            # What lies behind a jump host must not leave through the machine's default route.
            self._segment.ip(f"route add unreachable {self._slot.inner_prefix}.0/24")
            run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", str(self.identity_file)])
        except BaseException:
            self._slot.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def host(
        self,
        name: str,
        *,
        guests: Iterable[GuestSpec | int] = (),
        shell: str = "/bin/bash",
        sshd_config: str = "",
        port: int = 22,
        pct: bool = True,
        knobs: Mapping[str, str] | None = None,
        node: str | None = None,
        users: Sequence[User] = USERS,
        files: Mapping[str, Content] | None = None,
        other_nodes: Mapping[str, Sequence[int]] | None = None,
        behind: LabHost | None = None,
        rough: str | None = None,
    ) -> LabHost:
        """Return the host of that name, made on first use; guests it lacks are added.

        Args:
            name: its hostname.
            guests: ids, or `guest(...)` specifications.
            shell: root's login shell.
            sshd_config: lines that win over the lab's own.
            port: where sshd listens.
            pct: whether there is a `pct`.
            knobs: settings of the stand-in; see `pct --standin-info`.
            node: the Proxmox node name, when it is not `name`.
            users: accounts besides root.
            files: absolute path to content, laid over the machine's files.
            other_nodes: container ids by the name of another node of the cluster.
            behind: the host that is the only way to it.
            rough: the seed of a wire that can do more to packets than cut and slow them; see `LabHost.rough`.

        Raises:
            LabError: when the host exists and was made with other words than these.
        """
        spec = HostSpec(
            name=name,
            node=node or name,
            shell=shell,
            sshd_config=sshd_config,
            port=port,
            pct=pct,
            knobs=knobs or {},
            users=tuple(users),
            files=files or {},
            other_nodes=other_nodes or {},
            rough=rough,
        )
        host = self._named(spec, behind)
        try:
            host.start()
        except BaseException:
            self.hosts.pop(name, None)
            raise
        wanted = [GuestSpec(item) if isinstance(item, int) else item for item in guests]
        for item in wanted:
            if item.ctid in host.guests and host.guests[item.ctid].spec != item:
                raise LabError(f"host {name} has a guest {item.ctid} that was made otherwise; take another id")
        host.add_guests(item for item in wanted if item.ctid not in host.guests)
        return host

    def _named(self, spec: HostSpec, behind: LabHost | None) -> LabHost:
        with self._lock:
            known = self.hosts.get(spec.name)
            if known is not None:
                if known.spec != spec:
                    raise LabError(f"host {spec.name} was made otherwise; take another name")
                return known
            folder = self.folder / "hosts" / spec.name
            segment = self._segment if behind is None else behind.segment_behind(self._slot.inner_prefix)
            host = LabHost(
                spec,
                folder=folder,
                cgroup=self._slot.cgroup,
                wire=Wire(segment=segment, number=next(self._numbers)),
                identity_file=self.identity_file,
            )
            self.hosts[spec.name] = host
            return host

    def hosts_at_once(self, wanted: Mapping[str, Iterable[GuestSpec | int]]) -> list[LabHost]:
        """Make several plain hosts with their guests in parallel, by name."""
        with ThreadPoolExecutor(max_workers=8) as pool:
            return list(pool.map(lambda item: self.host(item[0], guests=item[1]), wanted.items()))

    def pythons(self) -> Mapping[str, str]:
        """Map versions (``2.7``, ``3.8``) to interpreters that exist at the same path here and in guests."""
        return pythons.pythons()

    def known_hosts(self, *hosts: LabHost) -> Path:
        """Return one known_hosts file for these hosts, or for all."""
        chosen = hosts or tuple(self.hosts.values())
        path = self.folder / f"known_hosts-{'-'.join(host.name for host in chosen)}"
        path.write_text("".join(host.known_hosts.read_text() for host in chosen))
        return path

    def close(self) -> None:
        """Remove every host, container, namespace, link, cgroup and file of the lab."""
        try:
            while self.hosts:
                _, host = self.hosts.popitem()  # the latest first: a jump host after those behind it
                host.close()
        finally:
            self._slot.close()
