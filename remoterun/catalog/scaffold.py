"""New payloads: a small one that works, for its author to change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from remoterun.catalog.manifest import NAME, NAME_RULE, package_fault
from remoterun.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Kind: TypeAlias = Literal["package", "file", "program"]

_HEAD = """\
name = "@NAME@"
version = "0.1.0"
description = "Say in one sentence what @NAME@ looks at."
"""

_RULES = """\
rules = ["T001"]
"""

_PARAMS = """\
[params.root]
type = "path"
default = "/tmp"
help = "The folder to look in."
"""

_RUN = '''\
import os


def run(ctx):
    """Emit one record per folder under `root`."""
    root = ctx.params["root"]
    said = ctx.params.get("rules", {})  # what a playbook or `--ignore` and `--severity` say of the rules
    ignored, severity = "T001" in said.get("ignore", ()), said.get("severity", {}).get("T001", "suspect")
    if not os.path.isdir(root):
        ctx.nothing("there is no folder %s" % root)
    for folder, _, files in os.walk(root):
        ctx.progress(len(files), unit="files", what=folder)
        ctx.emit({"kind": "folder", "name": folder, "files": len(files)})
        for name in files:
            if name.endswith(".tmp") and not ignored:
                ctx.finding("T001", severity, os.path.join(folder, name), "a temporary file was left behind")
'''

_PROGRAM = """\
#!/bin/sh
# Parameters arrive as one JSON object on stdin; each line written to stdout is one record, a JSON object.
params=$(cat)
printf '{"kind": "greeting", "kernel": "%s", "params": %s}\\n' "$(uname -r)" "$params"
"""

_TEST = '''\
"""Run the payload here, without a target: `python -m pytest` in this folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import @PACKAGE@  # noqa: E402


class Recorder:
    """Stand in for the context: keep what the payload says."""

    def __init__(self, **params):
        self.params = params
        self.records = []
        self.findings = []

    def emit(self, record):
        self.records.append(record)

    def finding(self, rule, severity, subject, message, next_step="", evidence=None, **data):
        self.findings.append((rule, severity, subject))

    def progress(self, done, total=None, unit="", what=""):
        pass

    def log(self, text):
        pass

    def nothing(self, message, hint=None):
        raise LookupError(message)

    def fail(self, message):
        raise RuntimeError(message)


def test_counts_files_and_finds_leftovers(tmp_path):
    (tmp_path / "model.pt").write_bytes(b"")
    (tmp_path / "model.pt.tmp").write_bytes(b"")
    ctx = Recorder(root=str(tmp_path))
    @PACKAGE@.run(ctx)
    assert [record["files"] for record in ctx.records] == [2]
    assert ctx.findings == [("T001", "suspect", str(tmp_path / "model.pt.tmp"))]
'''


def scaffold(name: str, folder: Path, kind: Kind = "package") -> list[Path]:
    """Write a new payload into the folder `payloads` of a project and return the files written, the manifest's first.

    Raises:
        ConfigError: for a bad name, when something of that name is there already, and when a file can't be written.
    """
    package = name.replace("-", "_")
    fault = package_fault(package) if NAME.fullmatch(name) else NAME_RULE
    if fault:
        raise ConfigError(f"a payload named {name!r} {fault}")
    taken = [path for path in (folder / package, folder / f"{package}.py", folder / name) if path.exists()]
    if taken:
        raise ConfigError(f"{taken[0]} is there already, and is left as it is: choose another name")
    written = []
    for path, text in _files(kind, package).items():
        written.append(folder / path)
        _write(folder / path, text.replace("@NAME@", name).replace("@PACKAGE@", package))
    return written


def _files(kind: Kind, package: str) -> Mapping[str, str]:
    if kind == "file":
        block = "".join(f"# {line}".rstrip() + "\n" for line in f"{_HEAD}{_RULES}\n{_PARAMS}".splitlines())
        return {f"{package}.py": f"# /// payload\n{block}# ///\n{_RUN}"}
    if kind == "program":
        manifest = f'{_HEAD}program = "run.sh"\n\n{_PARAMS}'
        return {f"{package}/payload.toml": manifest, f"{package}/run.sh": _PROGRAM}
    manifest = f'{_HEAD}{_RULES}entry = "@PACKAGE@:run"\n\n{_PARAMS}'
    return {
        f"{package}/payload.toml": manifest,
        f"{package}/__init__.py": _RUN,
        f"{package}/tests/test_{package}.py": _TEST,
    }


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
        if text.startswith("#!"):
            path.chmod(0o755)
    except OSError as error:
        raise ConfigError(f"{path} can't be written: {error.strerror}") from error
