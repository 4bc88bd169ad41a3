"""A lab of real parts: OpenSSH servers on hosts in namespaces, LXC containers as guests, a faithful `pct`.

    with Lab() as lab:
        host = lab.host("kpro6", guests=[200, guest(201, state="stopped")])
        host.ssh("pct exec 200 -- hostname").stdout

A host is a set of namespaces (mount, uts, net, pid, ipc) whose root is the machine's own with a private, writable layer
on top: its own users, sshd and host key, `/usr/sbin/pct`, `/etc/pve`, `/var/lib/lxc`, `/root`, `/tmp`. A guest is a
container whose root is again the machine's, with /root, /tmp and /run of its own. Nothing of the machine is ever
changed, and everything is gone with the hosts' inits, which end when the process that made the lab ends, however it
ends.
"""

from tests.support.lab.guest import Guest, GuestSpec, guest
from tests.support.lab.host import LabHost
from tests.support.lab.lab import Lab
from tests.support.lab.machine import LabError, Process, send, wait_for
from tests.support.lab.requirements import missing
from tests.support.lab.seed import HostSpec, User

__all__ = [
    "Guest",
    "GuestSpec",
    "HostSpec",
    "Lab",
    "LabError",
    "LabHost",
    "Process",
    "User",
    "guest",
    "missing",
    "send",
    "wait_for",
]
