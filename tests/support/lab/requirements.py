"""What this machine must have for the lab, found out without changing anything that stays."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

_PROGRAMS = {
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "lxc-start": "lxc",
    "lxc-attach": "lxc",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "perl": "perl-base",
    "sudo": "sudo",
    "python3": "python3",
    "busybox": "busybox-static",
    "zsh": "zsh",
    "fish": "fish",
    "tcsh": "tcsh",
}
_SBIN = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@functools.cache
def missing() -> list[str]:
    """Name everything the lab lacks here, each as one readable reason; empty when the lab can run."""
    reasons = []
    if os.name != "posix" or os.geteuid() != 0:
        reasons.append("not root")
    packages = sorted({package for name, package in _PROGRAMS.items() if shutil.which(name, path=_SBIN) is None})
    reasons += [f"Debian package {package} is not installed" for package in packages]
    return reasons or _missing_in_kernel()


def _missing_in_kernel() -> list[str]:
    reasons = []
    if not Path("/sys/fs/cgroup").is_dir() or not any(Path("/sys/fs/cgroup").iterdir()):
        reasons.append("no cgroups are mounted")
    bridge = f"rrprobe{os.getpid() % 10_000_000}"
    probes = {
        "namespaces (mount, uts, net, pid, ipc)": "true",
        "bridges": f"ip link add {bridge} type bridge",
        "veth pairs": f"ip link add {bridge} type veth peer name rrprobe",
        "TAP devices": f"ip tuntap add dev {bridge} mode tap",
        "overlay mounts": (
            "cd /mnt && mount -t tmpfs lab . && cd /mnt && mkdir u w"
            " && mount -t overlay -o lowerdir=/,upperdir=u,workdir=w lab u"
        ),
    }
    for what, command in probes.items():
        # Each in namespaces of its own, so that nothing is left and nothing is taken.
        done = subprocess.run(
            ["unshare", "--mount", "--uts", "--net", "--pid", "--ipc", "--fork", "--", "/bin/sh", "-c", command],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            reasons.append(f"the kernel gives no {what}: {done.stderr.strip() or done.returncode}")
    return reasons
