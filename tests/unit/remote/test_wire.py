"""Frames: whatever stands between them or happens to them, a message arrives as it was sent or not at all."""

from __future__ import annotations

import enum
import itertools
import json
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from remoterun.remote.wire import (
    FIRST,
    MAGIC,
    MAX_BODY,
    MAX_FRAME,
    MORE,
    RECORD,
    Assembler,
    Decoder,
    Encoder,
    Frame,
    WireError,
    to_json,
    whole_frames,
)

NONCE = b"\x00nonce\xf7R"
OTHER = b"\x00nonce\xf7S"
CAP = 64 << 20

_sizes = st.sampled_from([0, MAX_BODY - 1, MAX_BODY, MAX_BODY + 1, 2 * MAX_BODY + 7])
_bodies = st.binary(max_size=40) | st.builds(
    lambda size, seed: bytes((seed + at) & 0xFF for at in range(size)), _sizes, st.integers(0, 255)
)
_messages = st.lists(st.tuples(st.sampled_from([1, 7, 9]), st.integers(0, 255), _bodies), max_size=6)

Message = tuple[int, int, bytes]


def _strangers() -> st.SearchStrategy[bytes]:
    """Bytes that look like frames of this run without being any."""
    foreign = st.builds(lambda body: b"".join(Encoder(OTHER, 1).frames(RECORD, body)), _bodies)
    beginnings = st.integers(1, len(MAGIC + NONCE) - 1).map(lambda size: (MAGIC + NONCE)[:size])
    return foreign | beginnings | st.binary(max_size=60)


def _encode(messages: list[Message]) -> list[bytes]:
    encoders = {stream: Encoder(NONCE, stream) for stream in (1, 7, 9)}
    return [frame for stream, kind, body in messages for frame in encoders[stream].frames(kind, body)]


def _chunks(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


def _decode(chunks: list[bytes], *, strict: bool = True) -> tuple[list[Message], Decoder]:
    """Decode as a reader does: to the end, or to the first damage that a strict reader cannot pass."""
    decoder, assembler = Decoder(NONCE, keep=1 << 20), Assembler(CAP, strict)
    messages: list[Message] = []
    for chunk in chunks:
        for frame in decoder.feed(chunk):
            try:
                body = assembler.add(frame)
            except WireError:
                return messages, decoder
            if body is not None:
                messages.append((frame.stream, frame.kind, body))
    decoder.close()
    return messages, decoder


def _is_subsequence(some: list[Message], whole: list[Message]) -> bool:
    rest = iter(whole)
    return all(message in rest for message in some)


_cuts = st.lists(st.integers(0, 1 << 20), max_size=12)


@given(messages=_messages, cuts=_cuts)
def test_what_was_sent_arrives_in_any_chunks(messages: list[Message], cuts: list[int]) -> None:
    frames = _encode(messages)
    assert all(len(frame) <= MAX_FRAME for frame in frames)
    got, decoder = _decode(_chunks(b"".join(frames), cuts))
    assert got == messages
    assert decoder.noise_total == 0


@given(messages=_messages, noise=st.lists(_strangers(), max_size=8), cuts=_cuts)
def test_noise_between_frames_changes_nothing_and_is_kept_apart(
    messages: list[Message], noise: list[bytes], cuts: list[int]
) -> None:
    frames = _encode(messages)
    # A reader starts to look for a frame at each beginning of one; only whole foreign bytes can stand in between.
    parts = [part for at, frame in enumerate(frames) for part in (noise[at] if at < len(noise) else b"", frame)]
    parts += noise[len(frames) :]
    got, decoder = _decode(_chunks(b"".join(parts), cuts))
    assert got == messages
    expected = b"".join(noise)
    assert bytes(decoder.noise) == expected
    assert decoder.noise_total == len(expected)


@given(st.binary(max_size=3000), _cuts)
def test_arbitrary_bytes_are_noise(data: bytes, cuts: list[int]) -> None:
    got, decoder = _decode(_chunks(data, cuts))
    assert got == []
    assert bytes(decoder.noise) == data


@given(
    messages=_messages,
    damages=st.lists(
        st.tuples(
            st.sampled_from(["flip", "cut", "insert"]), st.integers(0, 1 << 20), st.binary(min_size=1, max_size=4)
        ),
        min_size=1,
        max_size=3,
    ),
    cuts=_cuts,
    strict=st.booleans(),
)
def test_damaged_bytes_lose_messages_and_never_change_one(
    messages: list[Message], damages: list[tuple[str, int, bytes]], cuts: list[int], strict: bool
) -> None:
    data = bytearray(b"".join(_encode(messages)))
    for what, place, some in damages:
        at = place % (len(data) + 1)
        if what == "cut":
            del data[at : at + len(some)]
        elif what == "insert":
            data[at:at] = some
        else:
            data[at : at + len(some)] = bytes(byte ^ 0xFF for byte in data[at : at + len(some)])
    got, _ = _decode(_chunks(bytes(data), cuts), strict=strict)
    if strict:
        for stream in (1, 7, 9):
            sent = [message for message in messages if message[0] == stream]
            mine = [message for message in got if message[0] == stream]
            assert mine == sent[: len(mine)]
    assert _is_subsequence(got, messages)


@given(messages=_messages, lost=st.sets(st.integers(0, 30), min_size=1, max_size=4))
@example(messages=[(1, RECORD, bytes(MAX_BODY) + b"tail"), (1, RECORD, b"next")], lost={0})
def test_lost_frames_never_make_a_message_of_the_rest_of_one(messages: list[Message], lost: set[int]) -> None:
    frames = [frame for at, frame in enumerate(_encode(messages)) if at not in lost]
    got, _ = _decode(frames, strict=False)
    assert _is_subsequence(got, messages)


@given(length=st.integers(MAX_BODY + 1, 0xFFFF), flags=st.integers(0, 255), messages=_messages)
def test_a_header_that_claims_too_much_holds_nothing_up(length: int, flags: int, messages: list[Message]) -> None:
    head = struct.pack(">4s8sIIBBHI", MAGIC, NONCE, 1, 0, RECORD, flags, length, 0)
    got, decoder = _decode([head, *_encode(messages)])
    assert got == messages
    assert bytes(decoder.noise) == head


def test_frames_of_another_nonce_are_noise() -> None:
    frames = Encoder(OTHER, 1).frames(RECORD, b"x" * 9000)
    got, decoder = _decode(frames)
    assert got == []
    assert decoder.noise_total == sum(map(len, frames))


def test_noise_is_kept_to_its_bound_and_counted_beyond() -> None:
    decoder = Decoder(NONCE, keep=10)
    for _ in range(5):
        decoder.feed(b"1234567")
    decoder.close()
    assert bytes(decoder.noise) == b"1234567123"
    assert decoder.noise_total == 35


def test_a_strict_reader_refuses_a_gap_by_name() -> None:
    first, second, third = Encoder(NONCE, 1).frames(RECORD, bytes(2 * MAX_BODY + 1))
    assembler = Assembler(CAP)
    frames = Decoder(NONCE).feed(first + third)
    assert assembler.add(frames[0]) is None
    with pytest.raises(WireError, match="frame 2 of stream 1 came where 1 was due"):
        assembler.add(frames[1])
    assert len(second) == MAX_FRAME


@pytest.mark.parametrize("over", [1, MAX_BODY, 5 * MAX_BODY])
def test_a_message_over_the_cap_is_refused_once_and_its_rest_is_no_message(over: int) -> None:
    cap = 10 * MAX_BODY
    encoder, decoder, assembler = Encoder(NONCE, 1), Decoder(NONCE), Assembler(cap, strict=False)
    sent = [*encoder.frames(RECORD, bytes(cap + over)), *encoder.frames(RECORD, b"after")]
    refused, got = 0, []
    for frame in decoder.feed(b"".join(sent)):
        try:
            body = assembler.add(frame)
        except WireError:
            refused += 1
        else:
            got += [] if body is None else [body]
    assert refused == 1
    assert got == [b"after"]


def test_the_cap_itself_is_allowed() -> None:
    cap = 3 * MAX_BODY
    assembler = Assembler(cap)
    bodies = [
        assembler.add(frame) for frame in Decoder(NONCE).feed(b"".join(Encoder(NONCE, 1).frames(RECORD, bytes(cap))))
    ]
    assert bodies[-1] == bytes(cap)


def test_sequence_numbers_wrap() -> None:
    encoder = Encoder(NONCE, 1)
    encoder.seq = 0xFFFFFFFF
    frames = encoder.frames(RECORD, b"a") + encoder.frames(RECORD, bytes(MAX_BODY + 1))
    got, _ = _decode(frames, strict=False)
    assert [body for _, _, body in got] == [b"a", bytes(MAX_BODY + 1)]


@given(messages=_messages, cuts=_cuts)
def test_whole_frames_takes_what_is_complete_and_leaves_the_rest(messages: list[Message], cuts: list[int]) -> None:
    frames = _encode(messages)
    buffer, got = bytearray(), []
    for chunk in _chunks(b"".join(frames), cuts):
        buffer += chunk
        got += whole_frames(buffer)
        assert len(buffer) < MAX_FRAME
    assert got == frames
    assert not buffer


def test_a_frame_tells_what_stood_on_the_wire() -> None:
    raw = Encoder(NONCE, 5).frames(RECORD, bytes(MAX_BODY + 1))[0]
    frame: Frame = Decoder(NONCE).feed(raw)[0]
    assert (frame.stream, frame.seq, frame.kind, frame.more, frame.raw) == (5, 0, RECORD, True, raw)
    assert frame.body == bytes(MAX_BODY)
    assert raw[21] == FIRST | MORE


_keys = st.text() | st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
_plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
_values = st.recursive(
    _plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_keys, inner, max_size=4), max_leaves=20
)


class _Word(enum.StrEnum):
    NO = "no"


class _Level(enum.IntEnum):
    ONE = 1


class _Float(float):
    def __repr__(self) -> str:
        return f"_Float({float(self)})"


@given(_values)
@example('caf\udce9 \ud83d\ude00 \ud83d \U0001f600 \x00\x1f\x7f\u2028"\\/')
@example([_Word.NO, _Level.ONE, _Float(0.5), (1, (2,)), 1e22, -0.0, 5e-324, 10**400])
@example({_Word.NO: _Level.ONE})
def test_to_json_says_what_json_says(value: object) -> None:
    assert to_json(value) == json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), {"a": [float("nan")]}, {float("nan"): 1}])
def test_to_json_refuses_numbers_that_json_lacks(value: object) -> None:
    with pytest.raises(ValueError, match="no JSON number"):
        to_json(value)


@pytest.mark.parametrize("value", [b"bytes", [b"bytes"], {1, 2}, object(), 1j, {b"key": 1}, {(1, 2): 3}])
def test_to_json_refuses_what_json_cannot_hold(value: object) -> None:
    with pytest.raises(TypeError):
        to_json(value)
