"""The bytes in a pickle that only a class which is not known can make sense of."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Sequence, Set, Tuple

from .nodes import Blob, Call, Decoded, Pairs

# What is left unvisited is not worth a longer search.
_MOST_NODES = 200_000
# Bytes that are plain values, whoever holds them.
_PLAIN = ("builtins.bytearray", "_codecs.encode")


def opaque(decoded: Decoded, known: Set[int]) -> Dict[str, int]:
    """Return how many bytes of which classes were not decoded; `known` are the places of those that were."""
    unknown = {blob for blob in decoded.blobs if blob.offset not in known}
    sizes: Dict[str, int] = {}
    if not unknown:
        return sizes
    seen: Set[int] = set()
    waiting: List[Tuple[Any, str]] = [(decoded.root, "")]
    while waiting and len(seen) < _MOST_NODES:
        node, owner = waiting.pop()
        if isinstance(node, Blob):
            if owner and node in unknown:
                unknown.remove(node)
                sizes[owner] = sizes.get(owner, 0) + node.size
        elif id(node) not in seen:
            seen.add(id(node))
            if isinstance(node, Call):
                owner = "" if node.path in _PLAIN else node.origin.path
            waiting += [(child, owner) for child in _children(node)]
    return sizes


def _children(node: object) -> Iterator[Any]:
    parts: Sequence[Sequence[Any]] = ()
    if isinstance(node, Pairs):
        parts = (node.flat,)
    elif isinstance(node, (list, tuple)):
        parts = (node,)
    elif isinstance(node, Call):
        parts = (node.args, node.state, node.flat, node.elements)
    for part in parts:
        yield from (child for child in part if isinstance(child, (Blob, Pairs, Call, list, tuple)))
