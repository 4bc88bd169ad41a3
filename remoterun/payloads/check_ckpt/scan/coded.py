"""How many numbers of a model are kept as integers: codes of quantised weights, of which each format packs its own."""

from __future__ import annotations

from typing import Dict, Sequence, Set, Tuple

from ..model import Tensor, product

# How tensors of 8-bit weights are called: by most, by quanto, and by torchao.
_BYTES = ("weight", "weight._data", "weight.qdata")
# How those are called whose numbers take 4 bits, and their scales: of ModelOpt, compressed-tensors, gpt-oss, torchao.
_PAIRS = (("weight", "weight_scale"), ("_packed", "_scale"), ("_blocks", "_scales"), (".qdata", ".scale"))
# So many bytes go with a scale: 16 numbers of NVFP4, or 32 of MXFP4.
_TO_A_SCALE = (8, 16)
# So many codes may be in an int32.
_TO_A_WORD = (4, 8, 16)


def coded(tensors: Sequence[Tensor], indexes: Sequence[int]) -> Tuple[int, int]:
    """Count the weights among tensors of integers, each stored one once, and all of them.

    What does not tell how many numbers a byte holds counts for nothing.
    """
    shapes = {tensor.name: tensor.shape for tensor in tensors}
    packed = {name.partition(".quant_state.")[0] for name in shapes if ".quant_state." in name}
    counts = [(tensors[index], _count(tensors[index], shapes, packed)) for index in indexes]
    once = {(tensor.region, tensor.start): count for tensor, count in counts}
    return sum(once.values()), sum(count for _, count in counts)


def _count(tensor: Tensor, shapes: Dict[str, Tuple[int, ...]], packed: Set[str]) -> int:
    name, kind, shape = tensor.name, tensor.dtype.name, tensor.shape
    if kind == "int8" and len(shape) > 1 and name.endswith(_BYTES):
        return tensor.numel
    if kind == "uint8" and (name in packed or _is_scaled(tensor, shapes)):  # bitsandbytes and others, in 4 bits
        return 2 * tensor.numel
    if kind == "int32" and len(shape) == 2 and name.endswith("qweight"):
        module = name[: -len("qweight")]
        return _in_words(shape, shapes.get(module + "g_idx", ()), shapes.get(module + "scales", ()))
    return 0


def _is_scaled(tensor: Tensor, shapes: Dict[str, Tuple[int, ...]]) -> bool:
    name = tensor.name
    found = [shapes.get(name[: -len(end)] + scale, (0,)) for end, scale in _PAIRS if name.endswith(end)]
    return any(tensor.numel == each * product(scales) > 0 for scales in found for each in _TO_A_SCALE)


def _in_words(shape: Tuple[int, ...], places: Tuple[int, ...], scales: Tuple[int, ...]) -> int:
    """Count the weights of a matrix in words: GPTQ packs its rows, and has a place for each; AWQ packs its columns."""
    if len(places) == 1 and 4 * shape[0] <= places[0] <= 32 * shape[0]:
        return places[0] * shape[1]
    if not places and len(scales) == 2 and any(scales[1] == shape[1] * each for each in _TO_A_WORD):
        return shape[0] * scales[1]
    return 0
