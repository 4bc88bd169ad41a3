"""What has changed its form between two checkpoints: number formats, shapes, names (CK083)."""

from __future__ import annotations

from typing import Dict, Iterator, Optional, Sequence, Tuple

from ..model import Found, count_of
from ..rules.names import BUFFER
from ..rules.rule import INFO
from .pair import MOST_NAMED, Pair, Place
from .profile import Mark

# Less than this share of names in common, and it is another model.
_LEAST_COMMON = 0.5


def drift(pair: Pair) -> Iterator[Found]:
    """Say what of the younger checkpoint has another form than in the older one."""
    before, after = _named(pair.model[0]), _named(pair.model[1])
    common = [name for name in after if name in before]
    # What is saved without an optimizer may be cast or cut down on purpose, and a fresh start may begin with anything.
    severity = None if pair.states[0] and pair.states[1] and not pair.fresh else INFO
    if len(common) < _LEAST_COMMON * max(len(before), len(after)):
        text = "it holds another model: of its %s, %d have a name that is known from %s"
        yield Found("CK083", text % (count_of(len(after), "tensor"), len(common), pair.older.name), severity=INFO)
        return
    formats = [(name, before[name].dtype, after[name].dtype) for name in common]
    shapes = [(name, _shown(before[name].shape), _shown(after[name].shape)) for name in common]
    yield from _changed("number format", formats, pair, severity)
    yield from _changed("shape", shapes, pair, severity)
    yield from _gone("missing", [name for name in before if name not in after], pair, severity)
    yield from _gone("new", [name for name in after if name not in before], pair, severity)
    if severity is None:
        # The shapes of its states are not compared: those of flat partitions depend on the number of ranks.
        old, new = _named(pair.states[0]), _named(pair.states[1])
        states = [(name, old[name].dtype, new[name].dtype) for name in new if name in old]
        yield from _changed("number format", states, pair, severity)


def _named(marks: Dict[Place, Mark]) -> Dict[str, Mark]:
    return {name: mark for (name, _), mark in marks.items() if not BUFFER.search(name)}


def _shown(shape: Sequence[int]) -> str:
    return "[%s]" % ", ".join(map(str, shape))


def _changed(what: str, known: Sequence[Tuple[str, str, str]], pair: Pair, severity: Optional[str]) -> Iterator[Found]:
    changed = [(name, before, after) for name, before, after in known if before != after]
    if changed:
        kinds = sorted({"%s instead of %s" % (after, before) for _, before, after in changed})
        whose = "its" if len(changed) == 1 else "their"
        text = "changed %s %s since %s (%s)" % (whose, what, pair.older.name, ", ".join(kinds[:3]))
        yield _told(text, [name for name, _, _ in changed], severity)


def _gone(what: str, names: Sequence[str], pair: Pair, severity: Optional[str]) -> Iterator[Found]:
    if names:
        verb = "is" if len(names) == 1 else "are"
        yield _told("of the model %s %s since %s" % (verb, what, pair.older.name), names, severity)


def _told(text: str, names: Sequence[str], severity: Optional[str]) -> Found:
    message = "%s %s: %s" % (count_of(len(names), "tensor"), text, ", ".join(names[:3]))
    return Found("CK083", message, {"tensors": list(names[:MOST_NAMED])}, severity, evidence={"tensors": len(names)})
