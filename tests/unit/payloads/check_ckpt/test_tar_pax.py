"""Tar archives whose members' sizes stand in records of pax alone, as those of 8 GiB and more do."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

import pytest
import torch

from tests.unit.payloads.check_ckpt.support import audit, training_state, write

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch

WEIGHTS = "./model_weights.ckpt"


def block(name: str, data: bytes, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """Return a header and what follows on it, up to the end of its last block."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % tarfile.BLOCKSIZE)


def archive(*records: str) -> bytes:
    """Lay out an archive as Python does where a member is large: its own header says that it is empty."""
    buffer = io.BytesIO()
    torch.save(training_state(), buffer)
    told = "".join(f"{len(record) + 4} {record}\n" for record in (f"size={len(buffer.getvalue())}", *records)).encode()
    parts = [
        block("./model_config.yaml", b"name: model\n", 12),
        block("./PaxHeaders/model_weights.ckpt", told, len(told), tarfile.XHDTYPE),
        block(WEIGHTS, buffer.getvalue(), 0),
    ]
    return b"".join(parts) + bytes(2 * tarfile.BLOCKSIZE)


def test_python_writes_large_sizes_so() -> None:
    info = tarfile.TarInfo(WEIGHTS)
    info.size = 8 << 30
    header = info.tobuf(tarfile.PAX_FORMAT)
    assert b" size=8589934592\n" in header
    assert int(header[-tarfile.BLOCKSIZE :][124:135], 8) == 0


def test_a_size_that_only_pax_tells_is_the_members(tmp_path: Path) -> None:
    path = write(tmp_path / "m.nemo", archive("mtime=1700000000.25"))
    with tarfile.open(path) as tar:
        size = tar.getmember(WEIGHTS).size
    assert size > 100_000
    heard = audit(path)
    record = heard.record
    assert heard.rules() == set()
    assert (record["verdict"], record["format"], record["params"]) == ("ok", "nemo", 4 * (64 * 64 + 64))
    assert record["bytes_checked"] == record["bytes"]


@pytest.mark.parametrize("size", ["-1", "99999999999999999999", "²", "9" * 18, "1e3"])
def test_a_size_that_can_not_be_is_no_fault_of_the_program(tmp_path: Path, size: str) -> None:
    heard = audit(write(tmp_path / "m.nemo", archive("mtime=1700000000.25", f"size={size}")))
    assert heard.record["verdict"] == "bad"
    assert "CK030" not in heard.rules()
