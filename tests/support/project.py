"""Projects and command lines for tests: an inventory of lab hosts, and `remoterun` as a user starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tests.support import commands

if TYPE_CHECKING:
    from tests.support.lab import LabHost

REMOTERUN = commands.REMOTERUN
# A guest has a /tmp and a /root of its own: an environment of the checkout may not be seen there, its base always is.
GUEST_PYTHON = str(Path(sys.executable).resolve())


def strict_json(data: bytes) -> Any:
    """Read exactly one JSON document, without NaN and infinities."""

    def refuse(text: str) -> float:
        raise AssertionError(f"{text} is no JSON")

    return json.loads(data.decode("ascii"), parse_constant=refuse)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Hold what one command line gave."""

    status: int
    stdout: bytes
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        """Return standard output as one strict JSON document."""
        value = strict_json(self.stdout)
        assert isinstance(value, dict), value
        return value

    def outcome(self, target: str, step: int = 0) -> dict[str, Any]:
        """Return the one outcome of a target, which may be called by its name, and a step."""
        outcomes = self.document["outcomes"]
        found = [each for each in outcomes if target in (each["target"], each["name"]) and each["step"] == step]
        assert len(found) == 1, (target, [item["target"] for item in self.document["outcomes"]])
        result: dict[str, Any] = found[0]
        return result


def remoterun(*words: str, **options: Any) -> Result:
    """Run `remoterun WORDS` to its end; `options` are those of `commands.run`."""
    done = commands.run(*words, **options)
    return Result(status=done.returncode, stdout=done.stdout, stderr=done.stderr.decode("utf-8", "replace"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """Hold a project folder."""

    folder: Path

    def argv(self, *words: str) -> list[str]:
        """Return the command line of `remoterun WORDS --project FOLDER`, kept before a ``--``."""
        at = words.index("--") if "--" in words else len(words)
        return [*REMOTERUN, *words[:at], "--project", str(self.folder), *words[at:]]

    def run(self, *words: str, stdin: bytes = b"", timeout: float = 120) -> Result:
        """Run a command line to its end."""
        return remoterun(*self.argv(*words)[len(REMOTERUN) :], stdin=stdin, timeout=timeout)

    def payload(self, name: str, source: str, **more: Any) -> None:
        """Add a single-file payload; `more` goes into its manifest."""
        manifest = {"name": name, "version": "1.0.0", "description": f"The test payload {name}.", **more}
        block = "".join(
            f"# {key} = {json.dumps(value)}\n" for key, value in manifest.items() if not isinstance(value, dict)
        )
        tables = {key: value for key, value in manifest.items() if isinstance(value, dict)}
        for table, values in tables.items():
            for key, value in values.items():
                inner = value if isinstance(value, dict) else None
                head = f"[{table}.{key}]" if inner else f"[{table}]"
                lines = inner if inner else {key: value}
                block += f"# {head}\n" + "".join(f"# {item} = {json.dumps(text)}\n" for item, text in lines.items())
        folder = self.folder / "payloads"
        folder.mkdir(exist_ok=True)
        (folder / f"{name.replace('-', '_')}.py").write_text(f"# /// payload\n{block}# ///\n{source}", "utf-8")


def write_project(folder: Path, hosts: Sequence[LabHost], **more: Mapping[str, Any]) -> Project:
    """Write the inventory of lab hosts; `more` maps host names to further keys, laid over what the lab says."""
    written: dict[str, Any] = {}
    for host in hosts:
        guests = {ctid: {"python": GUEST_PYTHON} for ctid in host.guests}
        written[host.name] = {
            "address": host.address,
            "port": host.port,
            "user": "root",
            "identity_file": str(host.identity_file),
            "known_hosts": str(host.known_hosts),
            "ssh_config": "none",
            **({"guests": guests} if guests else {"python": GUEST_PYTHON}),
            **more.get(host.name, {}),
        }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "inventory.yaml").write_text(yaml.safe_dump({"hosts": written}), "utf-8")
    return Project(folder=folder)


def piped(argv: Sequence[str], reader: str) -> Result:
    """Run a command line whose output goes to a shell's reader (``head -n 3``); gives what that printed."""
    script = f'"$@" | {reader}; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", script, "-", *argv], capture_output=True, timeout=60, check=False)
    return Result(status=done.returncode, stdout=done.stdout, stderr=done.stderr.decode("utf-8", "replace"))
