"""Records behave like frozen dataclasses."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, field, fields, replace

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
