"""The directory of a zip: entries in rows of the same length, between others, and what is wrong with one of many."""

from __future__ import annotations

import random
import struct
import zipfile
from typing import TYPE_CHECKING

import pytest
import torch

from remoterun.payloads.check_ckpt.model import FlawedError
from remoterun.payloads.check_ckpt.readers.archive import Directory, read_directory
from remoterun.payloads.check_ckpt.source import Source
from tests.unit.payloads.check_ckpt.support import audit, save

if TYPE_CHECKING:
    from pathlib import Path

_CENTRAL = b"PK\x01\x02"
_END = b"PK\x05\x06"


def directory_of(path: Path) -> Directory:
    """Read the directory of a file that has one."""
    with Source(str(path)) as source:
        directory = read_directory(source)
    assert directory is not None
    return directory


def write(path: Path, names: list[str], seed: int = 0) -> None:
    """Write records of these names; some have an extra field or a comment in the directory."""
    chance = random.Random(seed)
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            info = zipfile.ZipInfo(name)
            info.extra = chance.choice((b"", b"", b"", b"\x99\x99\x02\x00ab"))
            info.comment = chance.choice((b"", b"", b"", b"PK\x01\x02", b"x" * 70))
            archive.writestr(info, chance.randbytes(chance.randint(0, 9)))


@pytest.mark.parametrize("seed", range(4))
def test_records_with_names_of_any_length(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    names = [f"{'d' * chance.choice((1, 1, 1, 7))}/{index}" for index in range(1_300)]
    write(tmp_path / "a.zip", names, seed)
    found = [(entry.name, entry.header, entry.size, entry.crc) for entry in directory_of(tmp_path / "a.zip").entries]
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        expected = [(info.filename, info.header_offset, info.file_size, info.CRC) for info in archive.infolist()]
    assert found == expected


@pytest.mark.parametrize("number", [0, 1, 11, 12, 50, 98, 99])
def test_an_entry_that_is_none_is_told_by_its_number(tmp_path: Path, number: int) -> None:
    write(tmp_path / "a.zip", [f"data/{index}." for index in range(100)])
    data = bytearray((tmp_path / "a.zip").read_bytes())
    at = data.rfind(b"data/%d." % number) - 46
    assert data.startswith(_CENTRAL, at)
    data[at] ^= 1
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(FlawedError, match=f"damaged at its entry number {number + 1}$"):
        directory_of(tmp_path / "a.zip")


@pytest.mark.parametrize(("said", "message"), [(99, "more records than its end record says: 99"), (101, "100 records")])
def test_the_end_record_counts_the_entries(tmp_path: Path, said: int, message: str) -> None:
    write(tmp_path / "a.zip", [f"data/{index:02}" for index in range(100)], seed=5)
    data = bytearray((tmp_path / "a.zip").read_bytes())
    struct.pack_into("<HH", data, data.rfind(_END) + 8, said, said)
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(FlawedError, match=message):
        directory_of(tmp_path / "a.zip")


@pytest.mark.parametrize("end", [3, 40, 46, 50, 52, 53])
def test_a_directory_that_ends_within_an_entry(tmp_path: Path, end: int) -> None:
    write(tmp_path / "a.zip", [f"data/{index:02}" for index in range(9)], seed=1)
    data = bytearray((tmp_path / "a.zip").read_bytes())
    place = data.rfind(_END)
    start = data.find(_CENTRAL)
    last = data.rfind(_CENTRAL, 0, place)
    data[last + 28 : last + 34] = struct.pack("<HHH", 7, 0, 9)
    struct.pack_into("<I", data, place + 12, last - start + end)
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(FlawedError, match=r"entry number 9$"):
        directory_of(tmp_path / "a.zip")


@pytest.mark.torch
@pytest.mark.parametrize("claimed", [0, 7, 8, 24, 28, 65535])
def test_wide_sizes_that_are_not_all_there(tmp_path: Path, claimed: int) -> None:
    """An extra field may claim to be longer than it is."""
    save({"w": torch.ones(3)}, tmp_path / "c.pt")
    data = bytearray((tmp_path / "c.pt").read_bytes())
    place = data.rfind(b"PK\x06\x06")
    last = data.rfind(_CENTRAL, 0, place)
    extra = struct.pack("<HH12s", 1, claimed, bytes(12))
    data[last + 20 : last + 28] = b"\xff" * 8
    struct.pack_into("<H", data, last + 30, len(extra))
    name = last + 46 + struct.unpack_from("<H", data, last + 28)[0]
    data[name:name] = extra
    place += len(extra)
    struct.pack_into("<Q", data, place + 40, struct.unpack_from("<Q", data, place + 40)[0] + len(extra))
    locator = data.rfind(b"PK\x06\x07")
    struct.pack_into("<Q", data, locator + 8, place)
    end = data.rfind(_END)
    struct.pack_into("<I", data, end + 12, struct.unpack_from("<I", data, end + 12)[0] + len(extra))
    (tmp_path / "c.pt").write_bytes(data)
    record = audit(tmp_path / "c.pt").record
    assert record["verdict"] == "bad"
    assert {"CK025", "CK102"}.intersection(record["findings"])
