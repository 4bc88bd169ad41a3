"""Pickles that name nothing dangerous and still write a file: each is run, and none is harmless in an audit."""

from __future__ import annotations

import contextlib
import pickle
import struct
from typing import TYPE_CHECKING

import pytest
import torch
from torch.distributed.checkpoint.metadata import MetadataIndex

from tests.unit.payloads.check_ckpt.support import audit, save, stored_zip, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.torch


def plain(value: object) -> bytes:
    """Write the opcodes of a value."""
    return pickle.dumps(value, 2)[2:-1]


def named(path: str) -> bytes:
    """Write the opcode of a global, as "module:name"."""
    module, _, name = path.partition(":")
    return f"c{module}\n{name}\n".encode()


def called(path: str, *args: bytes) -> bytes:
    """Write the opcodes of a call."""
    return named(path) + b"(" + b"".join(args) + b"tR"


def made(path: str, *args: bytes) -> bytes:
    """Write the opcodes of an object that is not initialised."""
    return named(path) + b"(" + b"".join(args) + b"t\x81"


def having(target: bytes, **state: bytes) -> bytes:
    """Write the opcodes of an object's state."""
    return target + b"}(" + b"".join(plain(name) + value for name, value in state.items()) + b"ub"


def namespace(**state: bytes) -> bytes:
    """Write the opcodes of an object with attributes."""
    return having(made("types:SimpleNamespace"), **state)


def touch(path: str) -> bytes:
    """Write a method that makes a file."""
    return called("builtins:getattr", called("pathlib:PosixPath", plain(path)), plain("touch"))


def opened(path: str) -> bytes:
    """Write a function that makes a file."""
    return called("functools:partial", named("builtins:open"), plain(path), plain("w"))


def copied(*path: str) -> bytes:
    """Write a function that copies a file, to the place it is given or to this one."""
    return called("functools:partial", named("shutil:copyfile"), plain(__file__), *map(plain, path))


def mode(path: str) -> bytes:
    """Write a method that makes a file, whatever it is given."""
    return called("functools:partial", touch(path), plain(0o600))


def loader(path: str) -> bytes:
    """Write a loader that makes a file when it is read."""
    return called("torch.utils.data:DataLoader", *map(plain, ([1], 1, False, None, None, 0)), mode(path))


def inner(path: str) -> bytes:
    """Write a pickle that makes a file, as numbers."""
    return plain(list(b"\x80\x02" + called("io:FileIO", plain(path), plain("w")) + b"."))


def archive(path: str) -> bytes:
    """Make an archive as torch does, of which the pickle makes a file."""
    data = b"\x80\x02" + called("io:FileIO", plain(path), plain("w")) + b"."
    return stored_zip({"c/data.pkl": data, "c/version": b"3\n", "c/byteorder": b"little"})


def held(data: bytes) -> bytes:
    """Write bytes as such."""
    return b"B" + struct.pack("<I", len(data)) + data


EFFECTS: dict[str, Callable[[str], bytes]] = {
    "method of a namespace": lambda path: called("builtins:dict", namespace(keys=touch(path))),
    "function of a namespace": lambda path: called("builtins:dict", namespace(keys=copied(path))),
    "append": lambda path: namespace(append=copied()) + plain(path) + b"a",
    "append with a class": lambda path: namespace(append=named("logging:FileHandler")) + plain(path) + b"a",
    "append with torch's class": lambda path: (
        namespace(append=named("torch._C:PyTorchFileWriter")) + plain(path) + b"a"
    ),
    "extend": lambda path: namespace(extend=mode(path)) + b"(" + plain(1) + plain(2) + b"e",
    "second state": lambda path: namespace(__setstate__=copied()) + plain(path) + b"b",
    "constructor with a function": lambda path: called("configparser:ConfigParser", b"N", opened(path)),
    "constructor by an old name": lambda path: called("ConfigParser:ConfigParser", b"N", opened(path)),
    "context": lambda path: called("contextlib:_GeneratorContextManager", opened(path), b")", b"}"),
    "base": lambda path: called("copyreg:_reconstructor", named("logging:FileHandler") * 2, plain(path)),
    "opened": lambda path: called("argparse:FileType", plain("w")) + plain((path,)) + b"R",
    "class within a module": lambda path: b"\x80\x04" + called("pathlib:io.FileIO", plain(path), plain("w")),
    "torch's way to a class": lambda path: b"\x80\x04" + called("torch.hub:zipfile.ZipFile", plain(path), plain("w")),
    "torch's own class": lambda path: called("torch.package:PackageExporter", plain(path)),
    "what C++ has": lambda path: called("torch._C:PyTorchFileWriter", plain(path)),
    "numpy's class": lambda path: called("numpy.lib._iotools:StringConverter", mode(path)),
    "dying object": lambda path: called("weakref:ReferenceType", made("string:Formatter"), mode(path)),
    "list of a loader": lambda path: called("builtins:list", loader(path)),
    "set of a loader": lambda path: called("builtins:set", loader(path)),
    "dict of a list of a loader": lambda path: called("builtins:dict", b"](" + loader(path) + b"e"),
    "bytes of numbers": lambda path: called("torch.storage:_load_from_bytes", called("builtins:bytes", inner(path))),
    "zip within": lambda path: called("torch.storage:_load_from_bytes", held(archive(path))) + held(bytes(1 << 17)),
    "loading through torch": lambda path: called(
        "torch._tensor:_rebuild_from_type_v2",
        named("torch.storage:_load_from_bytes"),
        named("builtins:int"),
        called("builtins:tuple", b"](" + called("builtins:bytes", inner(path)) + b"e"),
        b"}",
    ),
    "environment": lambda path: (
        having(made("os:_Environ"), encodekey=copied(), encodevalue=named("builtins:str"), _data=b"}")
        + plain(path)
        + plain("x")
        + b"s"
    ),
}


@pytest.mark.parametrize("effect", EFFECTS.values(), ids=EFFECTS)
def test_what_writes_a_file_when_it_is_loaded_is_suspect(effect: Callable[[str], bytes], tmp_path: Path) -> None:
    marker = tmp_path / "made"
    data = b"\x80\x02" + effect(str(marker)) + b"."
    with contextlib.suppress(Exception):
        pickle.loads(data)
    assert marker.exists()
    heard = audit(write(tmp_path / "c.pkl", data))
    assert heard.rules() & {"CK100", "CK101"}, heard.findings


@pytest.mark.parametrize(
    "data",
    [
        plain([1] * 200_000) + b"q\x10" + b"0" + named("queue:Queue") + b"q\x11" + b"0h\x11h\x10\x85R" * 30_000,
        plain(tuple(range(300))) + b"q\x10" + b"0" + named("queue:Queue") + b"q\x11" + b"0h\x11h\x10R" * 10_000,
        b")" + b"q\x10h\x10\x86" * 200 + b"q\x10" + named("queue:Queue") + b"h\x10\x85R",
        named("functools:partial")
        + b"q\x10"
        + named("builtins:int")
        + b"q\x11"
        + b"0h\x10h\x11\x85Rq\x11" * 20_000
        + named("queue:Queue")
        + b"q\x12"
        + b"0h\x12h\x11\x85R" * 20_000,
    ],
    ids=["list", "arguments", "tuples", "chain"],
)
@pytest.mark.timeout(60)
def test_looking_at_what_is_handed_on_takes_no_longer_than_the_budget_allows(data: bytes, tmp_path: Path) -> None:
    write(tmp_path / "c.pkl", b"\x80\x02" + data + b".")
    assert audit(tmp_path / "c.pkl").rules()


class Holder:
    """Belong to a project, which may keep what it likes."""


@pytest.mark.parametrize("protocol", [2, 4])
def test_what_honest_objects_keep_and_ask_for_is_information(tmp_path: Path, protocol: int) -> None:
    holder = Holder()
    holder.__dict__.update(stop=print, metric=max, path=tmp_path, index=MetadataIndex("w"))
    value = {
        "model": torch.nn.TransformerEncoderLayer(8, 2, activation=torch.nn.functional.gelu),
        "holder": holder,
        "schemas": torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()),
        "best": {tmp_path, tmp_path / "a"},
    }
    save(value, tmp_path / "c.pt", pickle_protocol=protocol)
    assert audit(tmp_path).rules(above_info=True) <= {"CK010"}
