"""What a file is by its first bytes, whatever its name says."""

from __future__ import annotations

from typing import Optional

from ..records import Record

# Where a text would go on, a binary format rarely does.
_TEXT = frozenset(b"\t\n\r") | frozenset(range(0x20, 0x7F))


class Kind(Record):
    """Name what a file is; `checkpoint` tells whether it is a format of checkpoints that can't be audited yet."""

    name: str
    format: str
    checkpoint: bool = False
    hint: str = ""


_UNPACK = "Unpack it first."
_BY_START = (
    (
        b"version https://git-lfs",
        Kind("a Git LFS pointer, not the file itself", "git-lfs", hint="Fetch the file it stands for: git lfs pull."),
    ),
    (b"\x89HDF\r\n\x1a\n", Kind("an HDF5 file", "hdf5", checkpoint=True)),
    (b"\x1f\x8b", Kind("a gzip archive", "gzip", hint=_UNPACK)),
    (b"BZh", Kind("a bzip2 archive", "bzip2", hint=_UNPACK)),
    (b"\xfd7zXZ\x00", Kind("an xz archive", "xz", hint=_UNPACK)),
    (b"\x28\xb5\x2f\xfd", Kind("a Zstandard archive", "zstd", hint=_UNPACK)),
    (b"\x93NUMPY", Kind("a numpy array", "npy", checkpoint=True)),
    (b"\x7fELF", Kind("a program", "elf")),
)
_HTML = (b"<!doctype html", b"<html", b"<?xml", b"<head")


def sniff(head: bytes) -> Optional[Kind]:
    """Name what a file that is no readable checkpoint is by its first 512 bytes, None when they tell nothing."""
    for start, kind in _BY_START:
        if head.startswith(start):
            return kind
    text = head.lstrip().lower()
    if text.startswith(_HTML):
        return Kind(
            "a web page, probably an error page that was saved instead of the file",
            "html",
            hint="Download the file again.",
        )
    if head and all(byte in _TEXT for byte in head):
        return Kind("a text file", "text")
    return None
