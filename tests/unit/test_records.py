"""Records behave like frozen dataclasses."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field, fields, replace
from dataclasses import dataclass as std_dataclass
from inspect import signature
from typing import Any

import pytest

from remoterun.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Hold a place."""

    x: int
    y: int = 2
    tags: tuple[str, ...] = ()
    secret: bytes = field(default=b"", repr=False)
    note: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Other:
    """Hold the same fields as a point, in order."""

    x: int
    y: int = 2


def test_equality_hash_and_repr() -> None:
    assert Point(x=1) == Point(x=1, y=2)
    assert Point(x=1) == Point(x=1, note="not compared")
    assert Point(x=1) != Point(x=2)
    assert Point(x=1) != Other(1)  # type: ignore[comparison-overlap]
    assert len({Point(x=1), Point(x=1), Point(x=3)}) == 2
    assert repr(Point(x=1, secret=b"hidden")) == "Point(x=1, y=2, tags=(), note='')"


def test_frozen() -> None:
    point = Point(x=1)
    with pytest.raises(FrozenInstanceError):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del point.x
    with pytest.raises(AttributeError):
        point.z = 1  # type: ignore[attr-defined]
    assert not hasattr(point, "__dict__")


def test_replace_copy_and_pickle() -> None:
    point = Point(x=1, tags=("a",))
    assert replace(point, x=5) == Point(x=5, tags=("a",))
    assert copy.deepcopy(point) == point
    assert pickle.loads(pickle.dumps(point)) == point
    assert [item.name for item in fields(point)] == ["x", "y", "tags", "secret", "note"]


def test_only_frozen_records_are_made() -> None:
    with pytest.raises(TypeError, match="frozen"):
        dataclass(frozen=False, slots=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Named(Point):
    """Hold a place with a name, and what is reckoned of them."""

    name: str
    tried: list[str] = field(default_factory=list)
    kind: str = field(default="place", init=False)
    seen: list[str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.tried.append(self.name)

    @property
    def double(self) -> int:
        return 2 * self.x


@dataclass(frozen=True, slots=True)
class Nothing:
    """Hold nothing."""


def test_a_record_of_a_record_has_the_fields_of_both() -> None:
    one, other = Named(x=1, name="a"), Named(x=1, name="a")
    assert one == other
    assert one != Point(x=1)
    assert (one.tried, one.kind, one.seen, one.double) == (["a"], "place", [], 2)
    assert one.tried is not other.tried
    assert tuple(Named.__slots__) == ("name", "tried", "kind", "seen")
    assert not hasattr(one, "__dict__")
    assert replace(one, x=3, tried=["b"]).tried == ["b", "a"]
    assert Nothing() == Nothing()


@pytest.mark.parametrize("make", [
    Point,
    lambda: Point(1),  # type: ignore[call-arg]
    lambda: Point(x=1, z=3),  # type: ignore[call-arg]
    Other,
    lambda: Other(1, 2, 3),  # type: ignore[call-arg]
    lambda: Nothing(1),  # type: ignore[call-arg]
    lambda: Named(x=1, name="a", kind="other"),  # type: ignore[call-arg]
])  # fmt: skip
def test_what_does_not_fit_is_refused_the_first_time_and_ever_after(make: Callable[[], object]) -> None:
    for _ in range(2):
        with pytest.raises(TypeError, match=r"__init__\(\)"):
            make()


def test_it_behaves_as_the_standard_librarys() -> None:
    standard: Any = std_dataclass(frozen=True, slots=True)(type("Other", (), {
        "__annotations__": {"x": "int", "y": "int"}, "y": 2, "__doc__": "Hold."
    }))  # fmt: skip
    assert repr(standard(1)) == repr(Other(1))
    assert hash(standard(1, 3)) == hash(Other(1, 3))
    Other(1)
    assert [*signature(standard).parameters] == [*signature(Other).parameters]
    assert standard.__match_args__ == Other.__match_args__
