"""What torch and safetensors themselves say of files, asked in a child process that is watched."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from remoterun.payloads.check_ckpt.loadtest import Allowance, LoadTests, shortened
from tests.support.lab.pythons import pythons
from tests.unit.payloads.check_ckpt.support import save, training_state, write

pytestmark = pytest.mark.torch

REPO = Path(__file__).resolve().parents[4]
ENOUGH = Allowance(memory=1 << 30, seconds=120.0)
MIB = 1 << 20


Ask = Callable[..., dict[str, Any]]


def tried(*paths: Path, allowance: Allowance = ENOUGH) -> dict[str, Any]:
    """Try files in a process of their own."""
    tests = LoadTests(allowance)
    try:
        return tests.of_files([str(path) for path in paths], lambda: None)
    finally:
        tests.close()


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """Try files in one process that imports the real torch once, with an environment that asks it to be careless."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
        tests = LoadTests(ENOUGH)
        yield lambda *paths, alive=lambda: None: tests.of_files([str(path) for path in paths], alive)
        tests.close()


class Touch:
    """Be what creates a file when it is unpickled by somebody careless."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, load: str, version: str = "9.1") -> None:
    """Put a `torch` on the path of children, whose load does what the lines say."""
    body = textwrap.indent(textwrap.dedent(load), "    ")
    (folder / "torch.py").write_text(f"import os, signal\n__version__ = {version!r}\ndef load(path, **how):\n{body}\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))


# --- the real ones ----------------------------------------------------------------------------------------------------


def test_a_training_checkpoint_is_accepted(tmp_path: Path, ask: Ask) -> None:
    calls: list[None] = []
    said = ask(save(training_state(), tmp_path / "c.pt"), alive=lambda: calls.append(None))
    assert (said["accepted"], said["error"], said["by"]) == (True, None, "torch.load")
    assert said["torch"] == torch.__version__
    assert 0 <= said["seconds"] < 60
    assert 10 < said["rss_mib"] < 1024
    assert calls


def test_a_truncated_file_is_refused(tmp_path: Path, ask: Ask) -> None:
    whole = save(training_state(), tmp_path / "c.pt").read_bytes()
    said = ask(write(tmp_path / "cut.pt", whole[:-1000]))
    assert said["accepted"] is False
    assert "central directory" in said["error"]


def test_what_is_more_than_tensors_is_refused(tmp_path: Path, ask: Ask) -> None:
    said = ask(save({"w": torch.zeros(3), "args": argparse.Namespace(lr=1)}, tmp_path / "c.pt"))
    assert said["accepted"] is False
    assert said["error"] == "Unsupported global: GLOBAL argparse.Namespace was not an allowed global by default"


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_file_is_never_run(tmp_path: Path, ask: Ask, *, zipped: bool) -> None:
    path = save({"w": Touch(tmp_path / "run")}, tmp_path / "c.pt", _use_new_zipfile_serialization=zipped)
    assert torch.load(path, weights_only=False)["w"] is None  # it would
    (tmp_path / "run").rmdir()
    said = ask(path)
    assert said["accepted"] is False
    assert "posix" in said["error"]
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, ask: Ask) -> float:
    """Return the MiB that a process needs which loads next to nothing."""
    return float(ask(save({"w": torch.zeros(8)}, tmp_path_factory.mktemp("base") / "a.pt"))["rss_mib"])


def test_a_mapped_file_counts_for_nothing(tmp_path: Path, base: float) -> None:
    large = save({"w": torch.zeros(16 * MIB)}, tmp_path / "b.pt")
    said = tried(large, allowance=Allowance(int(base + 40) * MIB, 120.0))
    assert said["accepted"] is True, said


def test_one_that_grows_is_ended(tmp_path: Path, base: float) -> None:
    path = save({"w": torch.zeros(8), "note": "x" * (64 * MIB)}, tmp_path / "b.pt")
    said = tried(path, allowance=Allowance(int(base + 40) * MIB, 120.0))
    assert said["accepted"] is None
    assert "(load_memory)" in said["error"]
    # It was seen above the bound; what is told may be a little older.
    assert said["rss_mib"] > base + 30


def test_legacy_files_are_loaded_whole_where_there_is_room(tmp_path: Path, ask: Ask) -> None:
    path = save({"w": torch.zeros(MIB)}, tmp_path / "c.pt", _use_new_zipfile_serialization=False)
    assert ask(path)["accepted"] is True
    said = tried(path, allowance=Allowance(7 * MIB, 120.0))
    assert said["accepted"] is None
    assert "can't be mapped" in said["error"]


def test_safetensors_need_no_torch(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    safetensors.torch.save_file({"w": torch.zeros(100)}, path)
    said = tried(path)
    assert (said["accepted"], said["by"], said["torch"]) == (True, "safe_open", None)
    said = tried(write(tmp_path / "cut.safetensors", path.read_bytes()[:-4]))
    assert said["accepted"] is False
    assert "not fully covered" in said["error"]


def test_one_refusal_among_several_files_counts(tmp_path: Path, ask: Ask) -> None:
    good, bad = save({"w": torch.zeros(3)}, tmp_path / "good.pt"), write(tmp_path / "bad.pt", b"PK\3\4")
    safetensors.torch.save_file({"w": torch.zeros(3)}, tmp_path / "m.safetensors")
    said = ask(good, tmp_path / "m.safetensors")
    assert (said["accepted"], said["error"]) == (True, None)
    said = ask(good, bad, tmp_path / "gone.pt", tmp_path / "m.safetensors")
    assert said["accepted"] is False
    assert said["error"].startswith("bad.pt: ")
    said = ask(tmp_path / "m.safetensors", tmp_path / "gone.pt")
    assert (said["accepted"], said["error"]) == (None, "gone.pt: it can't be opened: No such file or directory")


@pytest.mark.parametrize("name", ["x.distcp", "m.gguf"])
def test_files_that_no_loader_here_is_for(tmp_path: Path, name: str) -> None:
    said = tried(write(tmp_path / name, b"GGUF\3\0\0\0 and so on"))
    assert said == {
        "accepted": None,
        "error": "torch.load does not read files of this kind",
        "by": None,
        "torch": None,
        "seconds": 0.0,
        "rss_mib": 0.0,
    }


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "c.pt")
    assert "no regular file" in tried(tmp_path / "c.pt")["error"]
    assert tried()["accepted"] is None


# --- where there is none, and where it misbehaves ---------------------------------------------------------------------

ELSEWHERE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from check_ckpt.loadtest import Allowance, LoadTests
tests = LoadTests(Allowance(1 << 30, 60.0))
print(json.dumps([tests.of_files([path], lambda: None) for path in sys.argv[2:]]))
"""


def test_without_torch_nobody_can_tell(tmp_path: Path) -> None:
    save({"w": torch.zeros(3)}, tmp_path / "c.pt")
    safetensors.torch.save_file({"w": torch.zeros(3)}, tmp_path / "m.safetensors")
    write(tmp_path / "cut.safetensors", (tmp_path / "m.safetensors").read_bytes()[:-4])
    paths = [str(tmp_path / name) for name in ("c.pt", "m.safetensors", "cut.safetensors")]
    oldest = next(path for version, path in pythons().items() if version in ("3.8", "3.9", "3.10"))
    argv = [oldest, "-c", ELSEWHERE, str(REPO / "remoterun/payloads"), *paths]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    zipped, whole, cut = json.loads(done.stdout)
    assert (zipped["accepted"], zipped["torch"]) == (None, None)
    assert zipped["error"].startswith("No module named 'torch'; name an environment that can load it: `--venv DIR`")
    assert (whole["accepted"], whole["by"], whole["error"]) == (True, "header", None)
    assert (cut["accepted"], cut["by"]) == (False, "header")
    assert "cut off" in cut["error"]


def test_an_old_torch_is_not_trusted_with_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, f"os.mkdir({str(tmp_path / 'run')!r})", version="2.5.1+cu124")
    said = tried(save({"w": torch.zeros(3)}, tmp_path / "c.pt"))
    assert (said["accepted"], said["torch"]) == (None, "2.5.1+cu124")
    assert "CVE-2025-32434" in said["error"]
    assert not (tmp_path / "run").exists()


def test_what_lies_in_the_working_directory_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("json", "linecache", "torch"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('wrong one')")
    save({"w": torch.zeros(3)}, tmp_path / "c.pt")
    monkeypatch.chdir(tmp_path)
    assert tried(Path("c.pt"))["torch"] == torch.__version__


@pytest.mark.parametrize(
    ("load", "accepted", "told"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", False, "torch.load crashed on it: its process ended with SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", None, "its process ended with SIGKILL"),
        ("os._exit(3)", None, "its process ended with status 3"),
        ("os.close(3); signal.pause()", None, "its process fell silent"),
        ("os.write(3, b'[]\\n')", None, "its process said what makes no sense"),
        ("while True: os.write(3, b'x' * 65536)", None, "its process said too much"),
        ("kept = [b'x' * 1000000 for _ in iter(int, 1)]", None, "(load_memory)"),
        ("raise RuntimeError('a\\x1b[31mb')", False, "RuntimeError: a\\x1b[31mb"),
    ],
)
def test_a_loader_that_misbehaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: str, accepted: bool | None, told: str
) -> None:
    stand_in(tmp_path, monkeypatch, load)
    path = write(tmp_path / "a.pt", b"PK\3\4")
    said = tried(path, allowance=Allowance(200 * MIB, 60.0))
    assert (said["accepted"], said["torch"]) == (accepted, "9.1")
    assert told in said["error"]


def test_one_that_does_not_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, "signal.pause()")
    said = tried(write(tmp_path / "a.pt", b"PK\3\4"), allowance=Allowance(200 * MIB, 0.5))
    assert (said["accepted"], said["error"]) == (None, "it was given up after 0.5 s (load_time)")


def test_after_a_crash_another_process_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, "if b'bad' in open(path, 'rb').read(): os.kill(os.getpid(), signal.SIGSEGV)")
    bad, good = write(tmp_path / "bad.pt", b"PK\3\4bad"), write(tmp_path / "good.pt", b"PK\3\4")
    tests = LoadTests(ENOUGH)
    said = [tests.of_files([str(path)], lambda: None) for path in (bad, good, bad)]
    tests.close()
    assert [each["accepted"] for each in said] == [False, True, False]
    both = tried(bad, good)
    assert (both["accepted"], both["error"]) == (
        False,
        "bad.pt: torch.load crashed on it: its process ended with SIGSEGV",
    )


def test_torch_is_imported_once_for_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, "print(end='')")
    with (tmp_path / "torch.py").open("a") as module:
        module.write(f"os.mkdir({str(tmp_path / 'imported')!r})\n")
    files = [write(tmp_path / f"{number}.pt", b"PK\3\4") for number in range(3)]
    assert tried(*files)["accepted"] is True


@pytest.mark.parametrize(
    ("error", "short"),
    [
        ("OSError: no. Really not", "OSError: no"),
        (
            "UnpicklingError: Weights only load failed. Long.\n\nThe cause.\n\nCheck the documentation of x",
            "The cause.",
        ),
        ("E: Weights only load failed.\n\tWeightsUnpickler error: Unsupported X. Please", "Unsupported X"),
        ("E: \n", "E:"),
        ("", ""),
    ],
)
def test_errors_are_shortened_to_what_tells(error: str, short: str) -> None:
    assert shortened(error) == short
