"""JSON Schemas of the files a user writes: whole, described, and as strict as the loaders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import pytest

from remoterun.errors import ConfigError
from remoterun.inventory import FILE_NAME, Inventory, inventory_schema
from remoterun.inventory.yamlfile import parse, read
from remoterun.model import LIMIT_NAMES, Json
from remoterun.playbook import load_playbook, playbook_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
SCHEMAS = {"inventory": inventory_schema, "playbook": playbook_schema}
LOADERS: dict[str, Callable[[Path], object]] = {"inventory": Inventory.load, "playbook": load_playbook}


def validator(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(SCHEMAS[name]())


def accepted(name: str, text: str, path: Path) -> tuple[bool, bool]:
    """Return whether the schema and the loader take a file."""
    path.write_text(text, encoding="utf-8")
    by_schema = validator(name).is_valid(parse(text.encode(), str(path)).root)
    try:
        LOADERS[name](path)
    except ConfigError:
        return by_schema, False
    return by_schema, True


def properties(part: Json) -> Iterator[tuple[str, Json]]:
    if isinstance(part, list):
        for item in part:
            yield from properties(item)
    elif isinstance(part, dict):
        for key, inner in part.items():
            if key == "properties" and isinstance(inner, dict):
                yield from inner.items()
            yield from properties(inner)


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_key_is_described(name: str) -> None:
    schema = SCHEMAS[name]()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["title"] == f"remoterun {name}"
    found = list(properties(schema))
    assert len(found) > 10
    for key, said in found:
        assert isinstance(said, dict), key
        assert isinstance(said["description"], str), key
        assert said["description"], key
    assert {key for key, _ in found} >= set(LIMIT_NAMES)


def test_the_files_of_this_project_are_valid() -> None:
    validator("inventory").validate(read(ROOT / FILE_NAME).root)
    playbooks = sorted((ROOT / "playbooks").glob("*.yaml"))
    assert playbooks
    for path in playbooks:
        validator("playbook").validate(read(path).root)


GOOD_INVENTORIES = [
    "{}",
    "hosts: {h: }",
    "hosts: {h: {guests: {200: , '201': {name: x}}}}",
    "hosts: {h: {identity_file: a, known_hosts: [a, b], jump: none, tags: gpu}}",
    "hosts: {h: {self: true, vars: {a: {b: [1, null, 2.5]}}, env: {A: b}, limits: {run: 1.5h, stall: none}}}",
    "hosts: {h: {host_key: 'SHA256:" + "A" * 43 + "', transport: ssh, become: none, concurrency: {logins: 1}}}",
    "hosts: {h: {guests: {web: {python: python3}}, hop: lxc}}\ngroups: {g: web, f: [h], e: {members: all, venv: /v}}",
    "defaults: {user: u, venv: '/a b', hop: lxc, limits: {connect: 500ms}}",
    "hosts: {h: {venv: /opt/bin/python3.11-venv}}",
    "defaults: {host_key: accept-new}\nhosts: {h: {host_key: strict}, i: {host_key: [accept-new]}}",
]
BAD_INVENTORIES = [
    "[]",
    "hosts: ",
    "hosts: []",
    "hosts: {h: 3}",
    "hosts: {h: []}",
    "hosts: {h: {adress: x}}",
    "hosts: {h: {address: }}",
    "hosts: {h: {address: -x}}",
    "hosts: {h: {venv: /opt/venv/bin/python3}}",
    "hosts: {h: {address: 'a b'}}",
    "hosts: {'a b': }",
    "hosts: {h: {port: 0}}",
    "hosts: {h: {port: '22'}}",
    "hosts: {h: {port: 70000}}",
    "hosts: {h: {user: -x}}",
    "hosts: {h: {user: 3}}",
    "hosts: {h: {self: yes}}",
    "hosts: {h: {transport: telnet}}",
    "hosts: {h: {become: su}}",
    "hosts: {h: {hop: docker}}",
    "hosts: {h: {host_key: MD5:00}}",
    "hosts: {h: {identity_file: []}}",
    "hosts: {h: {venv: relative}}",
    "hosts: {h: {venv: /v, python: p}}",
    "hosts: {h: {env: {A: 1}}}",
    "hosts: {h: {env: {'A=': x}}}",
    "hosts: {h: {vars: {'': 1}}}",
    "hosts: {h: {tags: ['a b']}}",
    "hosts: {h: {limits: {run: 30}}}",
    "hosts: {h: {limits: {run: 0s}}}",
    "hosts: {h: {limits: {run: 30 s}}}",
    "hosts: {h: {limits: {sleep: 3s}}}",
    "hosts: {h: {concurrency: {enter: 0}}}",
    "hosts: {h: {guests: {'a/b': }}}",
    "hosts: {h: {guests: {200: {hop: none}}}}",
    "hosts: {h: {guests: {200: {port: 22}}}}",
    "hosts: {h: }\ngroups: {g: []}",
    "hosts: {h: }\ngroups: {g: {venv: /v}}",
    "hosts: {h: }\ngroups: {g: {members: h, tags: [x]}}",
    "defaults: {address: x}",
    "defaults: {hop: none}",
    "defaults: {host_key: maybe}",
    "host: {}",
]
GOOD_PLAYBOOKS = [
    "steps: [{payload: probe}]",
    "description: x\ntargets: all\nlimits: {run: 1h}\nsteps: [{payload: a@1, fail_on: bad}, {payload: b@=1.2.0}]",
    "targets: [a, 'tag:b']\nsteps: [{payload: a, params: {x: {var: v}, y: [1, {z: null}]}, env: {A: b}}]",
    "steps: [{payload: a, rules: {ignore: [CK054, my-rule], severity: {CK120: info, CK1: bad}}}]",
    "steps: [{payload: a, rules: {}}, {payload: b, rules: {ignore: CK054}}]",
    "secrets: {a: {env: A}, b: {file: /b}, c: {command: [d]}}\n"
    "steps: [{payload: p, params: {x: {secret: a}}, env: {A: {secret: b}, B: c}}]",
]
BAD_PLAYBOOKS = [
    "{}",
    "secrets: {a: {}}\nsteps: [{payload: p}]",
    "secrets: {a: {env: A, file: b}}\nsteps: [{payload: p}]",
    "secrets: {a: {command: pass}}\nsteps: [{payload: p}]",
    "secrets: {a: text}\nsteps: [{payload: p}]",
    "secrets: {'a b': {env: A}}\nsteps: [{payload: p}]",
    "steps: [{payload: p, env: {A: {secret: 3}}}]",
    "steps: [{payload: p, env: {A: {secret: a, b: c}}}]",
    "steps: []",
    "steps: {payload: a}",
    "steps: [payload]",
    "steps: [{}]",
    "steps: [{payload: 3}]",
    "steps: [{payload: 'a b'}]",
    "steps: [{payload: a, fail_on: fatal}]",
    "steps: [{payload: a, parms: {}}]",
    "steps: [{payload: a, params: []}]",
    "steps: [{payload: a, env: {A: 1}}]",
    "steps: [{payload: a, rules: }]",
    "steps: [{payload: a, rules: [CK054]}]",
    "steps: [{payload: a, rules: {ignore: []}}]",
    "steps: [{payload: a, rules: {ignore: [54]}}]",
    "steps: [{payload: a, rules: {ignore: ['CK 54']}}]",
    "steps: [{payload: a, rules: {ignores: [CK054]}}]",
    "steps: [{payload: a, rules: {severity: [CK054]}}]",
    "steps: [{payload: a, rules: {severity: {CK054: ok}}}]",
    "steps: [{payload: a, rules: {severity: {'': bad}}}]",
    "steps: [{payload: a}]\nrules: {ignore: [CK054]}",
    "steps: [{payload: a}]\ntargets: []",
    "steps: [{payload: a}]\ntargets: 3",
    "steps: [{payload: a}]\nlimits: {run: 1}",
    "steps: [{payload: a}]\nname: x",
    "steps: [{payload: a}]\ndescription: ",
]
CASES = [
    *(("inventory", text, True) for text in GOOD_INVENTORIES),
    *(("inventory", text, False) for text in BAD_INVENTORIES),
    *(("playbook", text, True) for text in GOOD_PLAYBOOKS),
    *(("playbook", text, False) for text in BAD_PLAYBOOKS),
]


@pytest.mark.parametrize(("name", "text", "good"), CASES)
def test_schema_and_loader_agree(name: str, text: str, *, good: bool, tmp_path: Path) -> None:
    assert accepted(name, text, tmp_path / "file.yaml") == (good, good)
