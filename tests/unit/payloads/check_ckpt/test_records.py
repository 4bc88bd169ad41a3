"""Records do what named tuples do, and patterns what regular expressions do, before and after they are first needed."""

from __future__ import annotations

import gc
import re
from typing import NamedTuple

import pytest

from remoterun.payloads.check_ckpt.patterns import pattern
from remoterun.payloads.check_ckpt.records import Record


class Named(NamedTuple):
    """Be what a record is held against."""

    path: str
    size: int = 0
    tags: tuple[str, ...] = ()

    @property
    def twice(self) -> int:
        """Return a number."""
        return 2 * self.size


class Recorded(Record):
    """Be the same as a record."""

    path: str
    size: int = 0
    tags: tuple[str, ...] = ()

    @property
    def twice(self) -> int:
        """Return a number."""
        return 2 * self.size

    @classmethod
    def of(cls, path: str) -> Recorded:
        """Make one."""
        return cls(path)


def test_a_record_is_a_named_tuple() -> None:
    for values, named in [(("a",), {}), (("a", 3), {"tags": ("x",)}), ((), {"size": 1, "path": "b"})]:
        one, other = Recorded(*values, **named), Named(*values, **named)  # type: ignore[arg-type]
        assert tuple(one) == other
        assert hash(one) == hash(other)
        assert (one.path, one.size, one.tags, one.twice) == (other.path, other.size, other.tags, other.twice)
        assert tuple(one._replace(size=9)) == other._replace(size=9)
        assert repr(one) == repr(other).replace("Named", "Recorded")
        assert type(one._replace(size=9)) is Recorded
        assert not hasattr(one, "__dict__")
    assert Recorded.of("c") == ("c", 0, ())
    assert Recorded.__doc__ == "Be the same as a record."


@pytest.mark.parametrize("kind", [Recorded, Named])
def test_what_does_not_fit_is_refused(kind: type[Named]) -> None:
    with pytest.raises(TypeError, match="path"):
        kind()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        kind("a", 1, (), 4)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="other"):
        kind("a", other=1)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        kind("a").size = 4  # type: ignore[misc]


def test_the_first_of_a_kind_may_be_made_of_a_sequence() -> None:
    class Mark(Record):
        dtype: str
        digest: int

    first, second = (Mark._make(values) for values in (["f4", 1], iter(["f8", 2])))
    assert (first.digest, second.dtype) == (1, "f8")


def test_the_first_of_a_kind_may_be_made_while_memory_is_tidied() -> None:
    class Mark(Record):
        dtype: str
        digest: int = 4

    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        mark = Mark("f4")
    finally:
        gc.set_threshold(*before)
    assert (mark.dtype, mark.digest) == ("f4", 4)


def test_a_pattern_is_compiled_when_it_is_needed() -> None:
    broken = pattern("(")
    with pytest.raises(re.error):
        broken.search("")
    step = pattern(r"step_(\d+)", re.IGNORECASE)
    assert [match.group(1) for match in map(step.search, ("STEP_3", "step_40")) if match] == ["3", "40"]
    assert step.fullmatch("a step_3") is None
    assert step.findall("step_1 step_2") == ["1", "2"]
    assert pattern(rb"\x80[\x02-\x05]").search(b"\x00\x80\x02")
    assert step.pattern == r"step_(\d+)"
