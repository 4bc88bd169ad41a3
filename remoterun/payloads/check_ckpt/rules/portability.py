"""Rules about what others can make of a file."""

from __future__ import annotations

from typing import Dict, Iterator, List, Tuple

from ..model import MODEL, UNKNOWN_FORMAT, Found, Tensor, count_of
from .facts import Facts
from .names import INPUT, OUTPUT
from .rule import INFO, SUSPECT, Rule

RULES: Dict[str, Rule] = {
    "CK120": Rule(INFO, "Fine for your own files. For others', convert it to plain tensors first."),
    "CK121": Rule(INFO, "Clone tensors before saving them, and the file gets smaller."),
    "CK122": Rule(INFO, "Strip the prefix when loading, or save the inner module's state."),
    "CK123": Rule(INFO, "Nothing to do, unless they are meant to stay equal: tie them again after loading."),
    "CK124": Rule(INFO, "Load it and save it again with a current torch."),
    "CK125": Rule(INFO, 'Save it with metadata={"format": "pt"}.'),
    "CK126": Rule(INFO, "These values were not looked at; everything else was."),
    "CK128": Rule(SUSPECT, "Save it again with a current torch, or as safetensors, to have its values checked."),
}

# Storages that hold less than this in vain are nobody's trouble.
_WASTE = 64 * 1024
_COMPILED = "_orig_mod."
_PARALLEL = "module."


def _honesty(facts: Facts) -> Iterator[Found]:
    checkpoint = facts.checkpoint
    unknown = [each for each in checkpoint.unchecked if each.reason == UNKNOWN_FORMAT]
    known = [each for each in checkpoint.unchecked if each.reason != UNKNOWN_FORMAT]
    # Of a truncated file, what is missing is told already. A format that nobody knows may be damage.
    for group, severity in ((unknown, "suspect"), ([] if checkpoint.truncated else known, "info")):
        if group:
            reasons = sorted({"%s (%s)" % (each.dtype, each.reason) for each in group})
            message = "the values of %s were not checked: %s" % (count_of(len(group), "tensor"), ", ".join(reasons[:3]))
            yield Found("CK126", message, {"tensors": [each.name for each in group[:20]]}, severity)
    if checkpoint.unsupported:
        yield Found("CK128", checkpoint.unsupported)


def _waste(facts: Facts) -> Iterator[Found]:
    """Find storages of which the tensors show less than half."""
    checkpoint = facts.checkpoint
    used: Dict[int, Dict[Tuple[object, ...], int]] = {}
    for tensor in checkpoint.tensors:
        if checkpoint.regions[tensor.region].size >= _WASTE:
            size = (tensor.numel * tensor.dtype.bits + 7) // 8
            used.setdefault(tensor.region, {})[tensor.start, tensor.shape, tensor.stride] = size
    wasteful: List[int] = []
    spent = shown = 0
    for index, sizes in used.items():
        held, needed = checkpoint.regions[index].size, sum(sizes.values())
        if held - needed >= _WASTE and held > 2 * needed:
            wasteful.append(index)
            spent, shown = spent + held, shown + needed
    if wasteful:
        named = [tensor.name for tensor in checkpoint.tensors if tensor.region in set(wasteful[:20])]
        text = "%s of %s show only %s: whole storages were saved for the sake of views, first: %s"
        text %= (count_of(len(wasteful), "storage"), count_of(spent, "byte"), count_of(shown, "byte"), named[0])
        yield Found("CK121", text, {"tensors": named[:20]}, evidence={"bytes": spent, "used": shown})


def _prefixes(facts: Facts) -> Iterator[Found]:
    """Find the names that wrappers leave: torch.compile anywhere, DataParallel in front of all."""
    weights = [tensor for tensor in facts.checkpoint.tensors if tensor.role == MODEL]
    compiled = [tensor.name for tensor in weights if _COMPILED in tensor.name or _COMPILED in tensor.key]
    if compiled:
        yield _prefixed("_orig_mod", "torch.compile", compiled, weights)
    keys = [(tensor.key or tensor.name).replace(_COMPILED, "") for tensor in weights]
    if keys and all(key.startswith(_PARALLEL) for key in keys):
        yield _prefixed("module", "DataParallel or a trainer", [tensor.name for tensor in weights], weights)


def _prefixed(prefix: str, origin: str, names: List[str], weights: List[Tensor]) -> Found:
    text = "%d of %s have the prefix %s. that %s leaves, so a plain model does not take them: %s"
    text %= (len(names), count_of(len(weights), "name"), prefix, origin, names[0])
    return Found("CK122", text, {"tensors": names[:20], "prefix": prefix})


def _ties(facts: Facts) -> Iterator[Found]:
    """Find an output layer that holds the same numbers as the embedding, in a storage of its own."""
    same: Dict[Tuple[object, ...], List[Tensor]] = {}
    for _, tensor, stats in facts.seen((MODEL,)):
        if stats.digest and stats.minimum != stats.maximum:
            same.setdefault((tensor.dtype, tensor.shape, stats.digest), []).append(tensor)
    for tensors in same.values():
        outputs = [each for each in tensors if OUTPUT.search(each.name)] if len(tensors) > 1 else []
        inputs = [each for each in tensors if each not in outputs and INPUT.search(each.name)] if outputs else []
        for each in outputs if inputs else ():
            if each.region != inputs[0].region:
                text = "%s and %s hold the same numbers in two storages: weights that were tied are stored twice"
                names = inputs[0].name, each.name
                yield Found("CK123", text % names, {"tensors": list(names)})


QUESTIONS = (_honesty, _waste, _prefixes, _ties)
