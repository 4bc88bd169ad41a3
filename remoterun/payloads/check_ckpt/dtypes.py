"""The number formats of tensors: how wide an element is, and which bit patterns are NaN or infinite."""

from __future__ import annotations

import math
from typing import Dict, Optional, Tuple

from .records import Record


class Dtype(Record):
    """Describe one number format.

    `bits`: of one element. `lane`: bytes of the unit that is looked at (a complex element has two lanes). `kind`:
    "ieee" (all ones in the exponent mean NaN or infinity), "codes" (one byte, with listed patterns), "clean" (can hold
    neither), "opaque" (not known). `exponent` and `mantissa` are masks of an "ieee" lane; a pattern without its
    sign is non-finite when `exponent` is reached. `tops` are the values that the highest byte of a non-finite lane
    can have. `fraction` (bits) and `bias` make a number of a "codes" byte; one without fraction has no sign either.
    """

    name: str
    bits: int
    kind: str
    floating: bool = False
    lane: int = 1
    exponent: int = 0
    mantissa: int = 0
    tops: Tuple[bytes, ...] = ()
    nan: bytes = b""
    inf: bytes = b""
    negative_inf: bytes = b""
    fraction: int = 0
    bias: int = 0

    @property
    def size(self) -> int:
        """Return the bytes of one element, 0 when elements share bytes."""
        return self.bits // 8 if self.bits % 8 == 0 else 0

    @property
    def parts(self) -> int:
        """Return the lanes of one element."""
        return max(1, self.bits // (8 * self.lane))

    @property
    def smallest(self) -> float:
        """Return the smallest number of an "ieee" format that is not subnormal."""
        mantissa = self.mantissa.bit_length()
        return math.ldexp(1.0, 2 - (1 << (8 * self.lane - 2 - mantissa)))

    @property
    def odd(self) -> bytes:
        """Return the bytes of a "codes" format that mean no finite number."""
        return self.nan + self.inf + self.negative_inf

    def value(self, code: int) -> float:
        """Return the number that a byte of a "codes" format means, whatever it would be were it finite."""
        if not self.fraction:
            return math.ldexp(1.0, code - self.bias)
        exponent, fraction = (code & 0x7F) >> self.fraction, code & ((1 << self.fraction) - 1)
        if exponent:
            fraction += 1 << self.fraction
        number = math.ldexp(fraction, max(exponent, 1) - self.bias - self.fraction)
        return -number if code & 0x80 else number

    def subnormal(self, code: int) -> bool:
        """Tell whether a byte of a "codes" format means a subnormal number; zero is none."""
        return bool(self.fraction) and 0 < code & 0x7F < 1 << self.fraction


def _ieee(name: str, lane: int, mantissa_bits: int, parts: int = 1) -> Dtype:
    mantissa = (1 << mantissa_bits) - 1
    exponent = ((1 << (8 * lane - 1)) - 1) ^ mantissa
    sign = 1 << (8 * lane - 1)
    shift = 8 * (lane - 1)
    first = exponent >> shift
    tops = [(high | (first + low)) for high in (0, sign >> shift) for low in range(0x80 - first)]
    return Dtype(name, 8 * lane * parts, "ieee", True, lane, exponent, mantissa, tuple(bytes([top]) for top in tops))


def _codes(name: str, fraction: int, bias: int, nan: bytes, inf: bytes = b"", negative_inf: bytes = b"") -> Dtype:
    tops = tuple(bytes([code]) for code in nan + inf + negative_inf)
    return Dtype(name, 8, "codes", True, 1, 0, 0, tops, nan, inf, negative_inf, fraction, bias)


def _clean(name: str, bits: int, *, floating: bool = False) -> Dtype:
    return Dtype(name, bits, "clean", floating, lane=max(1, bits // 8))


# FP8: OCP 8-bit floating point specification 1.0 (E4M3 has no infinity, one NaN per sign); the FNUZ forms have the
# single NaN 0x80. FP4 and FP6 (OCP microscaling formats 1.0) have neither NaN nor infinity.
_ALL = (
    _ieee("float64", 8, 52),
    _ieee("float32", 4, 23),
    _ieee("float16", 2, 10),
    _ieee("bfloat16", 2, 7),
    _ieee("complex128", 8, 52, parts=2),
    _ieee("complex64", 4, 23, parts=2),
    _ieee("complex32", 2, 10, parts=2),
    _codes("float8_e4m3fn", 3, 7, b"\x7f\xff"),
    _codes("float8_e5m2", 2, 15, b"\x7d\x7e\x7f\xfd\xfe\xff", b"\x7c", b"\xfc"),
    _codes("float8_e4m3fnuz", 3, 8, b"\x80"),
    _codes("float8_e5m2fnuz", 2, 16, b"\x80"),
    _codes("float8_e8m0fnu", 0, 127, b"\xff"),
    _clean("float4_e2m1fn_x2", 8, floating=True),
    _clean("float4_e2m1", 4, floating=True),
    _clean("float6_e2m3", 6, floating=True),
    _clean("float6_e3m2", 6, floating=True),
    *(_clean(name, bits) for bits in (8, 16, 32, 64) for name in ("int%d" % bits, "uint%d" % bits)),
    _clean("bool", 8),
    *(_clean("%s%d" % (kind, bits), 8) for bits in range(1, 8) for kind in ("int", "uint")),
    # Quantised codes are integers; the scale that gives them meaning is not looked at, so they are not called checked.
    Dtype("qint8", 8, "opaque"),
    Dtype("quint8", 8, "opaque"),
    Dtype("qint32", 32, "opaque"),
    Dtype("quint4x2", 8, "opaque"),
    Dtype("quint2x4", 8, "opaque"),
    *(Dtype(name, 8, "opaque") for name in ("bits8", "bits1x8", "bits2x4", "bits4x2")),
    Dtype("bits16", 16, "opaque"),
)

DTYPES: Dict[str, Dtype] = {dtype.name: dtype for dtype in _ALL}

UNTYPED = Dtype("untyped", 8, "opaque")

_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64",
    "QInt8Storage": "qint8",
    "QUInt8Storage": "quint8",
    "QInt32Storage": "qint32",
    "QUInt4x2Storage": "quint4x2",
    "QUInt2x4Storage": "quint2x4",
}

_SAFETENSORS = {
    "BOOL": "bool",
    "F4": "float4_e2m1",
    "F6_E2M3": "float6_e2m3",
    "F6_E3M2": "float6_e3m2",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}


def torch_storage(name: str) -> Optional[Dtype]:
    """Return the format of a torch storage class, `UNTYPED` for raw bytes, None when unknown."""
    return UNTYPED if name == "UntypedStorage" else DTYPES.get(_STORAGES.get(name, ""))


def safetensors_dtype(code: str) -> Optional[Dtype]:
    """Return the format that a safetensors header names, None when unknown."""
    return DTYPES.get(_SAFETENSORS.get(code, ""))
