"""Text of a file as it is shown: printable, bounded, and never the same for two different texts."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from remoterun.payloads.check_ckpt.model import clean_text


@example("\x01a.pt", "\x02a.pt")
@example("a\\n", "a\n")
@example("x" * 400, "x" * 401)
@example("\udcff", "\ufffd")
@given(st.text(max_size=600), st.text(max_size=600))
def test_shown_text(one: str, other: str) -> None:
    shown = clean_text(one)
    assert shown.isprintable()
    assert len(shown) <= 300
    shown.encode("utf-8")
    if one != other and len(one) <= 40 and len(other) <= 40:
        assert shown != clean_text(other)


def test_what_differs_in_the_middle_of_a_long_name_still_differs() -> None:
    assert clean_text("a" * 500 + "b" + "c" * 500) != clean_text("a" * 500 + "d" + "c" * 500)


def test_plain_names_are_left_alone() -> None:
    assert clean_text("step_2000/checkpoint (1).pt") == "step_2000/checkpoint (1).pt"
