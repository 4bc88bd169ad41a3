"""The reader of safetensors: a length, a JSON header, and the tensors' bytes without a gap."""

from __future__ import annotations

import json
import os
import re
import struct
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from ..dtypes import safetensors_dtype
from ..model import (
    MODEL,
    OPTIMIZER,
    UNKNOWN_FORMAT,
    Checkpoint,
    FlawedError,
    Piece,
    Progress,
    Region,
    Tensor,
    Unchecked,
    clean_text,
    count_of,
    product,
    row_major,
)
from ..pickles.rebuild import is_count
from ..records import Record

if TYPE_CHECKING:
    from typing_extensions import TypeGuard

    from ..model import Number
    from ..source import Source

# The reference reader's limit.
_MAX_HEADER = 100_000_000
# What is decoded here: 60,000 tensors take 9 MB.
_MAX_DECODED = 32_000_000
# Estimated bytes that the header's objects may take; 60,000 tensors take 40 MB.
_BUDGET = 120_000_000
_METADATA = "__metadata__"
_STEPS = ("global_step", "step", "iteration", "ss_steps")
_EPOCHS = ("epoch", "ss_epoch")


class _Entry(Record):
    name: str
    code: str
    shape: Tuple[int, ...]
    begin: int
    end: int


def read_safetensors(source: Source) -> Checkpoint:
    """Read the header, hold it against the file, and place every tensor.

    Raises:
        FlawedError: when the header can't be used.
    """
    checkpoint = Checkpoint("safetensors", source.size)
    start, header = _header(source)
    entries = _entries(header, checkpoint)
    known = _read_metadata(header, checkpoint, whole=source.whole)
    offsets = _offsets(known.get("DCP_SHARDING_INFO", "{}"))
    checkpoint.add("CK028", "safetensors files hold no checksums, so damaged bytes can't be told from good ones")
    _check_places(entries, source.size - start, checkpoint)
    checkpoint.decoded = True
    # LeRobot and MLX keep the optimizer's state so, by names of their own.
    role = OPTIMIZER if re.match(r"optim(?:izer)?(?:[._]|$)", os.path.basename(source.path)) else MODEL
    if role == OPTIMIZER:
        checkpoint.parts.add(role)
    for entry in entries:
        _place(entry, start, source.base, role, checkpoint)
    _count_packed(entries, source, start, checkpoint)
    if offsets:
        checkpoint.tensors = [_placed_in_whole(tensor, offsets.get(tensor.name, ())) for tensor in checkpoint.tensors]
    return checkpoint


def _header(source: Source) -> Tuple[int, Any]:
    """Return where the tensors' bytes begin, and the header as lists of pairs."""
    prefix = source.read(0, 8)
    if len(prefix) < 8:
        raise FlawedError("CK020", "the file is cut off inside its first 8 bytes")
    (size,) = struct.unpack("<Q", prefix)
    if size > _MAX_HEADER:
        raise FlawedError("CK025", "the header claims %s; 100 MB is the format's limit" % count_of(size, "byte"))
    if 8 + size > source.size:
        raise FlawedError(
            "CK020",
            "the file is cut off inside its header: %s of %s bytes" % (format(source.size, ","), format(8 + size, ",")),
        )
    if size > _MAX_DECODED:
        message = "the header has %s; no more than 32 MB are decoded" % count_of(size, "byte")
        raise FlawedError("CK103", message, severity="suspect")
    raw = source.read(8, size)
    if 200 * raw.count(b"{") + 80 * raw.count(b"[") + 60 * raw.count(b",") > _BUDGET:
        raise FlawedError("CK103", "the header holds more than any model needs: %s" % count_of(raw.count(b","), "item"))
    try:
        return 8 + size, json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_Pairs,
            parse_int=_integer,
            parse_float=_no_number,
            parse_constant=_no_number,
        )
    except (ValueError, RecursionError) as error:
        raise FlawedError(
            "CK025", "the header is not the JSON it should be: %s" % clean_text(str(error), 200)
        ) from error


class _Pairs(list):  # type: ignore[type-arg]
    """Keep the entries of a JSON object in order, repeated names too."""


def _integer(text: str) -> int:
    if len(text) > 19:
        raise ValueError("a number of %d digits" % len(text))
    return int(text)


def _no_number(text: str) -> None:
    raise ValueError("%s where only whole numbers belong" % clean_text(text, 30))


def _entries(header: Any, checkpoint: Checkpoint) -> List[_Entry]:
    if not isinstance(header, _Pairs):
        raise FlawedError("CK025", "the header is no JSON object")
    entries: Dict[str, _Entry] = {}
    for name, value in header:
        if name == _METADATA:
            continue
        if name in entries:
            checkpoint.add(
                "CK025", "the header names %s twice; readers take the last" % clean_text(name, 100), severity="suspect"
            )
        entries[name] = _entry(clean_text(name), value)
    return sorted(entries.values(), key=lambda entry: (entry.begin, entry.end))


def _entry(name: str, value: Any) -> _Entry:
    fields = dict(value) if isinstance(value, _Pairs) else {}
    code, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not isinstance(code, str) or not _is_counts(shape) or not _is_counts(offsets) or len(offsets) != 2:
        raise FlawedError("CK025", "the header's entry of %s lacks dtype, shape or data_offsets" % name, tensor=name)
    begin, end = offsets
    dtype = safetensors_dtype(code)
    if begin > end or len(shape) > 64:
        raise FlawedError("CK025", "the header puts %s at bytes %d to %d" % (name, begin, end), tensor=name)
    if dtype is not None and (product(tuple(shape)) * dtype.bits + 7) // 8 != end - begin:
        message = "%s is %s of shape %s, but the header gives it %s"
        raise FlawedError("CK025", message % (name, code, list(shape), count_of(end - begin, "byte")), tensor=name)
    return _Entry(name, code, tuple(shape), begin, end)


def _is_counts(value: Any) -> TypeGuard[List[int]]:
    return isinstance(value, list) and not isinstance(value, _Pairs) and all(map(is_count, value))


def _check_places(entries: List[_Entry], room: int, checkpoint: Checkpoint) -> None:
    """Demand that the tensors fill the file: no overlap, no hole, no rest."""
    reached = 0
    for entry in entries:
        if entry.begin < reached:
            raise FlawedError("CK025", "%s shares bytes with the tensor in front of it" % entry.name, tensor=entry.name)
        if entry.begin > reached:
            message = "%s in front of %s belong to no tensor" % (count_of(entry.begin - reached, "byte"), entry.name)
            checkpoint.add("CK025", message, tensor=entry.name)
        reached = entry.end
    if reached > room:
        whole = [entry for entry in entries if entry.end <= room]
        lost = next(entry for entry in entries if entry.end > room)
        message = "the file is cut off: %d of %s whole, first damaged: %s" % (
            len(whole),
            count_of(len(entries), "tensor"),
            lost.name,
        )
        checkpoint.truncated = True
        checkpoint.add("CK020", message, intact=len(whole), tensors=len(entries))
    elif reached < room:
        checkpoint.add("CK025", "%s after the last tensor belong to none" % count_of(room - reached, "byte"))


def _place(entry: _Entry, start: int, base: int, role: str, checkpoint: Checkpoint) -> None:
    size = entry.end - entry.begin
    dtype = safetensors_dtype(entry.code)
    if start + entry.end > checkpoint.size:
        checkpoint.unchecked.append(Unchecked(entry.name, entry.code, size, "cut off"))
        return
    if dtype is None:
        checkpoint.unchecked.append(Unchecked(entry.name, clean_text(entry.code, 50), size, UNKNOWN_FORMAT))
        return
    checkpoint.regions.append(Region(0, base + start + entry.begin, size, entry.name))
    region = len(checkpoint.regions) - 1
    key = re.split(r"[./]", entry.name)[-1] if role == OPTIMIZER else ""
    checkpoint.tensors.append(Tensor(entry.name, role, dtype, entry.shape, row_major(entry.shape), region, 0, key))


def _count_packed(entries: List[_Entry], source: Source, start: int, checkpoint: Checkpoint) -> None:
    """Count weights that compressed-tensors packs into words: beside each matrix, its shape is kept as two numbers."""
    words = {entry.name for entry in entries if entry.code == "I32"}
    for entry in entries:
        if entry.name.endswith("_shape") and entry.name[:-5] + "packed" in words and entry.end - entry.begin == 16:
            rows, columns = struct.unpack("<2q", source.read(start + entry.begin, 16).ljust(16, b"\0"))
            checkpoint.blocks += rows * columns if is_count(rows) and is_count(columns) else 0


def _offsets(text: str) -> Dict[str, Tuple[int, ...]]:
    """Read where in the whole tensors those of a rank begin, as HuggingFaceStorageWriter notes it."""
    try:
        root = json.loads(text, parse_int=_integer)
    except (ValueError, RecursionError):
        return {}
    told = {name: each.get("saved_offsets") for name, each in _mapping(root).items() if isinstance(each, dict)}
    return {clean_text(name): tuple(each) for name, each in told.items() if _is_counts(each) and any(each)}


def _mapping(value: object) -> Dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _placed_in_whole(tensor: Tensor, offsets: Tuple[int, ...]) -> Tensor:
    if not offsets or len(offsets) != len(tensor.shape):
        return tensor
    whole = tuple(begin + size for begin, size in zip(offsets, tensor.shape))
    return tensor._replace(piece=Piece(offsets, whole))


def _read_metadata(header: Any, checkpoint: Checkpoint, *, whole: bool) -> Dict[str, str]:
    """Read what the header says of the file as a whole; parts of other files need say nothing."""
    value = next((value for name, value in reversed(header) if name == _METADATA), _Pairs())
    if not isinstance(value, _Pairs) or not all(isinstance(text, str) for _, text in value):
        raise FlawedError("CK025", "the header's %s is no mapping of texts to texts" % _METADATA)
    known = dict(value)
    if whole and "format" not in known:
        text = "its metadata has no entry called format, without which some loaders refuse a file"
        checkpoint.add("CK125", text)
    # What ai-toolkit tells is JSON in a text.
    known.update(re.findall(r'"(step|epoch)": (\d{1,15})\b', known.get("training_info", "")))
    step = _number(known, _STEPS)
    checkpoint.step = int(step) if step is not None and step == int(step) else None
    checkpoint.epoch = _number(known, _EPOCHS)
    for what, number in (("step", checkpoint.step), ("epoch", checkpoint.epoch)):
        if number is not None:
            checkpoint.progress.append(Progress(what, number, "the header's %s" % _METADATA))
    return known


def _number(known: Dict[str, Any], names: Tuple[str, ...]) -> Optional[Number]:
    for name in names:
        text = known.get(name)
        if isinstance(text, str) and len(text) < 20:
            try:
                return int(text)
            except ValueError:
                continue
    return None
