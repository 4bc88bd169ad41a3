"""The catalog: where payloads are found, which version is chosen, and that none is ever imported."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
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
    message = refusal(Catalog.load(tmp_path), "same@1")
    assert re.search(r"two: is same 1\.0\.0, and so is .*one: give one another name or version", message)


def broken(path: Path, *said: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"# {line}\n" for line in ("/// payload", *said, "///")))
    return path


def test_a_broken_payload_stops_only_what_names_it(tmp_path: Path) -> None:
    file = broken(tmp_path / "payloads/half_done.py", 'name = "half-way"')
    add(tmp_path / "payloads", "whole", "1.0.0")
    catalog = Catalog.load(tmp_path)
    assert catalog.find("whole").version == "1.0.0"
    assert catalog.find("probe").origin == "built-in"
    for reference in ("half-way", "half-done", "half_done@1"):
        assert f"{file}: version: is required" in refusal(catalog, reference)
    assert {"half-way", "half-done", "whole"} < {*catalog.names()}
    assert {(problem.file, problem.path) for problem in catalog.problems} == {
        (str(file), "version"),
        (str(file), "description"),
    }


def test_a_broken_payload_is_not_passed_over_for_what_it_would_hide(tmp_path: Path) -> None:
    broken(tmp_path / "payloads/mine.py", 'name = "probe"')
    add(tmp_path / "payloads", "check", "1.0.0", "check@1.0.0")
    broken(tmp_path / "payloads/check@2.0.0.py", "no toml")
    catalog = Catalog.load(tmp_path)
    assert "mine.py: version: is required" in refusal(catalog, "probe")
    assert "check@2.0.0.py:2: is not TOML" in refusal(catalog, "check")


def test_a_broken_version_stops_only_what_would_be_that_version(tmp_path: Path) -> None:
    for version in ("1.0.0", "1.2.0", "2.0.0"):
        add(tmp_path / "payloads", "check", version, f"check@{version}")
    # One says its version by its name, one in its manifest, and one both, which do not agree.
    broken(tmp_path / "payloads/check@1.1.0.py", "no toml")
    broken(tmp_path / "payloads/check_next.py", 'name = "check"', 'version = "3.0.0"')
    broken(tmp_path / "payloads/check@4.0.0.py", 'version = "4.1.0"')
    catalog = Catalog.load(tmp_path)
    expected = {"@1": "1.2.0", "@=1.0.0": "1.0.0", "@1.2": "1.2.0", "@2": "2.0.0"}
    assert {reference: catalog.find(f"check{reference}").version for reference in expected} == expected
    assert "check@1.1.0.py:2: is not TOML" in refusal(catalog, "check@1.1")
    assert "check_next.py: description: is required" in refusal(catalog, "check@3")
    for reference in ("check@=4.0.0", "check@=4.1.0", "check"):
        assert "check@4.0.0.py: version: is 4.1.0, but" in refusal(catalog, reference)
    assert "there is 2.0.0, 1.2.0, 1.0.0" in refusal(catalog, "check@5")


def test_what_says_nothing_of_its_version_may_be_any(tmp_path: Path) -> None:
    add(tmp_path / "payloads", "check", "1.0.0", "check@1.0.0")
    broken(tmp_path / "payloads/check.py", 'name = "check"')
    catalog = Catalog.load(tmp_path)
    for reference in ("check", "check@1", "check@7"):
        assert "check.py: version: is required" in refusal(catalog, reference)


def test_a_broken_version_hides_those_of_farther_origins_whatever_it_is(tmp_path: Path) -> None:
    broken(tmp_path / "payloads/probe@0.1.0.py", "no toml")
    catalog = Catalog.load(tmp_path)
    for reference in ("probe", "probe@1"):
        assert "probe@0.1.0.py:2: is not TOML" in refusal(catalog, reference)


def test_names_that_no_payload_can_have_are_not_offered(tmp_path: Path) -> None:
    file = broken(tmp_path / "payloads/one.py", 'name = "O n e"')
    catalog = Catalog.load(tmp_path)
    assert {*catalog.names()} - {*Catalog.load(None).names()} == {"one"}
    assert f"{file}: name: a payload named 'O n e' is not possible" in refusal(catalog, "one")


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
    catalog = Catalog.load(tmp_path)
    # Nobody knows what it would hide.
    assert "payloads: can't be read: Not a directory" in refusal(catalog, "probe")
    assert len(catalog.problems) == 1


@pytest.mark.usefixtures("nobody")
@pytest.mark.parametrize(("locked", "mode"), [("payloads/shut", 0), ("payloads", 0o400)])
def test_where_nobody_may_look_is_a_problem_of_what_stands_there(locked: str, mode: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        add(project / "payloads", "shut", "1.0.0")
        (project / locked).chmod(mode)
        catalog = Catalog.load(project)
        (project / locked).chmod(0o700)
        assert catalog.find("probe").origin == "built-in"
        assert "shut: can't be read: Permission denied" in refusal(catalog, "shut")


# --- entry points: through real distribution metadata, in a process of their own --------------------------------------

SHOW = """
import json, sys
from pathlib import Path
from remoterun.catalog import Catalog
catalog = Catalog.load(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
found = [[i.name, i.version, i.origin, str(i.path), i.shadows, i.pack().sha256] for i in catalog.payloads]
print(json.dumps({"found": found, "problems": [str(problem) for problem in catalog.problems]}))
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
    loaded = load_with(tmp_path)
    (problem,) = loaded["problems"]
    assert words in str(problem)
    assert "probe" in {found[0] for found in loaded["found"]}


def test_a_broken_entry_point_that_is_hidden_stops_nobody(tmp_path: Path) -> None:
    distribution(tmp_path / "site", "vendor", "mine = no_such_package")
    add(tmp_path / "project/payloads", "mine", "1.0.0")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(tmp_path / "site")])}
    code = "import sys; from pathlib import Path; from remoterun.catalog import Catalog\n"
    code += "catalog = Catalog.load(Path(sys.argv[1])); print(catalog.find('mine').origin, len(catalog.problems))"
    argv = [sys.executable, "-c", code, str(tmp_path / "project")]
    ran = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert ran.stdout == "project 1\n", ran.stderr
