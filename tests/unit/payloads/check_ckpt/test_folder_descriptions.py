"""The small files that say what a folder is: one that is damaged counts, one that nobody reads does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.payloads.check_ckpt.support import audit, write
from tests.unit.payloads.check_ckpt.test_megatron import distributed, legacy, nemo

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*no_dist.*"),
    pytest.mark.filterwarnings("ignore:torch.distributed is"),
]


@pytest.mark.parametrize(
    ("text", "rule"),
    [(b"", "CK021"), (bytes(70), "CK021"), (b'{"sharded_backend": "tor', "CK020"), (b"{]}", "CK025")],
    ids=["empty", "zeros", "cut off", "wrong"],
)
def test_a_damaged_description_is_told(tmp_path: Path, text: bytes, rule: str) -> None:
    path = distributed(tmp_path / "iter_0000100")
    write(path / "metadata.json", text)
    heard = audit(path)
    assert (heard.record["verdict"], heard.rules(above_info=True)) == ("bad", {rule})
    assert "metadata.json" in heard.of(rule)["message"]


def test_what_nobody_reads_is_not_called_checked(tmp_path: Path) -> None:
    path = nemo(tmp_path)
    write(path / "context/model.yaml", bytes(100_000))
    record = audit(tmp_path).record
    assert record["format"] == "nemo"
    assert all(name.startswith("weights/") for name in record["files"])
    assert record["bytes_checked"] == record["bytes"] < 100_000


def test_several_missing_files_are_told_in_english(tmp_path: Path) -> None:
    path = legacy(tmp_path / "iter_0000100", ["mp_rank_00"], tensor_model_parallel_size=3)
    assert audit(path).of("CK060")["message"].startswith("2 files of a rank missing: ")
