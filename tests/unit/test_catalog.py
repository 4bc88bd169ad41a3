"""The catalog: where payloads are found, which version is chosen, and that none is ever imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from remoterun.catalog import Catalog
from remoterun.errors import ConfigError

REPOSITORY = Path(__file__).parents[2]
BOMB = "raise SystemExit('this code must not run on the controller')\n"


def add(payloads: Path, name: str, version: str, folder: str | None = None) -> Path:
    path = payloads / (folder or name.replace("-", "_"))
    path.mkdir(parents=True)
    package = path.name.partition("@")[0].replace("-", "_")
    (path / "payload.toml").write_text(
        f'name = "{name}"\nversion = "{version}"\ndescription = "d"\nentry = "{package}:run"\n'
    )
    (path / "__init__.py").write_text(BOMB)
    return path


def refusal(catalog: Catalog, reference: str) -> str:
    with pytest.raises(ConfigError) as caught:
        catalog.find(reference)
    return str(caught.value)


def test_the_built_in_payloads_are_there_without_a_project() -> None:
    catalog = Catalog.load(None)
    assert "probe" in catalog.names()
    probe = catalog.find("probe@1")
    assert (probe.origin, probe.shadows) == ("built-in", None)
    assert probe.pack().entry == probe.entry


def test_a_project_without_payloads_has_the_built_in_ones(tmp_path: Path) -> None:
    assert Catalog.load(tmp_path).names() == Catalog.load(None).names()


def test_versions_stand_side_by_side_and_a_constraint_chooses(tmp_path: Path) -> None:
    payloads = tmp_path / "payloads"
    for version in ("1.0.0", "1.2.0", "1.2.10", "1.2.9", "2.0.0"):
        add(payloads, "my-check", version, f"my_check@{version}")
    add(payloads, "my-check", "10.0.0", "my-check")
    catalog = Catalog.load(tmp_path)
    assert [info.version for info in catalog.versions("my-check")] == [
        "10.0.0",
        "2.0.0",
        "1.2.10",
        "1.2.9",
        "1.2.0",
        "1.0.0",
    ]
    chosen = {
        reference: catalog.find(f"my-check{reference}").version for reference in ("", "@1", "@1.2", "@=1.2.0", "@2")
    }
    assert chosen == {"": "10.0.0", "@1": "1.2.10", "@1.2": "1.2.10", "@=1.2.0": "1.2.0", "@2": "2.0.0"}
    assert {info.package for info in catalog.versions("my-check")} == {"my_check"}


def test_an_unmet_constraint_names_the_versions_there_are(tmp_path: Path) -> None:
    add(tmp_path / "payloads", "my-check", "1.0.0", "my_check@1.0.0")
    add(tmp_path / "payloads", "my-check", "2.1.0", "my_check@2.1.0")
    assert refusal(Catalog.load(tmp_path), "my-check@3") == (
        "no version of the payload my-check matches 'my-check@3': there is 2.1.0, 1.0.0"
    )


def test_an_unknown_name_gets_the_nearest(tmp_path: Path) -> None:
    add(tmp_path / "payloads", "my-check", "1.0.0")
    catalog = Catalog.load(tmp_path)
    assert "did you mean my-check" in refusal(catalog, "my_chekc")
    assert "did you mean probe" in refusal(catalog, "prob@1")
    assert "did you mean" not in refusal(catalog, "xyzzy")


def test_a_projects_payload_hides_the_built_in_and_says_so(tmp_path: Path) -> None:
    built_in = Catalog.load(None).find("probe")
    path = add(tmp_path / "payloads", "probe", "0.5.0", "my_probe")
    catalog = Catalog.load(tmp_path)
    probe = catalog.find("probe")
    assert (probe.version, probe.origin, probe.path) == ("0.5.0", "project", path)
    assert probe.shadows == f"built-in {built_in.version}"
    message = refusal(catalog, "probe@1")
    assert "there is 0.5.0; project, hides built-in" in message
    assert len(catalog.versions("probe")) == 1


def test_two_payloads_of_one_name_and_version_are_a_problem(tmp_path: Path) -> None:
    add(tmp_path / "payloads", "same", "1.0.0", "one")
    add(tmp_path / "payloads", "same", "1.0.0", "two")
    with pytest.raises(ConfigError, match=r"two: is same 1\.0\.0, and so is .*one: give one another name or version"):
        Catalog.load(tmp_path)


def test_what_only_looks_like_a_payload_is_explained_when_asked_for(tmp_path: Path) -> None:
    payloads = tmp_path / "payloads"
    (payloads / "no_manifest").mkdir(parents=True)
    (payloads / "no_block.py").write_text(BOMB)
    (payloads / ".hidden").mkdir()
    (payloads / "__pycache__").mkdir()
    (payloads / "README.md").touch()
    catalog = Catalog.load(tmp_path)
    assert "no_manifest has no payload.toml" in refusal(catalog, "no-manifest")
    assert "no_block.py has no block `# /// payload`" in refusal(catalog, "no_block@1")


def test_payloads_that_is_no_folder_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "payloads").touch()
    with pytest.raises(ConfigError, match=r"payloads: can't be read: Not a directory"):
        Catalog.load(tmp_path)


# --- entry points: through real distribution metadata, in a process of their own --------------------------------------

SHOW = """
import json, sys
from pathlib import Path
from remoterun.catalog import Catalog
from remoterun.errors import ConfigError
try:
    catalog = Catalog.load(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    found = [[i.name, i.version, i.origin, str(i.path), i.shadows, i.pack().sha256] for i in catalog.payloads]
    print(json.dumps({"found": found}))
except ConfigError as error:
    print(json.dumps({"problems": [str(problem) for problem in error.problems]}))
"""


def distribution(site: Path, name: str, entry_points: str) -> None:
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[remoterun.payloads]\n{entry_points}\n")


def load_with(site: Path, project: Path | None = None) -> dict[str, list[list[str | None]]]:
    argv = [sys.executable, "-c", SHOW, *([str(project)] if project else [])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(site)])}
    ran = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return dict(json.loads(ran.stdout))


def test_entry_points_are_found_without_running_any_of_their_code(tmp_path: Path) -> None:
    site = tmp_path / "site"
    add(site, "top-check", "1.0.0", "top_check")
    add(site, "inner-check", "2.0.0", "vendor/payloads/inner_check")
    for package in ("vendor", "vendor/payloads"):
        (site / package / "__init__.py").write_text(BOMB)
    add(site, "spaced-check", "3.0.0", "namespace/spaced_check")
    distribution(
        site,
        "vendor",
        "top-check = top_check\ninner-check = vendor.payloads.inner_check\nspaced-check = namespace.spaced_check",
    )
    found = {entry[0]: entry for entry in load_with(site)["found"]}
    assert found["top-check"][1:5] == ["1.0.0", "entry point", str(site / "top_check"), None]
    assert found["inner-check"][3] == str(site / "vendor/payloads/inner_check")
    assert found["spaced-check"][3] == str(site / "namespace/spaced_check")
    assert "probe" in found


def test_a_project_hides_an_entry_point_which_hides_a_built_in(tmp_path: Path) -> None:
    site = tmp_path / "site"
    add(site, "probe", "7.0.0", "their_probe")
    distribution(site, "theirs", "probe = their_probe")
    (theirs,) = [entry for entry in load_with(site)["found"] if entry[0] == "probe"]
    assert theirs[1:3] == ["7.0.0", "entry point"]
    assert theirs[4] is not None
    assert theirs[4].startswith("built-in ")
    add(tmp_path / "project/payloads", "probe", "0.1.0")
    (ours,) = [entry for entry in load_with(site, tmp_path / "project")["found"] if entry[0] == "probe"]
    assert ours[1:3] == ["0.1.0", "project"]
    assert ours[4] is not None
    assert ours[4].startswith("entry point 7.0.0, built-in ")


@pytest.mark.parametrize(
    ("entry_point", "words"),
    [
        ("gone = no_such_package", "no package with a payload.toml"),
        ("gone = json", "no package with a payload.toml"),
        ("gone = .relative", "no package with a payload.toml"),
        ("gone = other_check:run", "no package with a payload.toml"),
        ("another = other_check", "is 'other-check', but the entry point that leads here is called 'another'"),
    ],
)
def test_an_entry_point_that_leads_nowhere_is_a_problem(tmp_path: Path, entry_point: str, words: str) -> None:
    add(tmp_path, "other-check", "1.0.0", "other_check")
    distribution(tmp_path, "vendor", entry_point)
    (problem,) = load_with(tmp_path)["problems"]
    assert words in str(problem)
