"""The scripting guide: its examples run, its tables are whole, and its promise is kept."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remoterun.model import RunStatus
from remoterun.report import error_schema, event_schema, run_schema
from tests.docs.generate import DOCS
from tests.support.runs import GOLDEN

GUIDE = (DOCS / "scripting.md").read_text("utf-8")
BLOCKS = dict(re.findall(r"```(sh|python)\n(.*?)```", GUIDE, re.DOTALL))
SCHEMAS = {"run": run_schema, "event": event_schema, "error": error_schema}


def _example(folder: Path, argv: list[str]) -> str:
    host = f"transport: local, python: {sys.executable}, self: true"
    (folder / "inventory.yaml").write_text(f"hosts:\n  here: {{{host}}}\n", "utf-8")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_STATE_HOME": str(folder),
    }
    done = subprocess.run(argv, capture_output=True, timeout=120, cwd=folder, env=environment, check=True)
    return done.stdout.decode()


def test_the_shell_example_runs(tmp_path: Path) -> None:
    jq = tmp_path / "jq"
    # Not every machine has jq; that it is asked for what is there is what matters here.
    jq.write_text(
        f'#!{sys.executable}\nimport json, sys\nfor o in json.load(open(sys.argv[-1]))["outcomes"]:\n'
        '    print(o["target"], o["status"])\n'
    )
    jq.chmod(0o755)
    said = _example(
        tmp_path, ["env", f"PATH={tmp_path}:{Path(sys.executable).parent}:/usr/bin:/bin", "sh", "-c", BLOCKS["sh"]]
    )
    assert re.fullmatch(r"here (ok|findings)\n", said)


def test_the_python_example_runs(tmp_path: Path) -> None:
    assert re.fullmatch(
        r"here (ok|findings)\nexit status [01]\n", _example(tmp_path, [sys.executable, "-c", BLOCKS["python"]])
    )


def test_every_event_and_exit_status_is_told() -> None:
    kinds = [kind for part in event_schema()["oneOf"] for kind in _types(part)]  # type: ignore[union-attr]
    assert sorted(kinds) == ["outcome", "record", "run_finished", "run_started"]
    assert [kind for kind in kinds if f"| `{kind}` |" not in GUIDE] == []
    told = {int(number) for row in re.findall(r"^\| ([\d, ]+) \|", GUIDE, re.MULTILINE) for number in row.split(",")}
    assert told == {status.exit_code for status in RunStatus} | {141}


def _types(part: Any) -> Iterator[str]:
    for each in part.get("allOf", [part]):
        if "type" in each.get("properties", {}):
            yield each["properties"]["type"]["const"]


# --- what stays -------------------------------------------------------------------------------------------------------


def _kept(name: str) -> dict[str, Any]:
    kept: dict[str, Any] = json.loads((GOLDEN / f"schema-{name}-1.json").read_bytes())
    return kept


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_was_promised_is_kept(name: str) -> None:
    assert list(_broken(_kept(name), SCHEMAS[name]())) == []


def _without(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return {key: _without(item, name) for key, item in value.items() if key != name}
    return [_without(item, name) for item in value if item != name] if isinstance(value, list) else value


@pytest.mark.parametrize("field", ["counts", "outcomes", "error", "value_s", "records", "stdout"])
def test_a_field_that_goes_away_breaks_the_promise(field: str) -> None:
    assert any(field in problem for problem in _broken(_kept("run"), _without(_kept("run"), field)))


def test_a_type_that_changes_breaks_the_promise() -> None:
    changed = json.loads(json.dumps(_kept("event")).replace('"integer"', '"string"'))
    assert any("type" in problem for problem in _broken(_kept("event"), changed))


def _broken(old: Any, new: Any) -> Iterator[str]:
    """Say what a reader of the old schema would miss, or not understand, in documents of the new one."""
    yield from _compare("", old, new, old.get("$defs", {}), new.get("$defs", {}))


def _compare(path: str, old: Any, new: Any, olds: Any, news: Any) -> Iterator[str]:
    old, new = (
        defs.get(each["$ref"].rpartition("/")[2], {}) if "$ref" in each else each
        for each, defs in ((old, olds), (new, news))
    )
    if "const" in old and old["const"] != new.get("const"):
        yield f"{path}: const is {new.get('const')}, was {old['const']}"
    if "type" in old and not _names(new.get("type", "anything")) <= _names(old["type"]):
        yield f"{path}: type is {new.get('type')}, was {old['type']}"
    yield from (
        f"{path}: {value} is no value any more" for value in old.get("enum", ()) if value not in new.get("enum", ())
    )
    yield from (
        f"{path}.{name}: not required any more"
        for name in old.get("required", ())
        if name not in new.get("required", ())
    )
    for name, part in old.get("properties", {}).items():
        if name not in new.get("properties", {}):
            yield f"{path}.{name}: gone"
        else:
            yield from _compare(f"{path}.{name}", part, new["properties"][name], olds, news)
    if "items" in old:
        yield from _compare(f"{path}[]", old["items"], new.get("items", {}), olds, news)
    for word in ("anyOf", "allOf", "oneOf"):
        # Kinds of events keep their places; new ones come behind them.
        parts = new.get(word, [])
        yield from (f"{path}: {word} has less" for _ in old.get(word, [])[len(parts) :])
        for index, (one, other) in enumerate(zip(old.get(word, []), parts, strict=False)):
            yield from _compare(f"{path}<{index}>", one, other, olds, news)


def _names(types: str | list[str]) -> set[str]:
    return {types} if isinstance(types, str) else set(types)
