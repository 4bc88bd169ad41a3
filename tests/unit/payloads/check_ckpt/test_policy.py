"""What loading would do: attacks are told from the classes that honest checkpoints hold."""

from __future__ import annotations

import collections
import functools
import inspect
import logging
import operator
import os
import pathlib
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

import numpy
import pytest
import torch
from numpy.random._pickle import __randomstate_ctor
from torch._tensor import _rebuild_from_type_v2
from torch._weights_only_unpickler import _get_allowed_globals

from remoterun.payloads.check_ckpt.pickles.nodes import Global
from remoterun.payloads.check_ckpt.pickles.policy import classify, judge
from tests.unit.payloads.check_ckpt.support import audit, save

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


def split(path: str) -> Global:
    """Cut a dotted path at its last dot."""
    module, _, name = path.rpartition(".")
    return Global(module, name)


def rules(*uses: tuple[str, str, str]) -> dict[str, str]:
    """Judge globals given as module, name and way of use."""
    found = judge(
        {Global(module, name): ["named", *filter(None, way.split("+"))] for module, name, way in uses}, [], "data.pkl"
    )
    return {each.rule: each.message for each in found}


def test_what_torch_loads_safely_needs_no_word() -> None:
    """The list is torch's own, of the version that is installed here."""
    refused = [path for path in sorted(_get_allowed_globals()) if classify(split(path)) != "plain"]
    assert refused == []


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("argparse", "Namespace"),
        ("numpy.core.multiarray", "scalar"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy", "dtype"),
        ("numpy", "ndarray"),
        ("numpy", "float64"),
        ("numpy.dtypes", "Float64DType"),
        ("numpy.random._pickle", "__randomstate_ctor"),
        ("numpy._core.numeric", "_frombuffer"),
        ("pathlib", "PosixPath"),
        ("pathlib._local", "PosixPath"),
        ("datetime", "datetime"),
        ("collections", "defaultdict"),
        ("collections", "deque"),
        ("functools", "partial"),
        ("__builtin__", "set"),
        ("copy_reg", "_reconstructor"),
        ("logging", "getLogger"),
        ("re", "_compile"),
        ("torch.nn.modules.linear", "Linear"),
        ("torch.nn.modules.container", "Sequential"),
        ("torch.optim.adamw", "AdamW"),
        ("torch.distributed.tensor", "DTensor"),
        ("torch.torch_version", "TorchVersion"),
        ("omegaconf.dictconfig", "DictConfig"),
        ("transformers.training_args", "TrainingArguments"),
        ("transformers.trainer_utils", "IntervalStrategy"),
        ("megatron.core.enums", "ModelType"),
        ("my_project.trainer", "Trainer.State"),
        ("__main__", "Config"),
        ("ultralytics.nn.tasks", "DetectionModel"),
        ("my_project.utils", "rebuild_thing"),
        ("builtins", "getattr"),
        ("__builtin__", "xrange"),
        ("builtins", "ValueError"),
        ("numpy.random.bit_generator", "__pyx_unpickle_SeedSequence"),
        ("numpy.ma.core", "_mareconstruct"),
        ("pandas.core.indexes.base", "_new_Index"),
        ("decimal", "Decimal"),
        ("uuid", "UUID"),
        ("itertools", "count"),
        ("torch.storage", "_load_from_bytes"),
        ("types", "GenericAlias"),
        ("_operator", "getitem"),
        ("_functools", "reduce"),
        ("__builtin__", "iter"),
        ("scipy.sparse._csr", "csr_matrix"),
        ("scipy.sparse._coo", "coo_array"),
        ("scipy.sparse.csr", "csr_matrix"),
    ],
)
def test_honest_globals_are_no_more_than_information(module: str, name: str) -> None:
    for way in ("", "called", "called+built"):
        assert set(rules((module, name, way))) <= {"CK120"}


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("posix", "system"),
        ("nt", "system"),
        ("subprocess", "Popen"),
        ("builtins", "eval"),
        ("__builtin__", "exec"),
        ("builtins", "__import__"),
        ("runpy", "run_path"),
        ("importlib", "import_module"),
        ("socket", "create_connection"),
        ("pty", "spawn"),
        ("ctypes", "CDLL"),
        ("torch.serialization", "os.system"),
        ("torch.hub", "subprocess.run"),
        ("my_project", "Thing.__init__.__globals__"),
        ("builtins", "object.__subclasses__"),
    ],
)
def test_code_is_bad_even_when_it_is_only_named(module: str, name: str) -> None:
    """partial(os.system, ...) and _rebuild_from_type_v2(os.system, ...) call what they are given."""
    assert "CK101" in rules((module, name, ""))
    assert "CK101" in rules((module, name, "called"))


@pytest.mark.parametrize(("module", "name"), [("shutil", "rmtree"), ("pickle", "loads"), ("builtins", "open")])
def test_risky_functions_may_be_referred_to_and_not_called(module: str, name: str) -> None:
    assert set(rules((module, name, ""))) == {"CK120"}
    assert "CK101" in rules((module, name, "called"))


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("numpy.testing._private.utils", "runstring"),
        ("torch.utils.bottleneck.__main__", "run_cprofile"),
        ("torch.serialization", "load"),
        ("cloudpickle.cloudpickle", "_make_function"),
        ("types", "CodeType"),
        ("linecache", "getline"),
        ("io", "FileIO"),
        ("zipfile", "ZipFile"),
        ("logging", "FileHandler"),
        ("logging.handlers", "SocketHandler"),
        ("scipy.sparse._matrix_io", "save_npz"),
        ("scipy.sparse._construct", "random_array"),
    ],
)
def test_functions_that_no_checkpoint_needs_are_suspect(module: str, name: str) -> None:
    assert "CK100" in rules((module, name, "called"))
    assert "CK101" not in rules((module, name, "called"))


TYPES = (int | None, Annotated[int | str, "x"], list[int], tuple[int, ...], Literal["a"], Callable[[int], str])


@pytest.mark.parametrize("protocol", [2, 4])
def test_types_of_annotations_are_data(tmp_path: Path, protocol: int) -> None:
    """Modules of torch_geometric have them, and so has what keeps a signature or the fields of a dataclass."""
    save({"model": {"w": torch.randn(4, 4)}, "types": TYPES}, tmp_path / "c.pt", pickle_protocol=protocol)
    heard = audit(tmp_path)
    assert (heard.record["verdict"], heard.rules()) == ("ok", {"CK120"}), heard.findings


class Built:
    """Be what calling a function returns, once it is loaded."""

    def __init__(self, function: object, *args: object) -> None:
        self.call = function, args

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize(
    ("function", "rule"), [(shutil.rmtree, "CK101"), (os.system, "CK101"), (functools.partial(print), "CK100")]
)
def test_what_reduce_calls_is_called(tmp_path: Path, function: object, rule: str) -> None:
    save(
        {"model": {"w": torch.randn(4, 4)}, "x": Built(functools.reduce, function, ("/nowhere", "r"))},
        tmp_path / "c.pt",
    )
    assert rule in audit(tmp_path).rules()


_ATTRIBUTES = Built(functools.reduce, getattr, [logging.getLogger, "__globals__"])
_EVAL = Built(operator.getitem, Built(operator.getitem, _ATTRIBUTES, "__builtins__"), "eval")
_BODY = Built(functools.partial, _EVAL, "1 + 1")
_METHOD = Built(getattr, Built(logging.getLogger, "x"), "info")
_BUILTINS = Built(getattr, Built(getattr, _METHOD, "__func__"), "__builtins__")
_NEW_CLASS = Built(type, "New", (), _BUILTINS)
_WRITE = Built(getattr, Built(pathlib.PosixPath, "/nowhere/at/all"), "write_text")


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(_ATTRIBUTES, id="attributes"),
        pytest.param(Built(list, Built(iter, _BODY, 2)), id="iterator"),
        pytest.param(Built(operator.getitem, Built(collections.defaultdict, _BODY), "key"), id="missing key"),
        pytest.param(Built(functools.reduce, _BODY, []), id="reduce"),
        pytest.param(_BUILTINS, id="attributes of attributes"),
        pytest.param(Built(getattr, Built(logging.getLogger, "x"), "__class__"), id="what every object has"),
        pytest.param(_NEW_CLASS, id="class"),
        pytest.param(Built(_rebuild_from_type_v2, Built(functools.partial, _WRITE), torch.Tensor, (), {}), id="torch"),
        pytest.param(Built(__randomstate_ctor, "text", _WRITE), id="numpy"),
    ],
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_what_makes_data_may_reach_every_function(tmp_path: Path, value: object, protocol: int) -> None:
    """None of these names a function that runs code, and with such steps a file can run any."""
    save({"model": {"w": torch.randn(4, 4)}, "x": value}, tmp_path / "c.pt", pickle_protocol=protocol)
    assert "CK100" in audit(tmp_path).rules(above_info=True)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(Built(type, "New", (), {"a": 1}), id="class"),
        pytest.param(Built(iter, Built(functools.partial, int), 2), id="iterator"),
        pytest.param(Built(functools.reduce, max, [1, 2]), id="reduce"),
        pytest.param(Built(operator.getitem, {"a": 1}, "a"), id="item"),
        pytest.param(Built(getattr, Built(slice, 1), "__class__"), id="attribute"),
    ],
)
def test_each_step_on_the_way_is_suspect_by_itself(tmp_path: Path, value: object) -> None:
    save({"model": {"w": torch.randn(4, 4)}, "x": value}, tmp_path / "c.pt")
    assert "CK100" in audit(tmp_path).rules(above_info=True)


class Trainer:
    """Have a method that something else keeps."""

    def rate(self) -> float:
        """Return a rate."""
        return 0.1


@pytest.mark.parametrize(
    "value",
    [
        Trainer().rate,
        type(None),
        torch.ones(2).max(0),
        numpy.random.RandomState(1),
        numpy.random.default_rng(1),
        inspect.signature(Trainer),
    ],
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_methods_and_random_states_are_data(tmp_path: Path, value: object, protocol: int) -> None:
    save({"model": {"w": torch.randn(4, 4)}, "x": value}, tmp_path / "c.pt", pickle_protocol=protocol)
    assert audit(tmp_path).rules(above_info=True) == set()


def test_calling_what_a_call_returned_is_suspect() -> None:
    assert "CK100" in rules(("operator", "methodcaller", "called indirectly"))
    assert "CK100" not in rules(("operator", "methodcaller", "called"))


def test_the_globals_are_listed() -> None:
    message = rules(*(("project", f"Class{index}", "called") for index in range(9)))["CK120"]
    assert "project.Class0" in message
    assert "and 6 more" in message
