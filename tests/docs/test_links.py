"""Every page can be reached, and every link leads to a file and a heading that are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.generate import DOCS
from tests.docs.pages import ROOT, anchors_of, blocks_of, links_of, pages

INDEX = DOCS / "README.md"


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert [link for link in links_of(page) if _is_dead(page, link)] == []


def _is_dead(page: Path, link: str) -> bool:
    if ":" in link:
        return not link.startswith("https://")
    name, _, anchor = link.partition("#")
    there = page.parent / name if name else page
    if not there.exists():
        return True
    return anchor != "" and anchor not in anchors_of(there)


@pytest.mark.parametrize(
    "link", ["nowhere.md", "#nowhere", "inventory.md#nowhere", "http://example.org", "../nowhere", "page.md#a-b-1"]
)
def test_a_dead_link_is_found(tmp_path: Path, link: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# A b\n\n[x]({link})\n\n## A `B`!\n\n[y](#a-b) [z](page.md#a-b-1)\n\n```sh\n# no heading\n```\n")
    (tmp_path / "inventory.md").write_text("# Inventory\n")
    assert anchors_of(page) == ["a-b", "a-b-1"]
    assert [each for each in links_of(page) if _is_dead(page, each)] == ([] if link == "page.md#a-b-1" else [link])


def test_the_index_names_every_page_once_in_its_order() -> None:
    named = [link for link in links_of(INDEX) if link.endswith(".md") and "/" not in link]
    assert sorted(named) == sorted(page.name for page in DOCS.glob("*.md") if page != INDEX)


def test_the_readme_leads_to_the_index_and_the_quick_start() -> None:
    assert {"docs/README.md", "docs/quickstart.md"} <= set(links_of(ROOT / "README.md"))


def test_blocks_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("- a\n    b\n\n```sh x\n    c\n```\n\n    d\n\n      e\n\nf\n")
    assert [(block.line, block.kind, block.text) for block in blocks_of(page)] == [
        (4, "sh x", "    c\n"),
        (8, "", "d\n\n  e\n"),
    ]
    page.write_text("```sh\nno end\n")
    with pytest.raises(ValueError, match=r"page.md:1: the fence has no end"):
        blocks_of(page)
