"""The docs say what the program does: generated pages are fresh, and nothing is left out."""

from __future__ import annotations

import os
import re
import subprocess
from types import ModuleType

import pytest

from remoterun.payloads.check_ckpt.rules.catalogue import GROUPS, RULES
from remoterun.payloads.check_ckpt.rules.rule import Rule
from tests.docs.generate import DOCS, MANIFEST, PAGES, gaps_of, helps_of, manifest, rule_gaps
from tests.support.project import REMOTERUN


@pytest.mark.parametrize("name", PAGES)
def test_generated_page_is_fresh(name: str) -> None:
    assert (DOCS / name).read_text("utf-8") == PAGES[name](), "run `python -m tests.docs.generate`"


def test_every_rule_is_told() -> None:
    assert rule_gaps() == []
    assert sum(len(group.RULES) for group in GROUPS) == len(RULES), "two groups have one id"


def test_a_rule_without_its_texts_is_a_gap() -> None:
    group = ModuleType("rules.values", "Rules about values.")
    vars(group)["RULES"] = {"CK001": GROUPS[0].RULES["CK001"], "CK999": Rule("bad", "")}
    gaps = list(gaps_of(group))
    for key in ("title", "since", "what", "why", "how", "guards", "next step"):
        assert f"values.toml: CK999 lacks {key}" in gaps
    assert "values.toml: CK999 does not say whether it is proof" in gaps
    assert "values.toml tells of CK003, which is no rule of its group" in gaps
    assert not [gap for gap in gaps if "CK001" in gap]


def test_the_manifest_lists_every_rule() -> None:
    assert MANIFEST.read_text("utf-8") == manifest(), "run `python -m tests.docs.generate`"


def test_links_of_the_rules_lead_to_their_headings() -> None:
    page = PAGES["rules.md"]()
    headings = {
        re.sub(r"[^\w -]", "", line[4:].lower()).replace(" ", "-") for line in page.splitlines() if "### " in line
    }
    links = re.findall(r"\]\(#([^)]+)\)", page)
    assert len(links) == len(RULES)
    assert set(links) == headings


def test_help_is_what_a_start_of_the_program_prints() -> None:
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    command = [*REMOTERUN, "history", "gc", "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert [line.rstrip() for line in done.stdout.strip().splitlines()] == helps_of([("history", "gc")])[0].splitlines()
