"""Rules about the file itself."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Dict, Iterator, List, Optional, Set

from ..model import Checkpoint, Found, count_of
from .facts import Facts
from .rule import BAD, GO_BACK, INFO, SAVE_SAFELY, SUSPECT, Rule

if TYPE_CHECKING:
    from ..scan.bitflip import Flipped

_LOST = "Go back to the checkpoint before: pages of zeros look like data that never reached the disk."
_ROTTEN = "Do not resume from it, and test the memory and the disks that it went through."

RULES: Dict[str, Rule] = {
    "CK020": Rule(
        BAD, "The save was cut off: look for a full disk or a killed process, and go back to the checkpoint before."
    ),
    "CK021": Rule(BAD, "The data never reached the disk (power loss, no fsync): go back to the checkpoint before."),
    "CK022": Rule(BAD, SAVE_SAFELY),
    "CK023": Rule(BAD, "The data never reached the disk (power loss, no fsync): go back to the checkpoint before."),
    "CK024": Rule(BAD, "This is no checkpoint: put the right file in its place."),
    "CK025": Rule(BAD, GO_BACK),
    "CK026": Rule(INFO, "Run again when the save is done."),
    "CK027": Rule(BAD, "Its weights were never written: save it again without skip_data."),
    "CK028": Rule(INFO, "Keep a sha256 beside files that matter."),
    "CK041": Rule(BAD, SAVE_SAFELY),
    "CK029": Rule(
        BAD,
        "Do not resume from it: fetch the file again, or go back to the newest checkpoint that is ok.",
        "Compare them with a program that knows their kind.",
    ),
    "CK030": Rule(SUSPECT, "Look at the permissions and the health of the storage."),
}


# Reports of flipped bits take 50 ms each.
_MOST_FLIPPED = 4
_PAGE = 4096
# What says that a file's structure is not perfect.
_UNSOUND = ("CK020", "CK021", "CK025", "CK027", "CK102")


def _wrong(facts: Facts) -> List[int]:
    """Return the regions whose CRC-32 is another than was saved."""
    crcs = facts.scanned.crcs
    regions = enumerate(facts.checkpoint.regions)
    return [index for index, region in regions if region.crc is not None and crcs.get(index, region.crc) != region.crc]


def _checksums(facts: Facts) -> Iterator[Found]:
    wrong = _wrong(facts)
    names: Dict[int, List[str]] = {}
    for tensor in facts.checkpoint.tensors if wrong else ():
        names.setdefault(tensor.region, []).append(tensor.name)
    flipped, zeroed = _flipped(facts, wrong), _zeroed(facts) if wrong else set()
    for index in wrong:
        found = _mismatch(facts, index, names.get(index, []), flipped.get(index))
        yield found._replace(next_step=_LOST) if index in zeroed and not found.next_step else found
    changed = _torn(facts, wrong, flipped)
    if changed:
        text = "%s of %d changed while the file was written, as when an optimizer step goes on: all else is whole"
        tensors = [name for index in changed for name in names[index]]
        yield Found("CK041", text % (count_of(len(changed), "storage"), len(names)), {"tensors": tensors[:20]})


def is_torn(facts: Facts) -> bool:
    """Tell whether storages changed while the file was written."""
    wrong = _wrong(facts)
    return bool(_torn(facts, wrong, _flipped(facts, wrong)))


def _flipped(facts: Facts, wrong: List[int]) -> Dict[int, Optional[Flipped]]:
    from ..scan.bitflip import flipped_bit

    regions, crcs = facts.checkpoint.regions, facts.scanned.crcs
    return {
        index: flipped_bit(regions[index].crc or 0, crcs[index], regions[index].size) for index in wrong[:_MOST_FLIPPED]
    }


def _mismatch(facts: Facts, index: int, inside: List[str], flipped: Optional[Flipped]) -> Found:
    region, crc = facts.checkpoint.regions[index], facts.scanned.crcs[index]
    what = inside[0] if inside else "record %s" % region.name
    more = " (shared by %s)" % count_of(len(inside), "tensor") if len(inside) > 1 else ""
    message = "%s%s has another CRC-32 than was saved with it: " % (what, more)
    data: Dict[str, object] = {
        "tensors": inside[:20],
        "record": region.name,
        "file": facts.paths[region.file],
        "range": [region.offset, region.offset + region.size],
    }
    evidence: Dict[str, object] = {"crc32": "%08x" % crc, "saved_crc32": "%08x" % (region.crc or 0)}
    if flipped is None:
        message += "it was written while being modified, or damaged since"
        return Found("CK022", message, data, evidence=evidence)
    place = region.offset + flipped.offset
    evidence.update(flipped_byte=place, flipped_bit=flipped.bit)
    message += "one flipped bit explains it, bit %d of byte %s of the file" % (flipped.bit, format(place, ","))
    return Found("CK022", message, data, next_step=_ROTTEN, evidence=evidence)


def _torn(facts: Facts, wrong: List[int], flipped: Dict[int, Optional[Flipped]]) -> List[int]:
    """Tell storages that changed under the writer from damage, which shows in the structure or leaves zeros."""
    checkpoint = facts.checkpoint
    if checkpoint.truncated or any(each.rule in _UNSOUND and each.severity is None for each in checkpoint.found):
        return []
    held = {tensor.region for tensor in checkpoint.tensors} if wrong else set()
    changed = [index for index in wrong if index in held and flipped.get(index) is None]
    if any(not set(inside).isdisjoint(changed) for inside in _within(checkpoint)):
        return []
    return changed if changed and _zeroed(facts).isdisjoint(changed) else []


def _zeroed(facts: Facts) -> Set[int]:
    """Return the regions of tensors in which as many elements are zero as fill a page."""
    tensors = facts.checkpoint.tensors
    return {
        tensors[index].region
        for index, stats in facts.scanned.stats.items()
        if (stats.zeros or 0) * tensors[index].dtype.size >= _PAGE
    }


def _holes(facts: Facts) -> Iterator[Found]:
    checkpoint, crcs = facts.checkpoint, facts.scanned.crcs
    # Of placeholders, nothing was ever written.
    if any(each.rule == "CK027" for each in checkpoint.found):
        return
    wrong = frozenset(_wrong(facts))
    for hole, inside in zip(checkpoint.holes, _within(checkpoint)):
        if not inside and not checkpoint.truncated:
            continue
        lost = wrong.intersection(inside)
        name = checkpoint.regions[min(lost or inside)].name if inside else "the end"
        data: Dict[str, object] = {"file": facts.paths[hole.file], "record": name}
        data["range"] = [hole.offset, hole.offset + hole.size]
        what = "%s from byte %s on (%s)" % (count_of(hole.size, "byte"), format(hole.offset, ","), name)
        if lost or checkpoint.truncated:
            yield Found("CK023", "%s were never written" % what, data)
        elif all(index in crcs and checkpoint.regions[index].crc is not None for index in inside):
            text = "%s take no room on the disk, and the CRC-32 says that they are zero" % what
            yield Found("CK023", text, data, INFO, "Nothing to do: a copy left out the zeros.")
        else:
            text = "%s take no room on the disk: they are zero, and nothing tells whether they should be" % what
            yield Found("CK023", text, data, INFO, "Compare it with a copy, if there is one.")


def _within(checkpoint: Checkpoint) -> List[List[int]]:
    """Return for each hole, in order, the regions that it reaches into."""
    within: List[List[int]] = [[] for _ in checkpoint.holes]
    order = sorted(range(len(within)), key=lambda index: checkpoint.holes[index][:2])
    ends = [(hole.file, hole.offset + hole.size) for hole in (checkpoint.holes[index] for index in order)]
    for number, region in enumerate(checkpoint.regions if order else ()):
        if region.data is not None:
            continue
        at = bisect.bisect_right(ends, (region.file, region.offset))
        while at < len(order) and checkpoint.holes[order[at]][:2] < (region.file, region.offset + region.size):
            within[order[at]].append(number)
            at += 1
    return within


QUESTIONS = (_checksums, _holes)
