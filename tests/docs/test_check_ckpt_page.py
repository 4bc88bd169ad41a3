"""The page of check-ckpt names every field of its records, and none that is not there."""

from __future__ import annotations

import itertools
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from remoterun.payloads.check_ckpt import run
from tests.docs.generate import DOCS
from tests.docs.pages import ROOT
from tests.unit.payloads.check_ckpt.support import Heard, audit

if TYPE_CHECKING:
    from remoterun.remote.runtime import Context

PART = (DOCS / "check-ckpt.md").read_text("utf-8").partition("## The records")[2].partition("\n## ")[0]
TABLE, _, BELOW = PART.partition("What older checkpoints tell")
NAMED = {word for row in re.findall(r"^\| (.*) \|", TABLE, re.MULTILINE) for word in re.findall(r"`(\w+)`", row)}
RARE = {"files_count", "params_listed", "unchecked_count", "load", "step_from", "ignored", "trainings_count"}
"""Fields of cases that the demo's checkpoints are not."""


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Heard]]:
    """Audit the demo's checkpoints: whole, again, and by their headers."""
    folder = tmp_path_factory.mktemp("page") / "checkpoints"
    shutil.copytree(ROOT / "remoterun/lab/data/200", folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder.parent))
        yield [audit(folder, later=10), audit(folder, later=20), audit(folder, deep=False)]


def test_every_field_of_a_checkpoint_is_told(heard: list[Heard]) -> None:
    fields = {field for each in heard for record in each.records for field in record} - {"kind"}
    assert fields <= NAMED
    told = set(re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", TABLE, re.MULTILINE))
    assert {word for row in told for word in re.findall(r"\w+", row)} - fields - RARE == set()


def test_every_field_of_the_summary_and_of_a_series_is_told() -> None:
    named = set(re.findall(r"`(\w+)`", BELOW))
    # What takes long tells of some checkpoints behind their records.
    slow, minutes = Heard({"root": str(ROOT / "remoterun/lab/data/200"), "depth": 6, "cache": False}), itertools.count()
    run(cast("Context", slow), lambda: time.time() + 60 * next(minutes))
    others = [record for record in slow.emitted if record["kind"] != "checkpoint"]
    assert {record["kind"] for record in others} == {"series", "summary"}
    trainings = [each for record in others for each in record.get("trainings", ())]
    fields = {field for record in [*others, *trainings] for field in record}
    assert fields - {"kind"} == named - {"kind", "series", "summary"} - RARE


def test_a_zero_that_is_not_known_to_be_one_can_be_told(heard: list[Heard]) -> None:
    """What the page says of counts, of `unchecked` and of `bytes_checked`."""
    counts = [field for field in NAMED if re.match("(nan|inf)_", field)]
    whole, _, headers = ({record["name"]: record for record in each.records} for each in heard)
    cut = whole.pop("step_5000")
    assert (cut["verdict"], cut["nan_optimizer"], len(cut["unchecked"])) == ("bad", 0, 11)
    assert cut["bytes_checked"] < cut["bytes"]
    for record in whole.values():
        assert (record["unchecked"], record["bytes_checked"]) == ([], record["bytes"])
    assert {record[count] for record in headers.values() for count in counts} == {None}


def test_rare_fields_are_those_of_the_payload() -> None:
    source = "".join(path.read_text("utf-8") for path in Path(ROOT / "remoterun/payloads/check_ckpt").glob("*.py"))
    assert [field for field in sorted(RARE) if not re.search(rf'"{field}"|\\b{field}=', source)] == []
