"""Packing: the same bytes everywhere, only what belongs, nothing from outside the folder."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tempfile
import textwrap
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoterun.catalog import PACK_LIMIT, Catalog, Member, PayloadInfo, canonical_zip
from remoterun.errors import ConfigError
from tests.support.lab.pythons import pythons

REPOSITORY = Path(__file__).parents[2]

# Changing either means that every pack of every version gets another name: caches go cold, and pinned hashes break.
GOLDEN_SHA256 = "721d9a1f2f53326761d6dd2a36127b6d5edff813436a52558c68c003ca744716"
GOLDEN = textwrap.dedent(
    """
    import hashlib
    from remoterun.catalog.packing import Member, canonical_zip
    members = [
        Member(name="tiny/__init__.py", data=b"def run(ctx):\\n    ctx.emit({})\\n"),
        Member(name="tiny/data.bin", data=bytes(range(256))),
        Member(name="run.sh", data=b"#!/bin/sh\\n", program=True),
        Member(name="empty", data=b""),
    ]
    print(hashlib.sha256(canonical_zip(members)).hexdigest())
    """
)


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def payload(project: Path, files: dict[str, str], runs: str = 'entry = "sample:run"', extra: str = "") -> PayloadInfo:
    manifest = f'name = "sample"\nversion = "1.0.0"\ndescription = "d"\n{runs}\n{extra}'
    write(project / "payloads" / "sample", {"payload.toml": manifest, **files})
    return Catalog.load(project).find("sample")


def names(info: PayloadInfo) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(info.pack().data)).namelist()


def refusal(info: PayloadInfo) -> str:
    with pytest.raises(ConfigError) as caught:
        info.pack()
    return str(caught.value)


def golden_on(python: str) -> str:
    return subprocess.run(
        [python, "-c", GOLDEN],
        cwd=REPOSITORY,
        env={"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def test_the_bytes_are_the_same_on_every_python() -> None:
    found = {version: path for version, path in pythons().items() if tuple(map(int, version.split("."))) >= (3, 11)}
    assert {golden_on(python) for python in [sys.executable, *found.values()]} == {GOLDEN_SHA256}


@given(
    members=st.dictionaries(st.text("abc/_.", min_size=1, max_size=8), st.binary(max_size=50), max_size=6),
    seed=st.randoms(),
)
def test_the_bytes_depend_on_names_and_contents_alone(members: dict[str, bytes], seed: object) -> None:
    ordered = [Member(name=name, data=data) for name, data in members.items()]
    shuffled = sorted(ordered, key=lambda _: seed.random())  # type: ignore[attr-defined]
    packed = canonical_zip(ordered)
    assert canonical_zip(shuffled) == packed
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        assert archive.namelist() == sorted(members)
        assert {name: archive.read(name) for name in members} == members
        for info in archive.infolist():
            assert (info.date_time, info.compress_type, info.extra) == ((1980, 1, 1, 0, 0, 0), zipfile.ZIP_STORED, b"")


def test_a_pack_has_the_python_files_and_what_is_included(tmp_path: Path) -> None:
    files = {
        "__init__.py": '"""Kept."""\n# kept\ndef run(ctx): ...\n',
        "inner/deep.py": "",
        "data/table.json": "{}",
        "data/deep/table.json": "{}",
        "notes.md": "",
        "tests/test_it.py": "",
        "inner/tests/helper.py": "",
        "__pycache__/x.py": "",
        ".hidden.py": "",
        ".git/x.py": "",
    }
    info = payload(tmp_path, files, extra='[pack]\ninclude = ["data/*.json"]')
    assert names(info) == [
        "sample/__init__.py",
        "sample/data/deep/table.json",
        "sample/data/table.json",
        "sample/inner/deep.py",
    ]
    pack = info.pack()
    assert (pack.entry, pack.program, pack.ref.name, pack.ref.version) == ("sample:run", None, "sample", "1.0.0")
    assert pack.sha256 == hashlib.sha256(pack.data).hexdigest()
    assert zipfile.ZipFile(io.BytesIO(pack.data)).read("sample/__init__.py") == files["__init__.py"].encode()


def test_a_pack_can_be_imported_from(tmp_path: Path) -> None:
    info = payload(tmp_path, {"__init__.py": "from .inner import run\n", "inner.py": "def run(ctx): print(ctx)\n"})
    pack = tmp_path / "pack"
    pack.write_bytes(info.pack().data)
    code = "import sys; sys.path.insert(0, sys.argv[1]); import sample; sample.run('hello')"
    for python in [
        sys.executable,
        *(path for version, path in pythons().items() if version not in ("2.7", "3.6", "3.7")),
    ]:
        ran = subprocess.run([python, "-c", code, pack], capture_output=True, text=True, check=True)
        assert ran.stdout == "hello\n"


def test_a_pack_is_read_once_and_belongs_to_what_was_loaded(tmp_path: Path) -> None:
    info = payload(tmp_path, {"__init__.py": "def run(ctx): ...\n"})
    first = info.pack()
    (info.path / "__init__.py").write_text("def run(ctx): pass\n")
    assert info.pack() is first
    assert Catalog.load(tmp_path).find("sample").pack().sha256 != first.sha256


def test_a_single_file_is_packed_alone(tmp_path: Path) -> None:
    text = '# /// payload\n# name = "solo-one"\n# version = "1.0.0"\n# description = "d"\n# ///\ndef run(ctx): ...\n'
    write(tmp_path / "payloads", {"solo.py": text, "other.py": "x = 1\n"})
    info = Catalog.load(tmp_path).find("solo-one")
    assert names(info) == ["solo.py"]
    assert info.pack().entry == "solo:run"


def test_a_program_stands_at_the_top_and_is_executable(tmp_path: Path) -> None:
    files = {"bin/tool.sh": "#!/bin/sh\n", "bin/lib.sh": "", "helper.py": "", "__init__.py": ""}
    info = payload(tmp_path, files, runs='program = "bin/tool.sh"', extra='[pack]\ninclude = ["bin/*"]')
    assert names(info) == ["bin/lib.sh", "bin/tool.sh"]
    assert (info.pack().entry, info.pack().program) == (None, "bin/tool.sh")
    modes = {
        member.filename: member.external_attr >> 16
        for member in zipfile.ZipFile(io.BytesIO(info.pack().data)).infolist()
    }
    assert modes == {"bin/lib.sh": 0o100644, "bin/tool.sh": 0o100755}


def test_links_that_leave_the_folder_are_refused(tmp_path: Path) -> None:
    info = payload(tmp_path, {"__init__.py": ""})
    outside = write(tmp_path, {"secret.py": "x = 1\n"}) / "secret.py"
    (info.path / "stolen.py").symlink_to(outside)
    (info.path / "up.py").symlink_to("../sample/../../secret.py")
    message = refusal(info)
    assert "stolen.py is a link that leaves" in message
    assert "up.py is a link that leaves" in message


def test_links_inside_the_folder_are_packed_as_what_they_lead_to(tmp_path: Path) -> None:
    info = payload(tmp_path, {"__init__.py": "", "real.py": "x = 1\n"})
    (info.path / "alias.py").symlink_to("real.py")
    assert zipfile.ZipFile(io.BytesIO(info.pack().data)).read("sample/alias.py") == b"x = 1\n"


def test_links_to_folders_are_refused_unless_they_are_left_out_anyway(tmp_path: Path) -> None:
    info = payload(tmp_path, {"__init__.py": ""})
    (info.path / "tests").symlink_to(tmp_path)
    assert names(info) == ["sample/__init__.py"]
    info = Catalog.load(tmp_path).find("sample")
    (info.path / "more").symlink_to(tmp_path)
    assert "more is a link to a folder" in refusal(info)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    info = payload(tmp_path, {"__init__.py": ""})
    os.mkfifo(info.path / "pipe.py")
    (info.path / "broken.py").symlink_to("nowhere.py")
    (info.path / "loop.py").symlink_to("loop.py")
    message = refusal(info)
    assert [f"{name}.py is not a file" in message for name in ("pipe", "broken", "loop")] == [True] * 3


def test_names_that_differ_between_machines_are_refused(tmp_path: Path) -> None:
    info = payload(tmp_path, {"__init__.py": "", "naïve.py": "", "line\nbreak.py": ""})
    assert refusal(info).count("plain ASCII") == 2


def test_a_pattern_that_matches_nothing_is_a_problem(tmp_path: Path) -> None:
    info = payload(tmp_path, {"__init__.py": "", "tests/a.json": ""}, extra='[pack]\ninclude = ["*.json", "../*"]')
    message = refusal(info)
    assert "no file matches '*.json'" in message
    assert "no file matches '../*'" in message


def test_a_pack_has_a_biggest_size(tmp_path: Path) -> None:
    info = payload(tmp_path, {"__init__.py": "", "small.py": ""}, extra='[pack]\ninclude = ["*.bin"]')
    with (info.path / "big.bin").open("wb") as stream:
        stream.truncate(PACK_LIMIT + 1)
    message = refusal(info)
    assert "holds 16,777,217 bytes, more than the 16,777,216" in message
    assert "big.bin (16,777,217)" in message


@pytest.mark.usefixtures("nobody")
@pytest.mark.parametrize("locked", ["locked.py", "inner"])
def test_what_cant_be_read_is_a_problem(locked: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        info = payload(Path(folder), {"__init__.py": "", "locked.py": "", "inner/x.py": ""})
        (info.path / locked).chmod(0)
        assert "can't be read: Permission denied" in refusal(info)
        (info.path / locked).chmod(0o700)
