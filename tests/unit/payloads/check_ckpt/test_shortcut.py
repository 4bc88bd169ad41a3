"""The shortcut through a tensor's opcodes: it comes to what they come to one by one, in sound pickles and in others."""

from __future__ import annotations

import functools
import gc
import io
import pickle
import pickletools
import random
import weakref
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from remoterun.payloads.check_ckpt.pickles.machine import Machine
from remoterun.payloads.check_ckpt.pickles.nodes import (
    Blob,
    Call,
    Global,
    Pairs,
    Persistent,
    PickleError,
    TooLargeError,
)
from remoterun.payloads.check_ckpt.pickles.rebuild import Broken, rebuild, storages_of
from remoterun.payloads.check_ckpt.pickles.saved import MOST_STORAGES, REBUILD, Saved, Shortcut
from tests.unit.payloads.check_ckpt.test_machine import FromBytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.torch


class Nowhere(Shortcut):
    """Take no shortcut."""

    def take(self, machine: Machine) -> bool:
        return False


class StepByStep(Machine):
    """Run every opcode."""

    def __init__(self, data: bytes) -> None:
        super().__init__(FromBytes(data), 0, len(data))
        self.shortcut = Nowhere()


def described(node: Any, seen: dict[int, int]) -> Any:
    """Describe what was decoded: its values, and which of what can be changed is one and the same."""
    if isinstance(node, Blob | Global) or not isinstance(node, Pairs | Call | Persistent | list | tuple):
        return type(node).__name__, repr(node)
    if type(node) is tuple:
        return "tuple", [described(each, seen) for each in node]
    if id(node) in seen:
        return "again", seen[id(node)]
    seen[id(node)] = len(seen)
    if isinstance(node, Pairs):
        return "pairs", [described(each, seen) for each in node.flat]
    if isinstance(node, Persistent):
        return "persistent", described(node.id, seen)
    if isinstance(node, Call):
        parts = node.args, node.state, node.flat, node.elements
        return "call", described(node.func, seen), [[described(each, seen) for each in part] for part in parts]
    return "list", [described(each, seen) for each in node]


def outcome(machine: Machine) -> dict[str, Any]:
    """Run a pickle and say all that came of it."""
    try:
        decoded = machine.decode()
    except PickleError as error:
        said = str(error).replace("Saved", "Call")
        return {"error": type(error), "said": said, "uses": machine.uses, "oddities": machine.oddities}
    tensors = [repr(rebuild(each)) for each in nodes(decoded.root) if isinstance(each, Call)]
    return {
        "tensors": tensors,
        "root": described(decoded.root, {}),
        "stop": decoded.stop,
        "storages": storages_of(decoded).keys(),
        "uses": machine.uses,
        "oddities": machine.oddities,
    }


def nodes(root: object) -> Iterator[object]:
    """Yield what is below a node, each once, without asking a tensor for its parts."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop(0)
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if isinstance(node, list | tuple):
            waiting += node
        elif isinstance(node, Pairs):
            waiting += node.flat
        elif isinstance(node, Call):
            args = () if isinstance(node, Saved) else node.args
            waiting += [*args, *node.state, *node.flat, *node.elements]


def compared(data: bytes) -> Machine:
    """See that a pickle comes to the same either way; return the machine that took the shortcut."""
    machine = Machine(FromBytes(data), 0, len(data))
    assert outcome(machine) == outcome(StepByStep(data))
    return machine


def fails(data: bytes) -> bool:
    """Tell whether a pickle can't be decoded, either way."""
    return "error" in outcome(StepByStep(data)) and "error" in outcome(Machine(FromBytes(data), 0, len(data)))


def pickled(value: object, **options: Any) -> bytes:
    """Return the pickle that torch.save makes of a value."""
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    with zipfile.ZipFile(buffer) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))


def pickled_of_old(value: object) -> bytes:
    """Return the pickle that torch.save made of a value before 1.6; those in front of it are three."""
    buffer = io.BytesIO()
    torch.save(value, buffer, _use_new_zipfile_serialization=False)
    data = buffer.getvalue()
    for _ in range(3):
        data = data[StepByStep(data).decode().stop :]
    return data


KINDS = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.uint16)


def tensor_by(chance: random.Random, base: torch.Tensor) -> torch.Tensor:
    """Make a tensor of one of many forms: a view, of a shared storage, a scalar, an empty one, a parameter."""
    kind = chance.choice(KINDS)
    ways = (
        lambda: torch.zeros(chance.choice((1, 3, 255, 256, 300))).to(kind),
        lambda: torch.zeros(chance.randint(1, 4), chance.randint(1, 300)).to(kind),
        lambda: torch.zeros((1,) * chance.randint(0, 9)).to(kind),
        lambda: torch.tensor(1.0),
        lambda: torch.zeros(0, 3),
        lambda: base[chance.randint(0, 5), chance.randint(0, 69) :, :: chance.randint(1, 3)],
        lambda: base.permute(2, 0, 1),
        lambda: torch.zeros(1).expand(70_000, 1),
        lambda: torch.zeros(2, 2, requires_grad=True),
        lambda: torch.nn.Parameter(torch.zeros(3)),
        lambda: torch.zeros(2, 3, dtype=torch.complex64).conj(),
        lambda: torch.zeros(2, 3, device="meta"),
    )
    return chance.choice(ways)()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("seed", range(8))
def test_tensors_of_many_forms(seed: int, protocol: int) -> None:
    chance, base = random.Random(seed), torch.zeros(6, 70, 300)
    listed = [tensor_by(chance, base) for _ in range(120)]
    value = {"named": {f"n{index}": tensor for index, tensor in enumerate(listed)}, "again": listed[::7]}
    machine = compared(pickled(value, pickle_protocol=protocol))
    assert len(machine.shortcut.saved) > 20 or protocol > 3


@pytest.mark.parametrize("made_by", [pickled, pickled_of_old])
def test_most_tensors_of_a_training_state_take_it(made_by: Callable[[object], bytes]) -> None:
    parameters = [torch.nn.Parameter(torch.ones(3, 4)) for _ in range(300)]
    optimizer = torch.optim.AdamW(parameters)
    for each in parameters:
        each.grad = torch.ones(3, 4)
    optimizer.step()
    model = {f"layers.{index}.weight": each.detach() for index, each in enumerate(parameters)}
    machine = compared(made_by({"model": model, "optimizer": optimizer.state_dict()}))
    assert len(machine.shortcut.saved) > 1190


@functools.cache
def usual() -> bytes:
    """Return the pickle of a list of tensors of which most take the shortcut, without its end."""
    data = pickled([*(torch.zeros(2, 3) for _ in range(42)), torch.zeros(4, 5), torch.tensor(1.0), torch.zeros(7)])
    assert data.endswith(b"e.")
    return data[:-2]


@functools.cache
def opcodes() -> tuple[bytes, ...]:
    """Return the same with its end, cut into opcodes."""
    data = usual() + b"e."
    places = [place for _, _, place in pickletools.genops(data) if place is not None]
    return tuple(data[start:end] for start, end in zip(places, [*places[1:], len(data)], strict=True))


@settings(max_examples=60)
@given(st.data())
def test_parts_that_are_recalled_and_replaced(data: st.DataObject) -> None:
    """Everything of a tensor stands in the memo, to be had again, or written over before somebody asks for it."""
    last = usual().count(b"r") + 200
    number = st.integers(last - 60, last).map(lambda place: place.to_bytes(4, "little"))
    more = b""
    for _ in range(data.draw(st.integers(1, 8))):
        place, other = data.draw(number), data.draw(number)
        more += data.draw(st.sampled_from((b"j" + place, b"Nr%b0" % place, b"j%br%b0" % (other, place))))
    compared(usual() + more + usual()[usual().rfind(b"h\x01((") :] + b"e.")


@settings(max_examples=60)
@given(st.data())
def test_broken_tensors(data: st.DataObject) -> None:
    """Damage within the opcodes of tensors, with what stands in front of them whole."""
    broken = bytearray(usual() + b"e.")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(len(broken) // 2, len(broken) - 1))
        way = data.draw(st.sampled_from(("set", "drop", "insert")))
        if way == "set":
            broken[at] = data.draw(st.sampled_from(b"()tQRKMJXhjrq\x85\x86\x87\x88\x89}]N.e\x00\x01\x80\xff"))
        elif way == "drop":
            del broken[at : at + data.draw(st.integers(1, 6))]
        else:
            broken[at:at] = data.draw(st.sampled_from((b"(", b")", b"K\x05", b"N", b"0", b"2", b"M\x05\x00", b"h\x00")))
    compared(bytes(broken))


@settings(max_examples=60)
@given(st.data())
def test_opcodes_that_are_exchanged(data: st.DataObject) -> None:
    codes = list(opcodes())
    places = st.integers(len(codes) // 2, len(codes) - 2)
    for _ in range(data.draw(st.integers(1, 3))):
        at, other = data.draw(places), data.draw(places)
        codes[at], codes[other] = codes[other], codes[at]
    compared(b"".join(codes))


def test_what_is_written_over_is_not_brought_back() -> None:
    """A global in the place of a tensor's part stays there when another part is asked for."""
    first = _memo(usual()) - 7
    places = [(first + index).to_bytes(4, "little") for index in range(7)]
    more = b"cos\nsystem\nr%b0j%b0j%b(S'true'\ntR" % (places[1], places[2], places[1])
    machine = compared(usual() + more + b"e.")
    assert machine.uses[Global("os", "system")] == ["named", "called"]


def _memo(start: bytes) -> int:
    machine = StepByStep(start + b"e.")
    machine.decode()
    return len(machine.memo)


def test_what_is_recalled_may_be_another_by_then() -> None:
    """The numbers under which the name of the function for the order stands are looked up anew once they are reset."""
    tensor = usual()[usual().rfind(b"h\x01((") :]
    compared(usual() + b"cos\nsystem\nq\t0" + tensor + b"e.")
    compared(usual() + b"cos\nsystem\np9\n0" + tensor + b"e.")


def test_the_words_of_a_global_in_a_tuple_are_no_function() -> None:
    tensor = usual()[usual().rfind(b"((") :]
    words = b"X\x0c\x00\x00\x00torch._utilsX\x12\x00\x00\x00_rebuild_tensor_v2\x86"
    assert pickle.loads(words + b".") == REBUILD
    compared(usual() + words + tensor + b"e.")
    assert fails(usual() + words + tensor + b"e.")


def test_shapes_of_too_many_elements_are_broken_whatever_follows() -> None:
    many = b"J\xff\xff\xff\x7f" * 3
    shapes = b"(%bK\x00t" % many, b"(%bt" % many
    number = _memo(usual())
    puts = [b"r" + (number + index).to_bytes(4, "little") for index in range(7)]
    for shape in shapes:
        tensor = b"h\x01((h\x02h\x03X\x02\x00\x00\x0099%bh\x05K\x06t%bQK\x00%b%b%b%b\x89h\t)R%bt%bR%b"
        tensor %= (puts[0], puts[1], shape, puts[2], shape, puts[3], *puts[4:])
        machine = compared(usual() + tensor + b"e.")
        assert isinstance(rebuild(machine.shortcut.saved[-1]), Broken)
        assert machine.shortcut.saved[-1].key == "99"


def test_there_are_only_so_many_storages() -> None:
    """However they are described; what is made of each takes more than its opcodes."""
    number = _memo(usual())
    tensor = b"h\x01((h\x02h\x03X\x06\x00\x00\x00%06dr%bh\x05K\x01tr%bQK\x00))\x89h\t)Rr%btr%bRr%b"
    codes = [usual()]
    for index in range(MOST_STORAGES):
        codes.append(tensor % (index, *(place.to_bytes(4, "little") for place in range(number, number + 5))))
        number += 5
    data = b"".join(codes) + b"e."
    with pytest.raises(TooLargeError, match="120000 storages"):
        Machine(FromBytes(data), 0, len(data)).decode()


def test_what_was_decoded_is_freed_without_the_collector() -> None:
    """An audit runs without it, over thousands of files."""
    gc.collect()
    gc.disable()
    try:
        data = usual() + b"e."
        machine = Machine(FromBytes(data), 0, len(data))
        machine.decode()
        left = weakref.ref(machine)
        del machine
        assert left() is None
    finally:
        gc.enable()


def test_a_pickle_that_ends_within_a_tensor_like_the_one_before() -> None:
    """The last bytes of a memo's number are zeros, so what lacks them is the same number."""
    data = usual()
    last = data.rfind(b"h\x01((")
    for end in range(last, len(data)):
        compared(data[:end])
        assert fails(data[:end])


def test_a_tensor_to_which_others_are_appended() -> None:
    """As a mark that is one too many has it."""
    data = usual()
    start = data.rfind(b"h\x01((") + 2
    compared(data[:start] + b"(" + data[start:] + b"e.")


def test_keys_of_storages_are_digits_in_whatever_tensor() -> None:
    data = usual()
    key = data.rfind(b"X\x02\x00\x00\x00") + 5
    for other in (b"x1", b"1x", b"\xc3\xa9", b" 1", b"\xb2\xb2"):
        compared(data[:key] + other + data[key + 2 :] + b"e.")


@pytest.mark.parametrize("forms", [1, 3, 7])
def test_tensors_that_take_turns(forms: int) -> None:
    """More kinds than are expected after each, keys that grow longer, and all of it more often than once."""
    shapes = [(index + 1, 300) for index in range(forms)]
    value = [torch.zeros(shapes[index * index % forms]) for index in range(130)]
    machine = compared(pickled(value))
    assert [each.like.described.shape for each in machine.shortcut.saved[-100:]] == [
        tuple(each.shape) for each in value[-100:]
    ]


def views(count: int, step: int) -> list[torch.Tensor]:
    """Return parts of two storages, which begin ever further into them."""
    bases = torch.zeros(count * step + 3), torch.zeros(count * step + 3)
    return [bases[index % 2][index * step : index * step + 3] for index in range(count)]


@pytest.mark.parametrize("step", [1, 7, 700, 70_000])
@pytest.mark.parametrize("made_by", [pickled, pickled_of_old])
def test_parts_of_a_few_storages_take_it(made_by: Callable[[object], bytes], step: int) -> None:
    value = views(120, step)
    machine = compared(made_by(value))
    saved = machine.shortcut.saved
    assert len(saved) >= 119
    assert [each.offset for each in saved[-100:]] == [index * step for index in range(20, 120)]
    assert len({each.key for each in saved}) == 2


def test_parts_of_storages_that_are_changed() -> None:
    """Whatever stands in place of the key that is recalled, of the offset, and of all else."""
    data = pickled(views(60, 700))
    start = data.rfind(b"((", 0, data.rfind(b"(("))
    for place in range(start, len(data)):
        for code in (data[place] ^ 1, 0xFF):
            compared(data[:place] + bytes([code]) + data[place + 1 :])


@pytest.mark.parametrize("key", ["exp_avg", "weight"])
def test_labels_of_mappings_that_are_changed(key: str) -> None:
    """Those that every state of an optimizer has, and those that a state dict has once."""
    states = [{"step": torch.tensor(1.0), "exp_avg": torch.ones(3)} for _ in range(26)]
    value = {f"n{index}.weight": torch.ones(3) for index in range(45)} if key == "weight" else states
    data = pickled(value)
    assert len(compared(data).shortcut.saved) > 42
    end = data.rfind(b"((", 0, data.rfind(b"((")) if key == "exp_avg" else data.rfind(b"((")
    for place in range(data.rfind(b"\x89", 0, end) + 3, end + 3):
        for code in (data[place] ^ 1, 0xFF):
            compared(data[:place] + bytes([code]) + data[place + 1 :])


def test_labels_of_many_kinds() -> None:
    labels = ["", "\u00e9", "\ud800", "x" * 190, "x" * 199, "y" * 200, "z" * 300, "w" * 70_000, "\x00", "a.b"]
    value = {f"{index}{label}": torch.ones(2) for index in range(9) for label in labels}
    assert len(compared(pickled(value)).shortcut.saved) > 85
    by_objects = {(index, label): torch.ones(2) for index in range(9) for label in labels}
    compared(pickled([value, by_objects, {index: torch.ones(2) for index in range(50)}]))


def test_storages_are_counted_within_a_mapping_too() -> None:
    value = {f"n{index}": torch.ones(1) for index in range(300)}
    data = pickled(value)
    machine = Machine(FromBytes(data), 0, len(data))
    machine.persistent += [Persistent(None)] * (MOST_STORAGES - 250)
    with pytest.raises(TooLargeError, match="120000 storages"):
        machine.decode()
    assert len(machine.shortcut.saved) < 250


def test_tensors_of_small_files_take_it_too() -> None:
    """As long as the memo holds no more than a byte can number, they are written with other opcodes, then with both."""
    value = {f"n{index}.weight": torch.ones(3) for index in range(70)}
    data = pickled(value)
    assert len(compared(data).shortcut.saved) == 69
    few = pickled({f"n{index}.weight": torch.ones(3) for index in range(12)})
    end = few.rfind(b"((")
    for place in range(few.rfind(b"\x89", 0, end), len(few)):
        for code in (few[place] ^ 1, 0xFF):
            compared(few[:place] + bytes([code]) + few[place + 1 :])


@pytest.mark.parametrize("known", range(200, 256, 5))
def test_numbers_of_the_memo_that_no_longer_fit_in_a_byte(known: int) -> None:
    """Counted up further, they would make other opcodes of those behind them."""
    start = b"]q\x00ctorch._utils\n_rebuild_tensor_v2\nq\x01X\x07\x00\x00\x00storageq\x02ctorch\nFloatStorage\nq\x03"
    start += b"X\x03\x00\x00\x00cpuq\x04h\x04q\x05ccollections\nOrderedDict\nq\x06("
    start += b"".join(b"Nq%c" % number for number in range(7, known))
    tensor = b"((h\x02h\x03X\x02\x00\x00\x0099q\x00h\x05K\x01tq\x01QK\x00))\x89h\x06)Rq\x02tq\x03Rq\x04"
    puts = [place + 1 for place in range(len(tensor)) if tensor[place : place + 1] == b"q"]
    first, step, whole = int.from_bytes(tensor, "little"), sum(1 << 8 * place for place in puts), 1 << 8 * len(tensor)
    numbers = range(known, known + 70, 5)
    tensors = [b"h\x01" + ((first + each * step) % whole).to_bytes(len(tensor), "little") for each in numbers]
    compared(start + b"".join(tensors) + b"e.")
    for number in range(len(tensors)):
        compared(start + b"".join(tensors[:number]) + b"e.")
