"""The rules as a table, and the verdict they lead to."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoterun.catalog import Catalog
from remoterun.payloads.check_ckpt.model import Found
from remoterun.payloads.check_ckpt.rules.catalogue import MANY, RULES, bounded, count, next_step, severity, verdict

FOLDER = Path(__file__).resolve().parents[4] / "remoterun" / "payloads" / "check_ckpt"
TEXTS = {
    name: text
    for path in sorted((FOLDER / "rules/texts").glob("*.toml"))
    for name, text in tomllib.loads(path.read_text("utf-8")).items()
}
FOUND = st.builds(Found, st.sampled_from(sorted(RULES)), st.text(max_size=5))


def test_every_rule_is_explained_and_every_explanation_has_a_rule() -> None:
    assert set(TEXTS) == set(RULES)
    for rule, text in TEXTS.items():
        assert set(text) == {"title", "since", "tier", "proof", "what", "why", "how", "guards"}, rule
        assert all(isinstance(value, bool) or value.strip() for value in text.values()), rule
        assert text["tier"] in {"header", "scan", "series"}


def test_every_rule_that_the_code_names_exists() -> None:
    named = {rule for path in FOLDER.rglob("*.py") for rule in re.findall(r'"(CK\d{3})"', path.read_text("utf-8"))}
    assert named == set(RULES)


def test_the_texts_stay_at_home() -> None:
    pack = Catalog.load(None).find("check-ckpt@1").pack()
    assert b"check_ckpt/rules/catalogue.py" in pack.data
    assert b"check_ckpt/rules/texts" not in pack.data
    assert b"ultralytics/ultralytics#24615" not in pack.data


@given(st.lists(FOUND, max_size=5), FOUND, st.booleans(), st.booleans())
def test_one_more_finding_never_makes_a_verdict_better(
    found: list[Found], more: Found, in_progress: bool, unsupported: bool
) -> None:
    order = ["ok", "suspect", "unsupported", "bad", "in_progress"]
    before = verdict(found, in_progress=in_progress, unsupported=unsupported)
    after = verdict([*found, more], in_progress=in_progress, unsupported=unsupported)
    assert order.index(after) >= order.index(before)


@pytest.mark.parametrize(
    ("rules", "unsupported", "expected"),
    [
        ([], False, "ok"),
        (["CK028", "CK120"], False, "ok"),
        (["CK012"], False, "suspect"),
        (["CK128"], True, "unsupported"),
        (["CK128", "CK101"], True, "bad"),
        (["CK022"], False, "bad"),
    ],
)
def test_the_verdict_is_the_worst_that_was_found(rules: list[str], unsupported: bool, expected: str) -> None:
    found = [Found(rule, "") for rule in rules]
    assert verdict(found, in_progress=False, unsupported=unsupported) == expected
    assert verdict(found, in_progress=True, unsupported=unsupported) == "in_progress"


@given(st.lists(st.sampled_from(["CK001", "CK012"]), max_size=70))
def test_many_findings_of_a_kind_are_summed_up(rules: list[str]) -> None:
    found = [Found(rule, str(index), evidence={"nan": 1}) for index, rule in enumerate(rules)]
    told = bounded(found)
    assert len(told) <= 2 * (MANY + 1)
    for rule in set(rules):
        group = [each for each in told if each.rule == rule]
        assert sum(int(str((each.evidence or {})["nan"])) for each in group) == rules.count(rule)
        assert all(severity(each) and next_step(each) for each in group)
    assert sum(map(count, told)) == len(rules)
    assert bounded(told) == told
    assert sum(map(count, bounded([*told, *found]))) == 2 * len(rules)
