"""Rules about the file itself."""

from __future__ import annotations

from typing import Dict, Iterator, List

from ..model import Found, count_of
from .facts import Facts
from .rule import BAD, GO_BACK, INFO, SAVE_SAFELY, SUSPECT, Rule

RULES: Dict[str, Rule] = {
    "CK020": Rule(
        BAD, "The save was cut off: look for a full disk or a killed process, and go back to the checkpoint before."
    ),
    "CK021": Rule(BAD, "The data never reached the disk (power loss, no fsync): go back to the checkpoint before."),
    "CK022": Rule(BAD, SAVE_SAFELY),
    "CK024": Rule(BAD, "This is no checkpoint: put the right file in its place."),
    "CK025": Rule(BAD, GO_BACK),
    "CK026": Rule(INFO, "Run again when the save is done."),
    "CK027": Rule(BAD, "Its weights were never written: save it again without skip_data."),
    "CK028": Rule(INFO, "Keep a sha256 beside files that matter."),
    "CK030": Rule(SUSPECT, "Look at the permissions and the health of the storage."),
}


def _checksums(facts: Facts) -> Iterator[Found]:
    checkpoint, crcs = facts.checkpoint, facts.scanned.crcs
    names: Dict[int, List[str]] = {}
    for tensor in checkpoint.tensors:
        names.setdefault(tensor.region, []).append(tensor.name)
    for index, region in enumerate(checkpoint.regions):
        if region.crc is None or index not in crcs or crcs[index] == region.crc:
            continue
        inside = names.get(index, [])
        what = inside[0] if inside else "record %s" % region.name
        more = " (shared by %s)" % count_of(len(inside), "tensor") if len(inside) > 1 else ""
        yield Found(
            "CK022",
            "%s%s has another CRC-32 than was saved with it: it was written while being modified, or damaged since"
            % (what, more),
            {
                "tensors": inside[:20],
                "record": region.name,
                "file": facts.paths[region.file],
                "range": [region.offset, region.offset + region.size],
            },
            evidence={"crc32": "%08x" % crcs[index], "saved_crc32": "%08x" % region.crc},
        )


QUESTIONS = (_checksums,)
