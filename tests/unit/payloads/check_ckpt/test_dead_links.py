"""Links that stand for checkpoints, and lead nowhere any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.payloads.check_ckpt.support import Heard, audit, hear, save, training_state

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("name", ["step_2.pt", "step_2/model.safetensors", "latest.pt"])
def test_a_link_that_leads_nowhere_is_told(tmp_path: Path, name: str) -> None:
    """It is listed like any other, and whoever resumes from it finds nothing."""
    save(training_state(1, global_step=1), tmp_path / "step_1.pt")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).symlink_to("blobs/0b5e")
    heard = audit(tmp_path)
    (found,) = heard.findings
    assert (found["rule"], found["severity"], found["subject"]) == ("CK065", "bad", name)
    assert found["message"] == f"{name} names blobs/0b5e, which is not there"
    assert heard.summary["resume_from"] == "step_1.pt"


def test_a_link_that_leads_to_a_checkpoint_is_one(tmp_path: Path) -> None:
    save(training_state(1, global_step=1), tmp_path / "blobs" / "0b5e")
    (tmp_path / "step_1.pt").symlink_to("blobs/0b5e")
    heard = audit(tmp_path)
    assert (heard.findings, heard.record["verdict"]) == ([], "ok")


def test_a_link_that_goes_as_well_is_not_told(tmp_path: Path) -> None:
    """What takes old checkpoints away takes first the one and then the other."""

    class Removing(Heard):
        def progress(self, done: float, total: float | None = None, unit: str = "", what: str = "") -> None:
            (tmp_path / "step_1.pt").unlink(missing_ok=True)

    save(training_state(1, global_step=2), tmp_path / "step_2.pt")
    (tmp_path / "step_1.pt").symlink_to("blobs/0b5e")
    heard = Removing({"root": str(tmp_path), "depth": 6, "engine": "auto"})
    hear(heard, later=60)
    assert not (tmp_path / "step_1.pt").is_symlink()
    assert (heard.findings, heard.record["verdict"]) == ([], "ok")


def test_a_link_of_another_name_is_nobodys_matter(tmp_path: Path) -> None:
    save(training_state(1, global_step=1), tmp_path / "step_1.pt")
    (tmp_path / "data").symlink_to("/gone/with/the/disk")
    assert audit(tmp_path).findings == []
