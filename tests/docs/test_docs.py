"""The docs say what the program does: generated pages are fresh, and nothing is left out."""

from __future__ import annotations

import re

import pytest

from tests.docs.generate import COMMANDS, DOCS, PAGES, help_of

ROOT = DOCS.parent


@pytest.mark.parametrize("name", PAGES)
def test_generated_page_is_fresh(name: str) -> None:
    assert (DOCS / name).read_text("utf-8") == PAGES[name](), "run `python -m tests.docs.generate`"


def test_every_command_is_on_the_page() -> None:
    listed = {words[0] for words in COMMANDS if words}
    shown = set(re.findall(r"^│ (\w+)", help_of(()), re.MULTILINE)) | set(
        re.findall(r"^  (\w+) ", help_of(()), re.MULTILINE)
    )
    assert listed <= shown
    assert shown - {"Run"} <= listed | {"Options", "Commands"}


def test_every_document_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    assert [page.name for page in DOCS.glob("*.md") if f"docs/{page.name}" not in readme] == []


def test_links_between_documents_lead_somewhere() -> None:
    pages = [*DOCS.glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    dead = [
        (page.name, link)
        for page in pages
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
        if not (page.parent / link).exists()
    ]
    assert dead == []
