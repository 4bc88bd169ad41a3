"""Secrets taken out of text: however they are written, wherever the text is cut, and nothing else."""

from __future__ import annotations

import base64
import json
import shlex
import urllib.parse
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from remoterun.model import Json
from remoterun.secrets import SHORTEST, Redactor

TOKEN = "hf_aB/1+\"x\\ 'é😀\tz&="
SECRETS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=4, max_size=24).filter(
    lambda text: len(text.encode()) >= SHORTEST
)
# Few letters make overlaps, repetitions and prefixes likely.
ALIKE = st.text("ab\\%2", min_size=SHORTEST, max_size=14)
PIECES = st.text("ab\\%25cu06", max_size=12)

WAYS: dict[str, Callable[[str], str]] = {
    "raw": str,
    "URL": urllib.parse.quote,
    "URL, nothing safe": lambda text: urllib.parse.quote(text, safe=""),
    "URL, lower case": lambda text: "".join(f"%{byte:02x}" for byte in text.encode()),
    "form": urllib.parse.quote_plus,
    "URL in a URL": lambda text: urllib.parse.quote(urllib.parse.quote(text, safe=""), safe=""),
    "JSON": json.dumps,
    "JSON, UTF-8": lambda text: json.dumps(text, ensure_ascii=False),
    "JSON in JSON": lambda text: json.dumps(json.dumps(text)),
    "JSON in JSON in JSON": lambda text: json.dumps({"a": json.dumps({"b": json.dumps([text])})}),
    "JSON, each character a number": lambda text: "".join(
        f"\\u{text.encode('utf-16-be')[at : at + 2].hex().upper()}" for at in range(0, len(text.encode("utf-16-be")), 2)
    ),
    "JSON, slashes too": lambda text: json.dumps(text).replace("/", "\\/"),
    "Python": repr,
    "Python, ASCII": ascii,
    "Python, bytes": lambda text: repr(text.encode()),
    "shell": shlex.quote,
}


def redact(text: str, **secrets: str) -> str:
    return Redactor(secrets).text(text)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_writing(way: str) -> None:
    written = WAYS[way](TOKEN)
    clean = redact(f"before {written} after", token=TOKEN)
    assert clean.count("[secret token]") == 1
    assert clean.startswith("before ")
    assert clean.endswith(" after")
    # What may be left around it are quotes, brackets and backslashes.
    rest = clean.replace("[secret token]", "")
    assert len(rest) <= len("before  after") + 60
    assert "hf_" not in rest
    assert "z" not in rest


@given(SECRETS, st.sampled_from([way for way in WAYS if way != "shell"]), PIECES, PIECES)
def test_any_secret_in_every_way(secret: str, way: str, before: str, after: str) -> None:
    written = WAYS[way](secret)
    assert "[secret s]" in redact(before + written + after, s=secret)


@given(SECRETS, st.binary(max_size=5), st.binary(max_size=5), st.booleans())
def test_base64_wherever_it_stands_in_what_was_encoded(secret: str, before: bytes, after: bytes, safe: bool) -> None:
    encode = base64.urlsafe_b64encode if safe else base64.b64encode
    text = encode(before + secret.encode() + after).decode()
    clean = redact(text, s=secret)
    assert clean.count("[secret s]") == 1
    # Bits that neighbours share a character with may stay: less than one character of each end.
    assert len(clean.rstrip("=")) - len("[secret s]") <= len(encode(before)) + len(encode(after)) + 2


def test_basic_authentication() -> None:
    header = "Authorization: Basic " + base64.b64encode(b"user:correct-horse").decode()
    assert redact(header, password="correct-horse") == "Authorization: Basic dXNlcjp[secret password]"


@given(st.lists(ALIKE, min_size=1, max_size=3), st.lists(st.one_of(PIECES, ALIKE), max_size=6), st.data())
@example(["aaaaaaaa"], ["aaaaaaaaaaaaaaaaaaaaaaaa"], None)
@example(["aaaaaaaa", "aaaaaaaaaaaa"], ["aaaaaaaaaa"], None)
@example(["\\\\\\\\\\\\\\\\"], ["\\" * 40], None)
def test_the_result_does_not_depend_on_where_the_stream_is_cut(
    secrets: list[str], parts: list[str], data: st.DataObject | None
) -> None:
    redactor = Redactor({f"s{number}": secret for number, secret in enumerate(secrets)})
    text = "".join(part for pair in zip(parts, [*secrets, *parts], strict=False) for part in pair).encode()
    sizes = data.draw(st.lists(st.integers(0, 9), max_size=30)) if data is not None else [1] * len(text)
    stream = redactor.stream()
    came, at = [], 0
    for size in [*sizes, len(text)]:
        came.append(stream.feed(text[at : at + size]))
        at += size
    came.append(stream.finish())
    assert b"".join(came) == redactor.data(text)
    assert stream.growth == sum(map(len, came)) - len(text)


@given(st.lists(ALIKE, min_size=1, max_size=3), st.lists(st.one_of(PIECES, ALIKE), max_size=6))
def test_no_secret_is_left(secrets: list[str], parts: list[str]) -> None:
    names = {f"s{number}": secret for number, secret in enumerate(secrets)}
    text = "".join(part for pair in zip(parts, [*secrets, *parts], strict=False) for part in pair)
    clean = redact(text, **names)
    for piece in clean.replace("[secret ", "\0").replace("]", "\0").split("\0"):
        assert not any(secret in piece for secret in secrets)


@given(st.text(), SECRETS)
def test_other_text_is_left_alone(text: str, secret: str) -> None:
    clean = redact(text, s=secret)
    assert clean == text or "[secret s]" in clean


def test_only_what_could_be_the_beginning_is_held_back() -> None:
    stream = Redactor({"token": "hf_abcdefgh"}).stream()
    assert stream.feed(b"plain text\n") == b"plain text\n"
    assert stream.feed(b"a h") == b"a "
    assert stream.feed(b"as, and hf_ab") == b"has, and "
    assert stream.feed(b"c") == b""
    assert stream.feed(b"-no\n") == b"hf_abc-no\n"
    assert stream.feed(b"hf_abcdefg") == b""
    assert stream.feed(b"h") == b"[secret token]"
    assert stream.feed(b"50%") == b"50"
    assert stream.feed(b" done") == b"% done"
    assert stream.finish() == b""


def test_what_is_held_back_is_bounded() -> None:
    stream = Redactor({"s": "a" * 10}).stream()
    assert b"".join(stream.feed(b"a" * 100) for _ in range(10)) == b"[secret s]"
    assert stream.feed(b"b" * 50) == b"b" * 50


def test_overlapping_secrets_leave_nothing_of_either() -> None:
    assert redact("<abcdefghijklmnop>", one="abcdefghijkl", two="ghijklmnop") == "<[secret one]>"
    assert redact("<abcdefghij>", short="abcdefgh", long="abcdefghij") == "<[secret long]>"
    assert redact("<abcdefghi>", short="abcdefgh", long="abcdefghij") == "<[secret short]i>"
    assert redact("<abcdefgh->", short="abcdefgh", long="abcdefghij") == "<[secret short]->"
    assert redact("abcdefgh" * 3, s="abcdefgh") == "[secret s]" * 3


def test_a_secret_cut_by_the_end_of_the_text() -> None:
    assert redact("token: hf_abcdefgh", t="hf_abcdefghijkl") == "token: [secret t]"
    assert redact("token: hf_abcd", t="hf_abcdefghijkl") == "token: hf_abcd"


def test_a_secret_cut_by_a_gap() -> None:
    secret = "0123456789abcdefghij"
    redactor = Redactor({"s": secret})
    gap, joined, none = redactor.stream(), redactor.stream(), redactor.stream()
    assert gap.feed(b"head 0123456789") == b"head "
    assert gap.finish_after_gap(b"bcdefghij tail") == b"[secret s][secret s] tail"
    joined.feed(b"head 0123456789")
    assert joined.finish_after_gap(b"abcdefghij tail") == b"[secret s] tail"
    none.feed(b"head")
    assert none.finish_after_gap(b"fghij tail 0123456789") == b"fghij tail [secret s]"


def test_each_line_of_a_secret_counts() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBg\r\nkqhkiG9w0BAQ\n-----END KEY-----\nab\n"
    clean = redact("  kqhkiG9w0BAQ\nMIIEvQIBADANBg ab\n", key=key)
    assert clean == "  [secret key]\n[secret key] ab\n"
    assert redact(key.replace("\r\n", "\n"), key=key).startswith("[secret key]\n")
    assert redact(json.dumps(key), key=key) == '"[secret key]"'


def test_json_values_keys_and_numbers() -> None:
    value: Json = {"a": ["x 12345678 y", 12345678, 1.5, True, None], "12345678": {"b": -12345678901}}
    clean: Json = {"a": ["x [secret n] y", "[secret n]", 1.5, True, None], "[secret n]": {"b": "-[secret n]901"}}
    assert Redactor({"n": "12345678"}).json(value) == clean


def test_without_secrets_nothing_is_touched() -> None:
    redactor = Redactor({})
    assert not redactor
    data = b"any \xff data"
    stream = redactor.stream()
    assert stream.feed(data) is data
    assert stream.finish_after_gap(data) is data
    assert redactor.json({"a": 1}) == {"a": 1}


def test_few_characters_of_many_bytes() -> None:
    assert redact("<😀😀> \\ud83d\\ude00\\ud83d\\ude00", s="😀😀") == "<[secret s]> [secret s]"


def test_bytes_that_are_no_text() -> None:
    redactor = Redactor({"s": "geheim-é-12"})
    assert redactor.data(b"\xff\xfegeheim-\xc3\xa9-12\x80") == b"\xff\xfe[secret s]\x80"
    assert redactor.text("\udc80geheim-é-12\udcff") == "\udc80[secret s]\udcff"
