"""Every example of every page: commands run on the fleet that the docs speak of, files are read by what reads them.

A block is what the language of its fence says. Kinds:

- `sh`: each command runs, in the page's order, and ends with exit status 0 unless `ENDS` says otherwise;
- `console`: the same, with what comes out below each `$`, but for times and ids; `...` stands for any lines;
- `yaml`, `toml`: files of a project, in which the commands after them run; a first line `# NAME` says which;
- `python`: a program, a test, a fabfile or a payload, and it runs;
- what `ELSEWHERE` names: another test compares it with the program.
"""

from __future__ import annotations

import fnmatch
import json
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

from remoterun.audit.file import load_settings
from remoterun.errors import ConfigError
from tests.docs.fleet import Desk, Fleet, Line, fleet
from tests.docs.pages import ROOT, Block, blocks_of, name_of, pages
from tests.support.homes import Remembered
from tests.support.lab import wait_for
from tests.support.receiver import receiving

ELSEWHERE: Final = {
    ("README.md", "text"): "tests/cli/test_demo.py",
    ("docs/cron.md", "yaml"): "tests/unit/audit/test_audit_file.py",
    ("docs/cli.md", "text"): "tests/docs/generate.py",
    ("docs/cron.md", "text"): "tests/docs/test_cron_page.py",  # and the crontab in test_audit_file.py
    ("docs/cron.md", "ini"): "tests/unit/audit/test_audit_file.py",
    ("docs/history.md", "text"): "tests/docs/test_history_page.py",
    ("docs/python.md", "python"): "tests/api/test_python.py",
    ("docs/scripting.md", "sh"): "tests/docs/test_scripting.py",
    ("docs/scripting.md", "python"): "tests/docs/test_scripting.py",
}

_RUN_ID: Final = r"\b\d{8}T\d{6}Z-[0-9a-f]{8}\b"
PLAYED: Final = "remoterun play check-ckpt --on training"
BEFORE: Final[dict[str, tuple[str, ...]]] = {
    "docs/cron.md": (),
    "docs/history.md": ("cp -r . ../old && remoterun exec --project ../old --on kpro6/200 -- true && rm -r ../old",),
    "docs/report.md": ("remoterun show last --output json -o run.json",),
}
"""What somebody has done who reads a page and has played twice, all of them at one desk."""

ENDS: Final = {
    "remoterun rerun last --only unreachable": 2,  # none is
}
"""Commands that end otherwise than with 0, and how."""

PAYLOAD: Final = """\
# /// payload
# name = "upload-metrics"
# version = "1.0.0"
# description = "Upload the metrics of a training."
# [params.token]
# type = "string"
# ///
def run(ctx):
    ctx.emit({"kind": "uploaded"})
"""
PLAYBOOK: Final = """\
targets: all
steps:
  - payload: check-ckpt@1
    params: {root: {var: checkpoints, default: /workspace/checkpoints}}
"""
FILES: Final = {
    "playbooks/check-ckpt.yaml": PLAYBOOK,
    "audit.yaml": "playbooks: [check-ckpt]\nalerts: {to: {chat: {file: chat.url}}}\n",
    "payloads/upload_metrics.py": PAYLOAD,
    "keys/deploy": "not a key of anybody",
    "my_check.py": "import sys\nprint(sys.argv[1:])\n",
}


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Serve one fleet for all pages."""
    with fleet(tmp_path_factory.mktemp("fleet") / "lab") as served:
        yield served


@pytest.fixture(scope="module")
def chat() -> Iterator[str]:
    """Receive the alerts of all pages."""
    with receiving() as receiver:
        yield receiver.url


def _desk(machines: Fleet, folder: Path, remembered: Remembered) -> Desk:
    desk = Desk(folder)
    desk.set_up(machines)
    remembered.give(desk.home / ".local/state", desk.home / ".cache")
    (inventory,) = [block for block in blocks_of(ROOT / "README.md") if block.kind == "yaml"]
    for name, text in {"inventory.yaml": inventory.text, **FILES}.items():
        desk.write(name, text)
    return desk


@pytest.fixture(scope="module")
def played(machines: Fleet, tmp_path_factory: pytest.TempPathFactory, remembered: Remembered) -> Desk:
    """Return the desk of somebody who has played twice."""
    desk = _desk(machines, tmp_path_factory.mktemp("played"), remembered)
    _all_well(desk, PLAYED, PLAYED)
    return desk


def _all_well(desk: Desk, *commands: str) -> None:
    for line in desk.type(*commands):
        assert line.status == 0, line


@pytest.mark.parametrize("page", [page for page in pages() if blocks_of(page)], ids=name_of)
def test_the_examples_of_a_page(
    page: Path, machines: Fleet, chat: str, tmp_path: Path, remembered: Remembered, request: pytest.FixtureRequest
) -> None:
    before = BEFORE.get(name_of(page))
    desk: Desk = request.getfixturevalue("played") if before is not None else _desk(machines, tmp_path, remembered)
    desk.write("chat.url", chat)
    _all_well(desk, *(before or ()))
    for block in blocks_of(page):
        if (block.page, block.kind) not in ELSEWHERE:
            KINDS[block.kind](desk, block)
    wait_for(lambda: desk.at_work() == [], "everything to end that the page has started")


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_block_says_what_it_is(page: Path) -> None:
    known = {*KINDS, *(kind for name, kind in ELSEWHERE if name == name_of(page))}
    odd = [block.place for block in blocks_of(page) if block.kind not in known]
    assert odd == [], "an indented block is none of these: it needs a fence"


@pytest.mark.parametrize(("page", "kind"), ELSEWHERE)
def test_what_is_compared_elsewhere_is_there(page: str, kind: str) -> None:
    assert Path(page).name in (ROOT / ELSEWHERE[page, kind]).read_text("utf-8")
    assert [block for block in blocks_of(ROOT / page) if block.kind == kind]


# --- commands ---------------------------------------------------------------------------------------------------------


def _run(desk: Desk, block: Block) -> None:
    """Run the commands of a block, and hold those that cannot run here against what they speak of."""
    commands = [_with_a_run_that_is_there(desk, command) for command in _commands(block.text)]
    for line in desk.type(*(command for command in commands if not _is_known(command))):
        assert line.status == ENDS.get(line.command.partition("  #")[0].strip(), 0), f"{block.place}: {line}"


def _commands(text: str) -> Iterator[str]:
    """Yield the commands of a block: a line each, or as many as the shell needs for one."""
    command = ""
    for line in filter(None, text.splitlines()):
        command += f"{line}\n"
        if not command.endswith("\\\n") and _is_whole(command):
            yield command.strip()
            command = ""
    assert command == "", f"the shell takes this for a part of something: {command}"


def _is_whole(command: str) -> bool:
    return subprocess.run(["/bin/sh", "-n", "-c", command], capture_output=True, check=False).returncode == 0


def _is_known(command: str) -> bool:
    """Say whether a command is none to run here, having checked what it names."""
    for pattern, check in UNRUN.items():
        found = re.fullmatch(pattern, command.partition("  #")[0].strip())
        if found is not None:
            check(*found.groups())
            return True
    return False


def _is_target(name: str) -> None:
    assert re.search(rf"^{name}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE), name


def _is_extra(name: str) -> None:
    assert name in tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]


def _is_tested() -> None:
    assert '"--keep"' in (ROOT / "tests/cli/test_demo.py").read_text("utf-8")


UNRUN: Final[dict[str, Callable[..., None]]] = {
    r"make (\w+)": _is_target,
    r"pip install 'remoterun\[(\w+)\]'": _is_extra,
    r"(?:\.venv/bin/)?pip install \.|python3 -m venv \.venv": lambda: None,
    r"remoterun demo --keep": _is_tested,
}


def _with_a_run_that_is_there(desk: Desk, command: str) -> str:
    """Put the id of a run that goes on for a moment in the place of that of a run on another machine.

    Of one that is over before its command leaves, nothing stays there.
    """
    chosen = re.search(rf"{_RUN_ID} --on (\S+)", command)
    if chosen is None:
        return command
    start = f"remoterun exec --on {chosen[1]} --detach --output json -- sleep 1"
    (line,) = desk.type(start, more={"XDG_STATE_HOME": str(desk.folder / "another")})
    return re.sub(_RUN_ID, json.loads(line.output)["run_id"], command)


def _compare(desk: Desk, block: Block) -> None:
    """Run what stands behind each `$`, and compare what comes out with what stands below it."""
    parts = re.split(r"^\$ (.*)\n", block.text, flags=re.MULTILINE)
    assert parts[0] == "", f"{block.place}: begins without a command"
    commands, shown = parts[1::2], parts[2::2]
    for line, text in zip(desk.type(*commands), shown, strict=True):
        assert line.status == ENDS.get(line.command, 0), f"{block.place}: {line}"
        assert _fits(line, text), f"{block.place}: {line.command} says now:\n{line.output}"


def _fits(line: Line, shown: str) -> bool:
    expected = "".join("*" if part == "...\n" else _glob(_masked(part)) for part in shown.splitlines(keepends=True))
    return fnmatch.fnmatchcase(_masked(line.output), expected)


def _glob(text: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", text)


def _masked(text: str) -> str:
    """Put a word in the place of all that differs from run to run."""
    text = re.sub(_RUN_ID, "RUN", text)
    text = re.sub(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?( UTC|Z)?", "MOMENT", text)
    text = re.sub(r"\b\d+(\.\d+)? (s|ms|m|min)\b", "TIME", text)
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)


# --- files ------------------------------------------------------------------------------------------------------------


def _read_yaml(desk: Desk, block: Block) -> None:
    """Lay a file where it belongs, and let remoterun read it."""
    document = yaml.safe_load(block.text)
    if document is None:
        assert re.fullmatch(r"# yaml-language-server: \$schema=\./\w+\.schema\.json\n", block.text), block.place
        return
    named = re.match(r"# (\S+\.yaml)", block.text)
    name = next(name for key, name in YAML_FILES.items() if key in document)
    desk.write(named[1] if named else name, block.text)
    if "playbooks" in document:
        load_settings(desk.project)
    else:
        _well(desk, block, "remoterun inventory check")


YAML_FILES: Final = {"hosts": "inventory.yaml", "playbooks": "audit.yaml", "steps": "playbooks/example.yaml"}


def _read_toml(desk: Desk, block: Block) -> None:
    """Take a manifest for that of a package, and let remoterun read it."""
    manifest = tomllib.loads(block.text)
    module = manifest["entry"].partition(":")[0]
    desk.write(f"payloads/{module}/payload.toml", block.text)
    desk.write(f"payloads/{module}/__init__.py", "def run(ctx):\n    ctx.emit(ctx.params)\n")
    for pattern in manifest.get("pack", {}).get("include", ()):
        desk.write(f"payloads/{module}/{pattern.replace('*', 'some')}", "{}\n")
    _well(desk, block, f"remoterun payload show {manifest['name']}")


def _run_python(desk: Desk, block: Block) -> None:
    if block.text.startswith("# /// payload"):
        name = str(re.search(r'^# name = "(.*)"$', block.text, re.MULTILINE)[1])  # type: ignore[index]
        desk.write(f"payloads/{name.replace('-', '_')}.py", block.text)
        _well(desk, block, f"remoterun play {name} --on kpro6/200")
    elif "remoterun.fabric" in block.text:
        desk.write("fabfile.py", block.text)
        _well(desk, block, "fab --list")
    elif "def test_" in block.text:
        desk.write("test_example.py", block.text)
        _well(desk, block, "python -m pytest -q -p no:cacheprovider test_example.py")
    else:
        desk.write("example.py", block.text)
        _well(desk, block, "python example.py")


def _well(desk: Desk, block: Block, command: str) -> None:
    (line,) = desk.type(command)
    assert line.status == 0, f"{block.place}: {line}"


KINDS: Final[dict[str, Callable[[Desk, Block], None]]] = {
    "sh": _run,
    "console": _compare,
    "yaml": _read_yaml,
    "toml": _read_toml,
    "python": _run_python,
}


# --- that the above finds something -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("sh", "remoterun play check-ckpt --on nobody\n"),
        ("sh", "remoterun play check-ckpt --not-a-flag\n"),
        ("sh", "false\n"),
        ("sh", "true\nexit 0\ntrue\n"),
        ("sh", "make nothing-of-that-name\n"),
        ("sh", "if true\n"),
        ("console", "$ echo a\nb\n"),
        ("console", "echo a\n"),
        ("yaml", "hosts: {kpro6: {adress: x}}\n"),
        ("yaml", "steps: [{payload: nothing}]\n"),
        ("yaml", "playbooks: check-ckpt\n"),
        ("toml", 'name = "x"\nentry = "x:run"\n'),
        ("python", "import remoterun\nremoterun.plai()\n"),
    ],
)
def test_an_example_that_is_wrong_is_found(
    kind: str, text: str, machines: Fleet, tmp_path: Path, remembered: Remembered
) -> None:
    desk = _desk(machines, tmp_path, remembered)
    with pytest.raises((AssertionError, ValueError, ConfigError)):
        KINDS[kind](desk, Block(page="page.md", line=1, kind=kind, text=text))


def test_what_differs_from_run_to_run_is_no_difference(machines: Fleet, tmp_path: Path, remembered: Remembered) -> None:
    desk = _desk(machines, tmp_path, remembered)
    shown = "$ printf 'took 0.3 s\\na\\nb\\n[x]\\n'\ntook 0.82 s\n...\n[x]\n"
    _compare(desk, Block(page="page.md", line=1, kind="console", text=shown))
