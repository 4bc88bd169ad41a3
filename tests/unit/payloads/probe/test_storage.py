"""Mounts: which are asked, and what their answers mean."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoterun.payloads.probe.guard import Answer
from remoterun.payloads.probe.storage import Mount, ask, parse_mountinfo, room, worth_asking

# A Proxmox container: ZFS root, a bind mount of a data set with a subfolder, lxcfs, tmpfs, NFS, a name with a space.
CONTAINER = r"""
640 518 0:52 / / rw,relatime - zfs rpool/data/subvol-200-disk-0 rw,xattr,posixacl
641 640 0:70 / /dev rw,relatime - tmpfs none rw,size=492k,mode=755
642 640 0:69 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
643 642 0:48 /proc/meminfo /proc/meminfo rw,nosuid,nodev,relatime - fuse.lxcfs lxcfs rw,user_id=0,group_id=0
644 640 0:68 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime - cgroup2 none rw
645 640 0:60 / /workspace rw,noatime shared:5 master:3 - zfs tank/work rw,xattr
646 640 0:60 /old /mnt/old ro,noatime - zfs tank/work rw,xattr
647 640 0:61 / /mnt/my\040nfs rw,relatime - nfs4 10.0.0.1:/export/my\040data rw,vers=4.2,hard
648 641 0:71 / /dev/shm rw,nosuid,nodev - tmpfs tmpfs rw
649 640 8:1 / /broken rw,relatime - ext4 /dev/sda1 ro,errors=remount-ro
650 640 0:80 / /media/cd ro - iso9660 /dev/sr0 ro
651 640 0:81 / /run/credentials/x.service ro - tmpfs tmpfs ro,size=1k
652 640 0:82 / /workspace rw - xfs /dev/sdb1 rw
653 640 0:83 / /mnt/auto rw - autofs systemd-1 rw
654 640 0:84 / /sys/fs/bpf rw - tmpfs none rw
655 640 8:2 /etc/hosts /etc/hosts rw - ext4 /dev/sda2 rw
656 640 0:90 / /var/lib/docker/overlay2/x/merged rw - overlay overlay rw
not a line of mountinfo
"""


def mount(**changes: object) -> Mount:
    plain = Mount("8:1", "/data", ("rw", "relatime"), "ext4", "/dev/sda1", ("rw",), "/")
    return plain._replace(**changes)  # type: ignore[arg-type]


def answer(**changes: int) -> Answer:
    said = {"frsize": 4096, "blocks": 1000, "bfree": 500, "bavail": 450, "files": 200, "ffree": 100}
    return Answer(json.dumps({**said, **changes}).encode(), 0)


def test_mountinfo() -> None:
    mounts = parse_mountinfo(CONTAINER)
    assert len(mounts) == 17
    nfs = next(each for each in mounts if each.fstype == "nfs4")
    assert (nfs.point, nfs.source, nfs.device) == ("/mnt/my nfs", "10.0.0.1:/export/my data", "0:61")
    workspace = next(each for each in mounts if each.point == "/workspace")
    assert (workspace.options, workspace.super_options) == (("rw", "noatime"), ("rw", "xattr"))


def test_what_holds_data_is_asked_once_under_its_shortest_name() -> None:
    asked = [(each.point, each.fstype) for each in worth_asking(parse_mountinfo(CONTAINER))]
    assert asked == [
        ("/", "zfs"),
        ("/dev", "tmpfs"),
        ("/broken", "ext4"),
        ("/dev/shm", "tmpfs"),
        ("/mnt/old", "zfs"),
        ("/workspace", "xfs"),
        ("/mnt/my nfs", "nfs4"),
    ]


def test_a_containers_own_root_is_asked_though_it_is_an_overlay() -> None:
    (root,) = worth_asking(parse_mountinfo("1 0 0:90 / / rw - overlay overlay rw,lowerdir=/x\n"))
    assert root.fstype == "overlay"


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    worth_asking(parse_mountinfo(text))


@given(st.lists(st.text("0123456789:/ -\\abcdefghijklmnopqrstuvwxyz\n", max_size=30), min_size=11, max_size=14))
def test_any_fields_can_be_read(fields: list[str]) -> None:
    fields.insert(7, "-")
    parse_mountinfo(" ".join(fields))


def test_room_on_a_disk() -> None:
    there = room(mount(), answer())
    assert (there.state, there.total, there.available) == ("ok", 4_096_000, 1_843_200)
    # As df counts: what root keeps for itself is neither used nor free.
    assert there.free_pct == round(100 * 450 / 950, 2)
    assert there.inodes_free_pct == 50.0
    assert (there.read_only, there.turned_read_only) == (False, False)


def test_a_disk_without_inodes_or_blocks_has_no_shares() -> None:
    there = room(mount(), answer(files=0, ffree=0, blocks=0, bfree=0, bavail=0))
    assert (there.free_pct, there.inodes_free_pct, there.total) == (None, None, 0)


@pytest.mark.parametrize(
    ("options", "super_options", "read_only", "turned"),
    [
        (("rw",), ("rw",), False, False),
        (("ro",), ("rw",), True, False),
        (("ro",), ("ro",), True, False),
        (("rw",), ("ro",), True, True),
        (("rw",), ("rw", "errors=remount-ro"), False, False),
    ],
)
def test_read_only_by_will_or_by_accident(
    options: tuple[str, ...], super_options: tuple[str, ...], read_only: bool, turned: bool
) -> None:
    there = room(mount(options=options, super_options=super_options), answer())
    assert (there.read_only, there.turned_read_only) == (read_only, turned)


@pytest.mark.parametrize(
    ("given_answer", "state", "error"),
    [
        (Answer(b"", None), "no answer", None),
        (Answer(b'{"error": "ESTALE"}', 0), "error", "ESTALE"),
        (Answer(b"MemoryError()", 1), "error", "MemoryError()"),
        (Answer(b"", -9), "error", "exit status -9"),
    ],
)
def test_no_answer_and_errors_are_states(given_answer: Answer, state: str, error: str | None) -> None:
    there = room(mount(point="/mnt/\udcff"), given_answer)
    assert (there.point, there.state, there.error, there.total) == ("/mnt/�", state, error, None)


def test_asking_a_real_folder_and_a_missing_one() -> None:
    there = room(mount(point="/"), Answer(ask("/"), 0))
    assert there.total is not None
    assert there.total > 0
    assert json.loads(ask("/no/such/folder")) == {"error": "ENOENT"}
