"""The reader of tar archives, NeMo's above all: their members are read where they lie, and nothing is unpacked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List, Optional

from ..model import Checkpoint, FlawedError, clean_text, count_of
from ..records import Record
from .inside import MAX_CHECKPOINTS, may_hold_weights, read_inside
from .torch_objects import Loaded, bare, decode_pickle

if TYPE_CHECKING:
    from ..source import Source

_BLOCK = 512
_MAX_MEMBERS = 20_000
# A longer name is none.
_MAX_NAME = 4096
_CONFIG = "model_config.yaml"
# What torch wrote in 2016.
_ANCIENT = frozenset(("storages", "tensors", "pickle"))


class _Member(Record):
    name: str
    kind: bytes
    offset: int
    size: int


def read_tar(source: Source) -> Loaded:
    """Read the checkpoints among the members of an archive.

    Raises:
        FlawedError: when there are more members than can be.
    """
    checkpoint = Checkpoint("tar", source.size)
    members = _members(source, checkpoint)
    _judge(members, checkpoint)
    names = {_plain(member.name) for member in members}
    if _CONFIG in names:
        checkpoint.format = "nemo"
    last, count, more = bare(source, checkpoint), 0, False
    for member in members:
        if member.kind not in (b"0", b"\0"):
            continue
        if count < MAX_CHECKPOINTS:
            loaded = read_inside(source, member.name, member.offset, member.size, checkpoint)
            last, count = loaded or last, count + (loaded is not None)
        elif not more:
            more = may_hold_weights(member.name, source.window(member.offset, member.size).read(0, 4))
    if names >= _ANCIENT:
        _judge_ancient(source, members, checkpoint)
    elif any(name.endswith(".distcp") for name in names):
        checkpoint.unsupported = "it is a tar archive of a distributed checkpoint, which has to be unpacked first"
    elif more or not count:
        what = "not every one" if more else "none"
        checkpoint.unsupported = "it is a tar archive, and %s of its members could be audited" % what
    return last._replace(checkpoint=checkpoint)


def _plain(name: str) -> str:
    return name[2:] if name.startswith("./") else name


def _members(source: Source, checkpoint: Checkpoint) -> List[_Member]:
    """Follow the headers to the end of the archive."""
    members: List[_Member] = []
    at = 0
    named: Dict[str, str] = {}
    while True:
        header = source.read(at, _BLOCK)
        if len(header) < _BLOCK:
            checkpoint.truncated = True
            checkpoint.add("CK020", "the archive is cut off after %s" % count_of(len(members), "member"))
            return members
        if not any(header):
            return members
        size = _number(header[124:136])
        if size is None or not _sums_up(header):
            checkpoint.add("CK025", "the header of a member is damaged (byte %d)" % at)
            return members
        kind = header[156:157]
        if kind in (b"L", b"x") and size <= _MAX_NAME:
            named.update(_named(kind, source.read(at + _BLOCK, size)))
        elif kind != b"g":
            told = named.get("size", "")
            size = int(told) if told.isdecimal() and len(told) < 19 else size
            members.append(_Member(named.get("path") or _name(header), kind, at + _BLOCK, size))
            named = {}
        if len(members) > _MAX_MEMBERS:
            raise FlawedError("CK103", "the archive has more than %s" % count_of(_MAX_MEMBERS, "member"))
        at += _BLOCK + (size + _BLOCK - 1) // _BLOCK * _BLOCK


def _number(field: bytes) -> Optional[int]:
    """Read octal digits or, where the first bit is set, a big-endian number."""
    if field[0] & 0x80:
        number = int.from_bytes(field[1:], "big")
        return number if number < 1 << 62 else None
    try:
        return int(field.strip(b" \0") or b"0", 8)
    except ValueError:
        return None


def _sums_up(header: bytes) -> bool:
    return _number(header[148:156]) == sum(header[:148]) + 8 * ord(" ") + sum(header[156:])


def _name(header: bytes) -> str:
    prefix, name = header[345:500].split(b"\0")[0], header[:100].split(b"\0")[0]
    # GNU tar keeps times where the prefix would be.
    joined = prefix + b"/" + name if prefix and header[257:263] == b"ustar\0" else name
    return joined.decode("utf-8", "replace")


def _named(kind: bytes, data: bytes) -> Dict[str, str]:
    """Read what a header of its own says of the next member: its path, or records of pax, ``LENGTH size=NUMBER``.

    From 8 GiB on, the size stands in such a record alone.
    """
    text = data.decode("utf-8", "replace")
    if kind == b"L":
        return {"path": text.partition("\0")[0]}
    records = (line.partition(" ")[2].partition("=") for line in text.split("\n"))
    return {key: value for key, _, value in records if value}


def _judge(members: List[_Member], checkpoint: Checkpoint) -> None:
    for member in members:
        name = clean_text(member.name, 100)
        if member.name.startswith("/") or ".." in member.name.split("/"):
            checkpoint.add("CK104", "member %s would be unpacked outside its folder" % name, member=name)
        elif member.kind in (b"1", b"2"):
            checkpoint.add("CK102", "member %s is a link" % name, member=name)


def _judge_ancient(source: Source, members: List[_Member], checkpoint: Checkpoint) -> None:
    """Look at what loading a file of torch's first format would do; its values are not read."""
    checkpoint.unsupported = "it is of torch's tar format of 2016, whose values can't be checked"
    for member in members:
        if _plain(member.name) == "pickle":
            decode_pickle(source, member.offset, member.offset + member.size, checkpoint, "its pickle")
