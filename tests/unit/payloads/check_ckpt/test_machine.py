"""The pickle machine: right about sound pickles, bounded and unmoved by hostile ones."""

from __future__ import annotations

import collections
import contextlib
import pickle
import pickletools
import random
import struct
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from remoterun.payloads.check_ckpt.pickles.machine import Machine
from remoterun.payloads.check_ckpt.pickles.nodes import (
    Blob,
    BombError,
    Call,
    CutOffError,
    Decoded,
    Global,
    Pairs,
    PickleError,
    TooLargeError,
)
from remoterun.payloads.check_ckpt.source import Source

if TYPE_CHECKING:
    from pathlib import Path


class FromBytes(Source):
    """Be a source whose file is in memory."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)
        self.fd = -1

    def read(self, offset: int, size: int) -> bytes:
        return self.data[offset : offset + size]


def decode(data: bytes) -> Decoded:
    """Decode a pickle held in memory."""
    return Machine(FromBytes(data), 0, len(data)).decode()


def plain(node: object, data: bytes) -> object:
    """Turn nodes back into the values that a real unpickler would have made."""
    if isinstance(node, Pairs):
        return {key: plain(value, data) for key, value in node.items()}
    if isinstance(node, list):
        return [plain(item, data) for item in node]
    if isinstance(node, tuple) and not isinstance(node, Blob | Global):
        return tuple(plain(item, data) for item in node)
    if isinstance(node, Blob):
        raw = data[node.offset : node.offset + node.size]
        return raw.decode("utf-8", "surrogatepass") if node.text else raw
    if isinstance(node, Call) and node.path == "_codecs.encode":
        return node.args[0].encode("latin-1")
    if isinstance(node, Call) and node.path == "builtins.bytes":  # protocols below 3 for b""
        return b""
    return node


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner, inner)
        | st.tuples(inner)
        | st.just(())
        | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=4)
    ),
    max_leaves=30,
)


@given(VALUES, st.integers(0, 5))
def test_plain_values_come_out_as_they_went_in(value: object, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    assert plain(decode(data).root, data) == value


@given(VALUES, st.integers(0, 5), st.data())
def test_nothing_but_its_own_error_comes_of_a_damaged_pickle(value: object, protocol: int, data: st.DataObject) -> None:
    pickled = bytearray(pickle.dumps({"a": value, "b": [value, Local(3)]}, protocol))
    for _ in range(data.draw(st.integers(1, 4))):
        pickled[data.draw(st.integers(0, len(pickled) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(PickleError):
        decode(bytes(pickled[: data.draw(st.integers(0, len(pickled)))]))


@given(st.binary(max_size=200))
@example(b"\x80\x02(K\x01t.")
@example(b"}(NNu.")
@example(b"(I1\nI2\nd.")
@example(b"Vabc\n.")
@example(b"cos\nsystem\n(S'x'\ntR.")
@example(b"\x96\xff\xff\xff\xff\xff\xff\xff\x7f.")
@example(b"]\x94h\x00a.")
@example(b"p-1\n.")
def test_nothing_but_its_own_error_comes_of_noise(data: bytes) -> None:
    with contextlib.suppress(PickleError):
        decode(data)


@given(
    st.lists(
        st.sampled_from([bytes([opcode.code.encode("latin-1")[0]]) for opcode in pickletools.opcodes]), max_size=60
    )
)
def test_nothing_but_its_own_error_comes_of_random_opcodes(codes: list[bytes]) -> None:
    with contextlib.suppress(PickleError):
        decode(b"".join(code + b"\x01" for code in codes))


class Local:
    """Be a class that the machine can't know."""

    def __init__(self, value: object) -> None:
        self.value = value


class Nested:
    """Hold a class that protocols below 4 name by getattr."""

    class Inner(Local):
        """Be named Nested.Inner."""


def machine_for(data: bytes) -> Machine:
    """Run a pickle that may be broken and return the machine."""
    machine = Machine(FromBytes(data), 0, len(data))
    with contextlib.suppress(PickleError):
        machine.decode()
    return machine


@pytest.mark.parametrize("protocol", range(6))
def test_unknown_classes_become_leaves_that_keep_what_they_were_given(protocol: int) -> None:
    root = decode(pickle.dumps({"x": Local([1, 2])}, protocol)).root
    leaf = dict(root.items())["x"]
    assert isinstance(leaf, Call)
    assert [state.items() for state in leaf.state] == [[("value", [1, 2])]]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_nested_class_has_one_name_in_every_protocol(protocol: int) -> None:
    uses = machine_for(pickle.dumps(Nested.Inner(1), protocol)).uses
    assert Global(__name__, "Nested.Inner") in uses


@pytest.mark.parametrize("protocol", range(6))
def test_collections_keep_their_contents(protocol: int) -> None:
    value = {
        "ordered": collections.OrderedDict(a=1),
        "default": collections.defaultdict(int, b=2),
        "deque": collections.deque([1, 2]),
        "set": {5},
    }
    root = dict(decode(pickle.dumps(value, protocol)).root.items())
    assert root["ordered"].items() == [("a", 1)]
    assert list(root["default"].flat) == ["b", 2]
    assert 1 in (list(root["deque"].elements) or root["deque"].args[0])
    assert root["set"] == [5] or root["set"].args == ([5],)


def test_long_strings_stay_in_the_file() -> None:
    value = {"text": "ü" * 100_000, "bytes": bytes(3_000_000), "after": 1}
    data = pickle.dumps(value, 4)
    root = dict(decode(data).root.items())
    assert isinstance(root["bytes"], Blob)
    assert isinstance(root["text"], Blob)
    assert plain(decode(data).root, data) == value


def test_pickles_larger_than_the_buffer_are_read_in_pieces() -> None:
    value = [f"entry number {index}" for index in range(60_000)]
    for protocol in range(6):
        assert decode(pickle.dumps(value, protocol)).root == value


def test_tables_of_integers_come_out_whole() -> None:
    """Longer than the buffer, of every width, and cut off at any place."""
    chance = random.Random(0)
    limits = (255, 256, 65_535, 65_536, 2**31 - 1, 2**31, 2**40)
    table = [chance.choice((1, -1)) * chance.choice(limits) + chance.randint(-1, 1) for _ in range(120_000)]
    for protocol in range(6):
        assert decode(pickle.dumps(table, protocol)).root == table
    data = pickle.dumps(table[:90], 2)
    for size in range(2, len(data)):
        with pytest.raises(CutOffError):
            decode(data[:size])


def test_it_ends_at_its_stop_and_says_where() -> None:
    first, second = pickle.dumps([1]), pickle.dumps([2])
    assert decode(first + second).stop == len(first)


# --- what can't happen ----------------------------------------------------------------------------------------------


class Payload:
    """Leave a trace when it is unpickled for real."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (f"open({str(self.trace)!r}, 'w').close()",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_payload_is_seen_and_never_runs(tmp_path: Path, protocol: int) -> None:
    trace = tmp_path / "trace"
    data = pickle.dumps(Payload(trace), protocol)
    assert machine_for(data).uses[Global("__builtin__" if protocol < 3 else "builtins", "exec")] == ["named", "called"]
    assert not trace.exists()
    pickle.loads(data)
    assert trace.exists(), "the payload works where pickles are loaded"


BOMBS = {
    "memo index": b"\x80\x02Nr\xff\xff\xff\x0f.",
    "memo index as text": b"Np268435455\n.",
    "marks": b"(" * 200_000 + b".",
    "integer": b"\x8b" + struct.pack("<I", 1 << 24) + bytes(1 << 24) + b".",
    "decimal": b"L" + b"9" * 3000 + b"L\n.",
    "globals": b"".join(b"cm\nn%d\n" % number for number in range(10_000)) + b".",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused(name: str) -> None:
    with pytest.raises(BombError):
        decode(BOMBS[name])


HUGE = {
    "empty lists": b"]" * 300_000,
    "empty dictionaries": b"}" * 300_000,
    "constants": b"N" * 300_000,
    "copies": b"]\x94" + b"h\x00" * 300_000,
    "memo": b"N" + b"\x94" * 300_000,
    "duplicates": b"N" + b"2" * 300_000,
    "appended": b"]" + b"(" + b"N" * 300_000 + b"e",
    "strings": b"X\x90\x01\x00\x00" + b"\xf0\x9f\x98\x80" * 100 + b"2" * 300_000,
}


@pytest.mark.parametrize("name", HUGE)
def test_what_would_take_much_memory_is_given_up(name: str) -> None:
    """Long before it takes more than the budget; the real budget is tried in test_hostile_files.py."""
    data = HUGE[name] + b"."
    machine = Machine(FromBytes(data), 0, len(data), budget=2_000_000)
    with pytest.raises(TooLargeError):
        machine.decode()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "cut off"),
        (b"\x80\x02]", "cut off"),
        (b"\x80\x06N.", "protocol"),
        (b"\xff", "unknown opcode"),
        (b"h\x05.", "at byte"),
        (b"K\x01\x85R.", "at byte"),
        (b"X\x10\x00\x00\x00abc", "cut off"),
        (b"K\x01K\x02a.", "appended to a int"),
        (b"(K\x01d.", "without a value"),
        (b"N)R.", "NoneType is called"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, reason: str) -> None:
    with pytest.raises(PickleError, match=reason):
        decode(data)


def test_chains_of_calls_cost_no_more_than_their_bytes() -> None:
    """Each call's cost must not grow with the length of the chain before it."""
    data = b"cm\nf\n" + b")R" * 300_000 + b"."
    assert isinstance(decode(data).root, Call)
    built = b"cm\nf\n)R" + b"Nb" * 300_000 + b"."
    assert len(decode(built).root.state) == 300_000


@pytest.mark.parametrize("protocol", [1, 2, 3])
def test_lists_of_texts(protocol: int) -> None:
    """One after the other, each noted; and between them some that are long, recalled, or no text."""
    chance = random.Random(protocol)
    kinds = ("x", "", "\u00e9", "\ud800", "y" * 199, "y" * 200, "y" * 201, "z" * 70_000)
    texts: list[Any] = [f"{index}{chance.choice(kinds[: 7 if index % 50 else 8])}" for index in range(1_500)]
    texts[::7] = texts[1::7]
    texts[400:410] = range(10)
    data = pickle.dumps(texts, protocol)
    assert plain(decode(data).root, data) == texts


def test_a_text_in_a_row_that_is_noted_under_another_number() -> None:
    texts = [f"t{index}" for index in range(300)]
    data = pickle.dumps(texts, 2)
    place = data.find(b"t280") + 4
    assert data[place : place + 1] == b"r"
    other = data[: place + 1] + (5).to_bytes(4, "little") + data[place + 5 :]
    assert decode(other[:-2] + b"h\x05e.").root == [*texts, "t280"]
    with pytest.raises(PickleError):
        decode(data[: place + 1] + b"\xff\xff\xff\x7f" + data[place + 5 :])
    for end in range(place - 20, place + 20):
        with pytest.raises(PickleError):
            decode(data[:end])
