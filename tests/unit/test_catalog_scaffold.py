"""New payloads: they load, pack, pass their own test and run; and nothing is overwritten."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, get_args

import pytest

from remoterun.catalog import Catalog, Kind, scaffold
from remoterun.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

KINDS: tuple[Kind, ...] = get_args(Kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_payload_can_be_found_and_packed(tmp_path: Path, kind: Kind) -> None:
    written = scaffold("my-check", tmp_path / "payloads", kind)
    assert all(path.is_file() for path in written)
    info = Catalog.load(tmp_path).find("my-check")
    assert info.check_params({}, where="") == {"root": "/tmp"}
    assert info.rules == (() if kind == "program" else ("T001",))
    assert info.pack().data
    assert (info.path / "payload.toml" if info.path.is_dir() else info.path) == written[0]
    assert "@" not in written[0].read_text()


def test_a_new_package_passes_its_own_test(tmp_path: Path) -> None:
    scaffold("my-check", tmp_path / "payloads")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    assert "1 passed" in ran.stdout


def test_a_new_program_reads_parameters_and_writes_a_record(tmp_path: Path) -> None:
    scaffold("my-check", tmp_path / "payloads", "program")
    info = Catalog.load(tmp_path).find("my-check")
    assert info.program is not None
    params = {"root": "/a 'b' \"c\" $d \\n %s"}
    ran = subprocess.run(
        [info.path / info.program], input=json.dumps(params), capture_output=True, text=True, check=True
    )
    (record,) = [json.loads(line) for line in ran.stdout.splitlines()]
    assert record["params"] == params


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("taken", ["my_check", "my_check.py", "my-check"])
def test_what_is_there_is_left_as_it_is(tmp_path: Path, kind: Kind, taken: str) -> None:
    (tmp_path / taken).write_text("mine")
    with pytest.raises(ConfigError, match="left as it is"):
        scaffold("my-check", tmp_path, kind)
    assert [path.name for path in tmp_path.iterdir()] == [taken]
    assert (tmp_path / taken).read_text() == "mine"


@pytest.mark.parametrize("name", ["", "My", "a/b", "../x", "json", "class", "remoterun", "a_b", "a@1", "x\n"])
def test_bad_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="a payload named"):
        scaffold(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cant_be_written_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "payloads").write_text("a file")
    with pytest.raises(ConfigError, match="can't be written"):
        scaffold("my-check", tmp_path / "payloads")
