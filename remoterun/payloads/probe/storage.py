"""Mounts and the room on them."""

from __future__ import annotations

import errno
import json
import os
import re
from typing import Dict, List, NamedTuple, Optional, Tuple

from .files import printable
from .guard import Answer

MOST_MOUNTS = 64

# Not disks, always full by design, or (autofs) mounted by looking.
_NO_DISK = frozenset(
    (
        *("autofs", "binder", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs"),
        *("efivarfs", "erofs", "fuse.gvfsd-fuse", "fuse.lxcfs", "fuse.portal", "fusectl", "hugetlbfs", "iso9660"),
        *("mqueue", "nsfs", "proc", "pstore", "ramfs", "rpc_pipefs", "securityfs", "selinuxfs", "squashfs", "sysfs"),
        "tracefs",
    )
)
# Container engines mount single files there, systemd a tiny file system for each credential, both parts of /sys.
_NO_ROOM_OF_ITS_OWN = re.compile(r"/etc/(hosts|hostname|resolv\.conf)|/(run/credentials|sys|proc)/.*")


class Mount(NamedTuple):
    """Hold one line of mountinfo; `point` as the kernel takes it, surrogates for bytes that are no UTF-8."""

    device: str
    point: str
    options: Tuple[str, ...]
    fstype: str
    source: str
    super_options: Tuple[str, ...]
    root: str


class Room(NamedTuple):
    """Tell what is known of one mount.

    `state` is "ok", "error" (with the errno's name) or "no answer". Sizes are bytes; `available` is what an ordinary
    user may still write. `inodes_free_pct` is None where inodes are made as needed. `turned_read_only`: the mount is
    writable, its file system no more.
    """

    point: str
    source: str
    fstype: str
    read_only: bool
    turned_read_only: bool
    state: str
    error: Optional[str] = None
    total: Optional[int] = None
    available: Optional[int] = None
    free_pct: Optional[float] = None
    inodes_free_pct: Optional[float] = None


def parse_mountinfo(text: str) -> List[Mount]:
    """Read /proc/self/mountinfo (proc(5)); lines of another form are left out."""
    mounts = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        before, after = left.split(" "), right.split(" ")
        if separator and len(before) >= 6 and len(after) >= 3:
            mounts.append(
                Mount(
                    device=before[2],
                    point=_unescaped(before[4]),
                    options=tuple(before[5].split(",")),
                    fstype=after[0],
                    source=_unescaped(after[1]),
                    super_options=tuple(after[2].split(",")),
                    root=_unescaped(before[3]),
                )
            )
    return mounts


def _unescaped(field: str) -> str:
    return re.sub(r"\\([0-3][0-7][0-7])", lambda match: chr(int(match.group(1), 8)), field)


def worth_asking(mounts: List[Mount]) -> List[Mount]:
    """Choose the mounts that hold data, each file system once, by its shortest mount point."""
    visible = {mount.point: mount for mount in mounts}  # a later mount hides an earlier one
    chosen: Dict[str, Mount] = {}
    for mount in sorted(visible.values(), key=lambda mount: (len(mount.point), mount.point)):
        # Below the root, an overlay is some container's, and its room that of the disk under it.
        inner_overlay = mount.fstype == "overlay" and mount.point != "/"
        if mount.fstype not in _NO_DISK and not inner_overlay and not _NO_ROOM_OF_ITS_OWN.fullmatch(mount.point):
            chosen.setdefault(mount.device, mount)
    return list(chosen.values())


def ask(point: str) -> bytes:
    """Return as JSON what statvfs says of a mount, or the name of its error."""
    try:
        stat = os.statvfs(point)
    except OSError as error:
        return json.dumps({"error": errno.errorcode.get(error.errno or 0, "unknown")}).encode()
    sizes = {"frsize": stat.f_frsize, "blocks": stat.f_blocks, "bfree": stat.f_bfree, "bavail": stat.f_bavail}
    return json.dumps(dict(sizes, files=stat.f_files, ffree=stat.f_ffree)).encode()


def room(mount: Mount, answer: Answer) -> Room:
    """Put together a mount and the answer to `ask`."""
    known = Room(
        point=printable(mount.point),
        source=printable(mount.source),
        fstype=mount.fstype,
        read_only="ro" in mount.options + mount.super_options,
        turned_read_only="ro" not in mount.options and "ro" in mount.super_options,
        state="no answer",
    )
    if answer.status is None:
        return known
    if answer.status != 0:
        said_last = answer.data.decode("utf-8", "replace") or "exit status %d" % answer.status
        return known._replace(state="error", error=said_last)
    said: Dict[str, int] = json.loads(answer.data)
    if "error" in said:
        return known._replace(state="error", error=str(said["error"]))
    used = said["blocks"] - said["bfree"]
    reachable = used + said["bavail"]
    return known._replace(
        state="ok",
        total=said["blocks"] * said["frsize"],
        available=said["bavail"] * said["frsize"],
        free_pct=round(100.0 * said["bavail"] / reachable, 2) if reachable > 0 else None,
        inodes_free_pct=round(100.0 * said["ffree"] / said["files"], 2) if said["files"] > 0 else None,
    )
