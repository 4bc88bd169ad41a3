"""The pages of the docs as their readers see them: blocks, headings and links."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.docs.generate import DOCS

ROOT = DOCS.parent
_FENCE = re.compile(r"^(`{3,}|~{3,})(.*)$")
_INDENT = " " * 4
_LINK = re.compile(r"\]\(([^)\s]+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Hold one block of a page: `kind` is the language of a fence, and empty where a block is merely indented."""

    page: str
    line: int
    kind: str
    text: str

    @property
    def place(self) -> str:
        """Return where it stands, for people."""
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Return every page, the README among them."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page in their order.

    Raises:
        ValueError: a fence has no end.
    """
    return list(_blocks(name_of(page), page.read_text("utf-8").split("\n")))


def name_of(page: Path) -> str:
    """Return the path of a page as its readers know it."""
    return str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else page.name


def _blocks(page: str, lines: list[str]) -> Iterator[Block]:
    at = 0
    while at < len(lines):
        start = at
        fence = _FENCE.match(lines[at])
        if fence is not None:
            if fence[1] not in lines[at + 1 :]:
                raise ValueError(f"{page}:{start + 1}: the fence has no end")
            end = lines.index(fence[1], at + 1)
            yield _block(page, start, fence[2], lines[start + 1 : end])
            at = end + 1
        elif lines[at].startswith(_INDENT) and (at == 0 or not lines[at - 1]):
            at = _end_of_indented(lines, at)
            yield _block(page, start, "", [line[len(_INDENT) :] for line in lines[start:at]])
        else:
            at += 1


def _end_of_indented(lines: list[str], at: int) -> int:
    while at < len(lines) and (lines[at].startswith(_INDENT) or (not lines[at] and _goes_on(lines, at))):
        at += 1
    return at


def _goes_on(lines: list[str], at: int) -> bool:
    rest = (line for line in lines[at:] if line)
    return next(rest, "").startswith(_INDENT)


def _block(page: str, start: int, kind: str, lines: list[str]) -> Block:
    return Block(page=page, line=start + 1, kind=kind, text="".join(f"{line}\n" for line in lines))


def prose_of(page: Path) -> list[str]:
    """Return the lines of a page that stand outside of its fences."""
    prose: list[str] = []
    fence = ""
    for line in page.read_text("utf-8").splitlines():
        found = _FENCE.match(line)
        if found is not None and fence in ("", found[1]):
            fence = "" if fence else found[1]
        elif not fence:
            prose.append(line)
    return prose


@functools.cache
def anchors_of(page: Path) -> list[str]:
    """Return the anchors of a page's headings, made as GitHub makes them."""
    anchors: list[str] = []
    seen: Counter[str] = Counter()
    for line in prose_of(page):
        if re.match(r"#{1,6} ", line):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line.lstrip("#").strip())
            anchor = re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-")
            seen[anchor] += 1
            anchors.append(f"{anchor}-{seen[anchor] - 1}" if seen[anchor] > 1 else anchor)
    return anchors


def links_of(page: Path) -> list[str]:
    """Return where the links of a page lead to."""
    return [link for line in prose_of(page) for link in _LINK.findall(re.sub(r"`[^`]*`", "", line))]
