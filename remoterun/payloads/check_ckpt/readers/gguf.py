"""The reader of GGUF: counts, pairs of keys and values, descriptions of tensors, then the tensors' bytes."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Dict, List, Tuple

from ..dtypes import DTYPES
from ..model import (
    MODEL,
    UNKNOWN_FORMAT,
    VOCABULARY,
    Checkpoint,
    FlawedError,
    Region,
    Tensor,
    Unchecked,
    clean_text,
    count_of,
    product,
    row_major,
)
from ..records import Record
from .absence import tell_zeros

if TYPE_CHECKING:
    from ..source import Source

_VERSIONS = (2, 3)
_MAX_PAIRS = 65_536
_MAX_TENSORS = 65_536
# Strings in arrays; a vocabulary of 262,144 with its merges has 800,000.
_MAX_STRINGS = 2_000_000
_MAX_NAME = 65_536
_MAX_DIMENSIONS = 4
_BLOCK = 256 * 1024

# Types of values: bytes of a fixed one; strings and arrays come after.
_WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_UINT32, _STRING, _ARRAY = 4, 8, 9
_TOKENS = "tokenizer.ggml.tokens"
_DEFAULT_ALIGNMENT = 32
_MAX_ALIGNMENT = 1 << 20

# Types of tensors that are one number per element, by the names used here.
_NUMBERS = {
    0: "float32",
    1: "float16",
    24: "int8",
    25: "int16",
    26: "int32",
    27: "int64",
    28: "float64",
    30: "bfloat16",
}
# Quantised types: name, elements and bytes of a block, as in ggml-common.h.
_BLOCKS = {
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    29: ("IQ1_M", 256, 56),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}


class _Info(Record):
    """Describe a tensor: `offset` counts from the data's start; `size` in bytes is 0 while the type does not tell."""

    name: str
    kind: int
    shape: Tuple[int, ...]
    offset: int
    size: int


def read_gguf(source: Source) -> Checkpoint:
    """Read the header, hold it against the file, and place every tensor.

    Raises:
        FlawedError: when the header can't be used.
    """
    checkpoint = Checkpoint("gguf", source.size)
    header = _Header(source)
    (version,) = struct.unpack("<I", header.take(4))
    if version not in _VERSIONS:
        swapped = version & 0xFFFF == 0
        checkpoint.unsupported = "it is GGUF %s, which can't be read" % (
            "in big-endian order" if swapped else "of version %d" % version
        )
        return checkpoint
    checkpoint.add("CK028", "GGUF files hold no checksums, so damaged bytes can't be told from good ones")
    tensors, pairs = header.number(), header.number()
    if tensors > _MAX_TENSORS or pairs > _MAX_PAIRS:
        message = "the header claims %s and %s" % (count_of(tensors, "tensor"), count_of(pairs, "pair"))
        raise FlawedError("CK103" if (tensors + pairs) * 13 <= source.size else "CK025", message)
    alignment, tokens = _read_pairs(header, pairs)
    infos = [_read_info(header) for _ in range(tensors)]
    checkpoint.decoded = True
    start = _aligned(header.at, alignment)
    if tokens and not infos and start >= source.size:
        checkpoint.format = VOCABULARY
    _check_names(infos)
    infos = _sized(infos, source.size - start)
    _check_places(infos, source.size - start, alignment, source, checkpoint)
    for info in infos:
        _place(info, start, source.base, checkpoint)
    return checkpoint


class _Header:
    """Read one thing after the other."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._data = b""
        self._base = 4
        self._next = 0
        self._strings = 0

    @property
    def at(self) -> int:
        """Return the place in the file of what comes next."""
        return self._base + self._next

    def take(self, size: int) -> bytes:
        """Read bytes, a few."""
        stop = self._next + size
        if stop > len(self._data):
            self._base, self._next, stop = self.at, 0, size
            self._data = self._source.read(self._base, max(size, _BLOCK))
            if len(self._data) < size:
                raise FlawedError("CK020", "the file is cut off inside its header, after %s bytes" % self._source.size)
        data = self._data[self._next : stop]
        self._next = stop
        return data

    def number(self) -> int:
        """Read 64 bits."""
        return int.from_bytes(self.take(8), "little")

    def skip(self, size: int) -> None:
        """Step over bytes."""
        if self.at + size > self._source.size:
            raise FlawedError("CK020", "the file is cut off inside its header, which has byte %d" % (self.at + size))
        self._next += size
        if self._next > len(self._data):
            self._base, self._data, self._next = self.at, b"", 0

    def text(self) -> str:
        """Read the name of something."""
        size = self.number()
        if size > _MAX_NAME:
            raise FlawedError("CK025", "the header has a name of %s" % count_of(size, "byte"))
        return self.take(size).decode("utf-8", "replace")

    def skip_value(self, kind: int) -> int:
        """Step over a value; return how many there are in it."""
        inner, count = struct.unpack("<IQ", self.take(12)) if kind == _ARRAY else (kind, 1)
        self._skip_values(inner, count)
        return int(count)

    def _skip_values(self, kind: int, count: int) -> None:
        if kind in _WIDTHS:
            self.skip(_WIDTHS[kind] * count)
            return
        if kind != _STRING:
            raise FlawedError("CK025", "the header has a value of type %d, which there is not" % kind)
        self._strings += count
        if self._strings > _MAX_STRINGS:
            rule = "CK103" if count * 8 <= self._source.size else "CK025"
            raise FlawedError(rule, "the header claims %s" % count_of(self._strings, "string"))
        self._skip_strings(count)

    def _skip_strings(self, count: int) -> None:
        while count:
            self.take(8)  # at least one length is in the buffer then
            at = start = self._next - 8
            data = self._data
            while count and at + 8 <= len(data):
                at += 8 + int.from_bytes(data[at : at + 8], "little")
                count -= 1
            self._next = start
            self.skip(at - start)


def _read_pairs(header: _Header, count: int) -> Tuple[int, int]:
    """Step over keys and values; return the alignment of the data, and how many tokens a vocabulary has."""
    alignment, tokens = _DEFAULT_ALIGNMENT, 0
    for _ in range(count):
        key = header.text()
        (kind,) = struct.unpack("<I", header.take(4))
        if key == "general.alignment" and kind == _UINT32:
            (alignment,) = struct.unpack("<I", header.take(4))
        else:
            values = header.skip_value(kind)
            tokens = values if key == _TOKENS else tokens
    if not 0 < alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
        raise FlawedError("CK025", "the header asks for an alignment of %d bytes" % alignment)
    return alignment, tokens


def _read_info(header: _Header) -> _Info:
    name = clean_text(header.text())
    (dimensions,) = struct.unpack("<I", header.take(4))
    if dimensions > _MAX_DIMENSIONS:
        raise FlawedError("CK025", "tensor %s has %d dimensions" % (name, dimensions), tensor=name)
    # The dimension that runs fastest comes first.
    shape = tuple(reversed([header.number() for _ in range(dimensions)]))
    kind, offset = struct.unpack("<IQ", header.take(12))
    elements, row = product(shape), shape[-1] if shape else 1
    if elements >= 1 << 62:
        raise FlawedError("CK025", "tensor %s claims more elements than there can be" % name, tensor=name)
    size = 0
    if kind in _NUMBERS:
        size = elements * DTYPES[_NUMBERS[kind]].size
    elif kind in _BLOCKS:
        label, length, width = _BLOCKS[kind]
        if row % length:
            message = "tensor %s has rows of %s, which are no blocks of %s"
            raise FlawedError("CK025", message % (name, count_of(row, "element"), label), tensor=name)
        size = elements // length * width
    return _Info(name, kind, shape, offset, size)


def _aligned(place: int, alignment: int) -> int:
    return (place + alignment - 1) // alignment * alignment


def _check_names(infos: List[_Info]) -> None:
    seen: Dict[str, int] = {}
    for info in infos:
        seen[info.name] = seen.get(info.name, 0) + 1
        if seen[info.name] > 1:
            raise FlawedError("CK025", "the header names %s twice" % info.name, tensor=info.name)


def _sized(infos: List[_Info], room: int) -> List[_Info]:
    """Sort by place; what is of a type that is not known reaches to the next, or to the end of the data."""
    infos = sorted(infos, key=lambda info: info.offset)
    ends = [info.offset for info in infos[1:]] + [room]
    return [
        info if info.kind in _NUMBERS or info.kind in _BLOCKS else info._replace(size=max(0, end - info.offset))
        for info, end in zip(infos, ends)
    ]


def _check_places(infos: List[_Info], room: int, alignment: int, source: Source, checkpoint: Checkpoint) -> None:
    """Demand that the tensors fill the data: no overlap, no hole but for alignment, no rest."""
    reached = 0
    for info in infos:
        if info.offset < reached:
            raise FlawedError("CK025", "%s shares bytes with the tensor in front of it" % info.name, tensor=info.name)
        if info.offset != _aligned(reached, alignment):
            message = "tensor %s lies at byte %d of the data, not at %d"
            message %= (info.name, info.offset, _aligned(reached, alignment))
            checkpoint.add("CK025", message, tensor=info.name)
        reached = info.offset + info.size
    whole = [info for info in infos if info.offset + info.size <= room]
    if len(whole) < len(infos):
        checkpoint.truncated = True
        lost = next(info for info in infos if info.offset + info.size > room)
        message = "the file is cut off: %d of %s whole, first damaged: %s%s"
        message %= (len(whole), count_of(len(infos), "tensor"), lost.name, tell_zeros(source))
        checkpoint.add("CK020", message, intact=len(whole), tensors=len(infos))
    elif room > _aligned(reached, alignment):
        rest = count_of(room - _aligned(reached, alignment), "byte")
        checkpoint.add("CK025", "%s after the last tensor belong to none" % rest, severity="info")


def _place(info: _Info, start: int, base: int, checkpoint: Checkpoint) -> None:
    label = _NUMBERS.get(info.kind) or _BLOCKS.get(info.kind, ("type %d" % info.kind,))[0]
    if start + info.offset + info.size > checkpoint.size:
        checkpoint.unchecked.append(Unchecked(info.name, label, info.size, "cut off"))
    elif info.kind in _BLOCKS:
        checkpoint.unchecked.append(Unchecked(info.name, label, info.size, "quantised blocks"))
        checkpoint.blocks += product(info.shape)
    elif info.kind not in _NUMBERS:
        checkpoint.unchecked.append(Unchecked(info.name, label, info.size, UNKNOWN_FORMAT))
    else:
        checkpoint.regions.append(Region(0, base + start + info.offset, info.size, info.name))
        place = len(checkpoint.regions) - 1
        checkpoint.tensors.append(Tensor(info.name, MODEL, DTYPES[label], info.shape, row_major(info.shape), place, 0))
