"""What pages name is there: commands, flags, keys of files, rules; and what there is has a name on its page."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

import pytest

from remoterun.cli.app import command
from remoterun.errors import CODES
from remoterun.inventory import inventory_schema
from remoterun.model import Json
from remoterun.payloads.check_ckpt.rules.catalogue import RULES
from remoterun.playbook import playbook_schema
from tests.docs.generate import COMMANDS, DOCS, PAGES
from tests.docs.pages import ROOT, name_of, pages, prose_of

TREE: Final = cast("Any", command())
OTHERS: Final = {"docs/peers.md": {"--into", "--check-tensors", "--verify"}, "docs/comparison.md": {"--diff"}}
"""Flags of other programs."""
FAB: Final = {"--guest", "--keep-going", "--json", "--root"}
WRITTEN: Final = [page for page in pages() if page.parent == ROOT or page.name not in PAGES]


def _spans(page: Path) -> list[str]:
    """Return what stands between single backticks."""
    return re.findall(r"(?<!`)`([^`\n]+)`", "\n".join(prose_of(page)))


def _flags(node: Any) -> set[str]:
    return {word for param in node.params for word in (*param.opts, *param.secondary_opts)} | {"--help"}


def _commands(node: Any) -> dict[str, Any]:
    return getattr(node, "commands", {})


def _all_flags(node: Any) -> set[str]:
    return _flags(node).union(*map(_all_flags, _commands(node).values()))


def _misnamed(span: str) -> Iterator[str]:
    """Yield what is not there of a command line that a page mentions, which may end where it likes."""
    words = shlex.split(span.partition(" | ")[0].replace("...", ""))
    node = TREE
    for word in words[1:]:
        if word == "--":
            return
        inner = _commands(node)
        if word.startswith("-"):
            if word.partition("=")[0] not in _flags(node):
                yield word
        elif word in inner:
            node = inner[word]
        elif inner:
            yield word


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_commands_and_flags_are_there(page: Path) -> None:
    known = _all_flags(TREE) | OTHERS.get(name_of(page), set()) | (FAB if page.name == "fabric.md" else set())
    spans = _spans(page)
    flags = {word.partition("=")[0] for span in spans if span.startswith("--") for word in span.split()[:1]}
    assert flags - known == set()
    lines = [span for span in spans if re.match(r"remoterun [a-z-]", span)]
    assert [(line, word) for line in lines for word in _misnamed(line)] == []


@pytest.mark.parametrize(
    ("span", "misnamed"),
    [
        ("remoterun play check-ckpt --on training -- --any", []),
        ("remoterun plya", ["plya"]),
        ("remoterun history gc --keep 30d", []),
        ("remoterun history gcc", ["gcc"]),
        ("remoterun payload lost", ["lost"]),
        ("remoterun runs --lease 2m", ["--lease"]),
        ("remoterun play ... --metrics FILE", []),
    ],
)
def test_a_wrong_command_line_is_found(span: str, misnamed: list[str]) -> None:
    assert list(_misnamed(span)) == misnamed


def _words(node: Any, *before: str) -> Iterator[tuple[str, ...]]:
    yield before
    for name, inner in _commands(node).items():
        yield from _words(inner, *before, name)


def test_every_command_has_its_help_on_the_page() -> None:
    assert sorted(COMMANDS) == sorted(_words(TREE))


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_rules_and_error_codes_are_there(page: Path) -> None:
    text = page.read_text("utf-8")
    assert set(re.findall(r"\bCK\d{3}\b", text)) <= set(RULES)
    coded = {span for span in _spans(page) if re.fullmatch(r"[a-z]+(_[a-z]+)+", span)}
    near = {word for word in coded if word.rpartition("_")[2] in _ENDINGS}
    assert near <= set(CODES)


_ENDINGS: Final = {"refused", "failed", "timeout", "damaged", "stopped", "unknown", "missing", "crashed", "expired"}


def _keys(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys that a schema describes, wherever they stand."""
    for part in (schema, *schema.get("$defs", {}).values()):
        yield from part.get("properties", {})


def test_every_key_of_the_files_is_on_their_page() -> None:
    text = "".join((DOCS / name).read_text("utf-8") for name in ("inventory.md", "limits.md"))
    keys = {*_keys(cast("Mapping[str, Json]", inventory_schema())), *_keys(playbook_schema())}
    assert sorted(key for key in keys if not re.search(rf"\b{key}\b", text)) == []


def test_every_key_in_the_tables_of_the_page_is_one() -> None:
    rows = re.findall(r"^\| (`[^|]*`) \|", (DOCS / "inventory.md").read_text("utf-8").partition("## Choosing")[0], re.M)
    named = {key for row in rows for key in re.findall(r"`(\w+)`", row)}
    assert named
    assert named <= set(_keys(inventory_schema()))
