"""Frames between controller, leg, supervisor and payload: one codec for all of them.

A frame is at most `MAX_FRAME` bytes and is written at once, so on a pipe it is atomic: a background job that prints
into the same channel can stand between frames, never inside one. Layout, big-endian::

    magic 4 | nonce 8 | stream u32 | seq u32 | kind u8 | flags u8 | length u16 | crc32 u32 | body

The nonce is chosen by the reader's side for one run, so text that looks like a frame by accident is noise. `seq`
counts the frames of a stream from 0; a gap means damage. A message longer than one body is split over frames: the
first carries `FIRST`, all but the last carry `MORE`.
"""

from __future__ import annotations

import zlib

# The C module alone: the public one is a file to be found and read, as long as a few frames take.
try:
    import _struct
except ImportError:
    import struct as _struct  # type: ignore[no-redef]

Struct = _struct.Struct

MAGIC = b"\xf7RR\xf8"
MAX_FRAME = 4096
_HEADER = Struct(">4s8sIIBBHI")
_CRC = Struct(">I")
MAX_BODY = MAX_FRAME - _HEADER.size
MORE, FIRST = 1, 2

# controller -> target
REQUEST, PACK, CANCEL, PING, ACK = 1, 2, 3, 4, 5
# leg -> controller, stream 0
HELLO, NEED, PROBLEM, ATTACHED = 16, 17, 18, 19
# supervisor -> controller, stream 1
STARTED, HEARTBEAT, STDOUT, STDERR, STDOUT_TAIL, STDERR_TAIL, RESULT = 32, 33, 34, 35, 36, 37, 38
# payload -> supervisor (stream = the writer's pid) -> controller
RECORD, FINDING, PROGRESS, LOG, DONE, ERROR = 48, 49, 50, 51, 52, 53

LEG_STREAM, SUPERVISOR_STREAM = 0, 1
# In place of a controller's own name: whoever only looks takes nobody's place.
LOOKER = bytes(8)
# In front of a pack: these words, the size of the table of its code, and the table. A zip file is read from its end, so
# that other programs do not mind.
COMPILED = b"remoterun compiled\n"
COMPILED_SIZE = 8
_MAX_STREAMS = 4096


class WireError(Exception):
    """Say that frames are damaged: a gap, or more than the cap allows."""


class Frame:
    """Hold one frame as it stood on the wire; `raw` is the whole of it."""

    __slots__ = ("body", "first", "kind", "more", "raw", "seq", "stream")

    def __init__(self, stream: int, seq: int, kind: int, flags: int, body: bytes, raw: bytes) -> None:
        self.stream = stream
        self.seq = seq
        self.kind = kind
        self.first = bool(flags & FIRST)
        self.more = bool(flags & MORE)
        self.body = body
        self.raw = raw


class Encoder:
    """Turn messages of one stream into frames."""

    def __init__(self, nonce: bytes, stream: int) -> None:
        self.nonce = nonce
        self.stream = stream
        self.seq = 0

    def frames(self, kind: int, body: bytes = b"") -> list[bytes]:
        """Split one message into frames, each to be written at once."""
        result = []
        for start in range(0, len(body) or 1, MAX_BODY):
            part = body[start : start + MAX_BODY]
            flags = (0 if start else FIRST) | (MORE if start + MAX_BODY < len(body) else 0)
            head = _HEADER.pack(MAGIC, self.nonce, self.stream, self.seq, kind, flags, len(part), 0)[:-4]
            crc = zlib.crc32(part, zlib.crc32(head))
            result.append(b"".join((head, _CRC.pack(crc), part)))
            self.seq = (self.seq + 1) & 0xFFFFFFFF
        return result


class Decoder:
    """Find the frames in a stream of bytes that may hold anything else as well.

    Args:
        nonce: only frames that carry it count.
        keep: how many bytes of noise (what stands outside frames) are kept; all of it is counted.
    """

    def __init__(self, nonce: bytes, keep: int = 0) -> None:
        self._start = MAGIC + nonce
        self._buffer = bytearray()
        self._keep = keep
        self.noise = bytearray()
        self.noise_total = 0

    def feed(self, data: bytes) -> list[Frame]:
        """Take bytes as they came and return the frames that are complete now."""
        buffer = self._buffer
        buffer += data
        frames: list[Frame] = []
        position = 0
        while True:
            found = buffer.find(self._start, position)
            if found < 0:
                # What could be the beginning of a frame stays; the rest is noise.
                first = buffer.find(MAGIC[:1], max(position, len(buffer) - len(self._start) + 1))
                end = len(buffer) if first < 0 else first
                self._skip(buffer[position:end])
                position = end
                break
            self._skip(buffer[position:found])
            position = found
            frame = self._frame_at(buffer, found)
            if frame is None:
                break
            if isinstance(frame, int):
                self._skip(buffer[found : found + frame])
                position = found + frame
            else:
                frames.append(frame)
                position = found + len(frame.raw)
        del buffer[:position]
        return frames

    def close(self) -> None:
        """Count what is left as noise: the stream has ended."""
        self._skip(self._buffer)
        self._buffer = bytearray()

    @staticmethod
    def _frame_at(buffer: bytearray, at: int) -> Frame | int | None:
        """Read the frame at a place: None when bytes are still missing, the number of bytes to skip when it is none."""
        if len(buffer) - at < _HEADER.size:
            return None
        _, _, stream, seq, kind, flags, length, crc = _HEADER.unpack_from(buffer, at)
        if length > MAX_BODY or flags & ~(MORE | FIRST):
            return len(MAGIC)
        end = at + _HEADER.size + length
        if len(buffer) < end:
            return None
        raw = bytes(buffer[at:end])
        body = raw[_HEADER.size :]
        if zlib.crc32(body, zlib.crc32(raw[: _HEADER.size - 4])) != crc:
            return len(MAGIC)
        return Frame(stream, seq, kind, flags, body, raw)

    def _skip(self, data: bytearray) -> None:
        self.noise_total += len(data)
        room = self._keep - len(self.noise)
        if room > 0:
            self.noise += data[:room]


class Assembler:
    """Join the frames of each stream into whole messages, in order and without a gap.

    Args:
        max_message: the most bytes one message may have. strict: raise on a gap. Payload workers that were killed in
            the middle of a message leave gaps: their reader is not strict.
    """

    def __init__(self, max_message: int, strict: bool = True) -> None:
        self._max = max_message
        self._strict = strict
        self._next: dict[int, int] = {}
        self._parts: dict[int, list[bytes]] = {}
        self._sizes: dict[int, int] = {}
        self._held = 0

    def add(self, frame: Frame) -> bytes | None:
        """Return the whole body when this frame completes a message.

        Raises:
            WireError: on a gap (when strict), when a message grows over the cap, or all unended ones over twice that.
        """
        stream = frame.stream
        expected = self._next.get(stream, 0 if self._strict else frame.seq)
        if not self._strict and len(self._next) > _MAX_STREAMS:
            # Workers come and go, each with a stream of its own: those with nothing begun are forgotten.
            self._next = {each: self._next[each] for each in self._parts if each in self._next}
        self._next[stream] = (frame.seq + 1) & 0xFFFFFFFF
        if frame.seq != expected:
            if self._strict:
                raise WireError("frame %d of stream %d came where %d was due" % (frame.seq, stream, expected))
            self._drop(stream)
        if frame.first:
            self._drop(stream)
            if not frame.more:
                return frame.body
        elif stream not in self._parts:
            # The rest of a message whose beginning was lost or refused is no message.
            return None
        self._hold(stream, frame.body)
        if frame.more:
            return None
        body = b"".join(self._parts[stream])
        self._drop(stream)
        return body

    def _hold(self, stream: int, body: bytes) -> None:
        """Keep a part of a message, within bounds."""
        size = self._sizes.get(stream, 0) + len(body)
        self._sizes[stream] = size
        self._held += len(body)
        if size > self._max:
            self._drop(stream)
            raise WireError("a message of over %d bytes came, the most that is taken" % self._max)
        self._parts.setdefault(stream, []).append(body)
        if self._held > 2 * self._max or len(self._parts) > _MAX_STREAMS:
            for each in list(self._parts):
                self._drop(each)
            raise WireError("too many messages were begun and not ended")

    def _drop(self, stream: int) -> None:
        self._parts.pop(stream, None)
        self._held -= self._sizes.pop(stream, 0)


def whole_frames(buffer: bytearray) -> list[bytes]:
    """Take the complete frames off the front of a buffer that holds nothing but frames."""
    frames = []
    position = 0
    while len(buffer) - position >= _HEADER.size:
        length = (buffer[position + 22] << 8) | buffer[position + 23]
        end = position + _HEADER.size + length
        if len(buffer) < end:
            break
        frames.append(bytes(buffer[position:end]))
        position = end
    del buffer[:position]
    return frames


def to_json(value: object) -> str:
    """Write a value as ASCII JSON, like `json.dumps` without spaces and with `allow_nan=False`.

    Importing the json module costs a target as much as all the rest of a leg: it pulls in `re` and `enum`.

    Raises:
        TypeError: for what JSON cannot hold, bytes among it.
        ValueError: for NaN and infinities.
    """
    if isinstance(value, str):
        return quote(value)
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    # Subclasses (enums, numpy's floats) show themselves in other ways than the numbers they are.
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        if value - value != 0:
            raise ValueError("%r is no JSON number: write it as text" % value)
        return float.__repr__(value)
    if isinstance(value, dict):
        return "{%s}" % ",".join(["%s:%s" % (quote(_key(key)), to_json(item)) for key, item in value.items()])
    if isinstance(value, (list, tuple)):
        return "[%s]" % ",".join([to_json(item) for item in value])
    raise TypeError("%s is nothing that JSON can hold" % type(value).__name__)


def quote(text: str) -> str:
    """Write a text as JSON. Most are plain, and need no module that a target would have to load."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return "".join(('"', text, '"'))
    try:
        from _json import encode_basestring_ascii
    except ImportError:
        from json.encoder import encode_basestring_ascii
    return encode_basestring_ascii(text)


def _key(key: object) -> str:
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, (int, float)):
        return to_json(key)
    raise TypeError("a key is text, not %s" % type(key).__name__)
