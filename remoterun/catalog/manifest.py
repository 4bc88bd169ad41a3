"""Manifests of payloads: from the TOML of a folder or of a single file to what is known of the payload."""

from __future__ import annotations

import keyword
import re
import sys
from dataclasses import field, replace
from itertools import takewhile
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Final, cast

from remoterun.catalog.info import Origin, PayloadInfo
from remoterun.catalog.packing import left_out
from remoterun.catalog.params import NUMERIC, PARAM_TYPES, Param, ParamType
from remoterun.catalog.tables import Table, parse_toml
from remoterun.catalog.versions import Version, parse_version
from remoterun.errors import ConfigError, Problem, nearest
from remoterun.model import LIMIT_NAMES, Json, parse_duration
from remoterun.records import dataclass
from remoterun.store import read_bytes

MANIFEST: Final = "payload.toml"

# What fits into a pack is more than any manifest needs.
_BIGGEST = 16 * 1024 * 1024
NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
NAME_RULE: Final = "is not possible: use lowercase letters and digits, joined by single hyphens"
_PARAM_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_RULE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_PYTHON = re.compile(r">=3\.([0-9]{1,3})")
_OLDEST_PYTHON = (3, 8)
_ENTRY = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*", re.ASCII)
_KEYS: Final = (
    "name",
    "version",
    "description",
    "entry",
    "program",
    "python",
    "requires",
    "rules",
    "limits",
    "params",
    "pack",
)
_PARAM_KEYS: Final = ("type", "help", "required", "default", "min", "max", "choices", "items", "var")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Say where a manifest stands, and what the name of its folder or file promises."""

    origin: Origin
    path: Path
    folder: bool
    package: str
    version: str | None

    @classmethod
    def of(cls, origin: Origin, path: Path, *, folder: bool) -> _Place:
        """Read ``NAME`` or ``NAME@1.2.0``, for a file with ``.py``."""
        stem, at, version = (path.name if folder else path.name.removesuffix(".py")).partition("@")
        return cls(
            origin=origin, path=path, folder=folder, package=stem.replace("-", "_"), version=version if at else None
        )


@dataclass(frozen=True, slots=True)
class Said:
    """Gather which payload something says that it is, also when it is wrong: by its place and by its manifest."""

    names: set[str] = field(default_factory=set)
    versions: set[Version] = field(default_factory=set)

    @classmethod
    def of(cls, name: str, version: str | None = None) -> Said:
        """Begin with what is known without a manifest."""
        said = cls()
        said.note(name, version)
        return said

    def note(self, name: str, version: str | None) -> None:
        """Take note of a name and a version, if they can be such."""
        if NAME.fullmatch(name):
            self.names.add(name)
        order = parse_version(version or "")
        if order is not None:
            self.versions.add(order)


def read_folder(origin: Origin, folder: Path, problems: list[Problem], said: Said | None = None) -> PayloadInfo | None:
    """Read the payload of a folder with a ``payload.toml``; None, with problems noted, when it is wrong.

    `said` takes what it says that it is.
    """
    file = folder / MANIFEST
    text = _read_text(file, problems)
    table = None if text is None else parse_toml(text, file=str(file), first_line=1, problems=problems)
    return _read_payload(table, _Place.of(origin, folder, folder=True), said or Said())


def read_file(origin: Origin, file: Path, problems: list[Problem], said: Said | None = None) -> PayloadInfo | None:
    """Read a single-file payload by its inline block; None when it has none, or is wrong with problems noted.

    `said` as for a folder.
    """
    text = _read_text(file, problems)
    block = None if text is None else _inline_block(text, file, problems)
    if block is None:
        return None
    first_line, toml = block
    table = parse_toml(toml, file=str(file), first_line=first_line, problems=problems)
    return _read_payload(table, _Place.of(origin, file, folder=False), said or Said())


def _read_text(file: Path, problems: list[Problem]) -> str | None:
    try:
        return read_bytes(file, most=_BIGGEST).decode("utf-8-sig")
    except ConfigError as error:
        problems += error.problems
    except UnicodeDecodeError as error:
        problems.append(Problem(message=f"is not UTF-8: {error.reason} at byte {error.start}", file=str(file)))
    return None


def _inline_block(text: str, file: Path, problems: list[Problem]) -> tuple[int, str] | None:
    """Return the first line's number and the TOML between ``# /// payload`` and ``# ///``, in the manner of PEP 723."""
    lines = text.replace("\r\n", "\n").split("\n")
    starts = [at for at, line in enumerate(lines) if line.rstrip() == "# /// payload"]
    if not starts:
        return None
    if len(starts) > 1:
        problems.append(Problem(message="there is a second payload block", file=str(file), line=starts[1] + 1))
    block = list(takewhile(lambda line: line == "#" or line.startswith("# "), lines[starts[0] + 1 :]))
    ends = [at for at, line in enumerate(block) if line.rstrip() == "# ///"]
    if not ends:
        message = "the payload block is not closed by a line `# ///`"
        problems.append(Problem(message=message, file=str(file), line=starts[0] + 1))
        return None
    return starts[0] + 2, "\n".join(line[2:] for line in block[: ends[0]])


def _read_payload(table: Table | None, place: _Place, said: Said) -> PayloadInfo | None:
    said.note(place.package.replace("_", "-"), place.version)
    if table is None:
        return None
    before = len(table.problems)
    table.only(_KEYS)
    pack = table.table("pack")
    pack.only(("include",))
    params = table.table("params")
    info = PayloadInfo(
        name=_name(table),
        version=_version(table, place),
        description=table.need("description"),
        origin=place.origin,
        path=place.path,
        params=tuple(param for name in params.raw if (param := _read_param(params, name))),
        limits=MappingProxyType(_limits(table.table("limits"))),
        requires=_requires(table),
        rules=_rules(table, params),
        python=_python(table),
        package=place.package,
        entry=_entry(table, place),
        program=_program(table, place),
        include=_include(pack, place),
    )
    said.note(info.name, info.version)
    return info if len(table.problems) == before else None


def _name(table: Table) -> str:
    name = table.need("name")
    if name and not NAME.fullmatch(name):
        table.note("name", f"a payload named {name!r} {NAME_RULE}")
    return name


def _version(table: Table, place: _Place) -> str:
    version = table.need("version")
    if version and parse_version(version) is None:
        table.note("version", f"{version!r} is not MAJOR.MINOR.PATCH, such as 1.0.0")
    elif version and place.version is not None and version != place.version:
        table.note("version", f"is {version}, but {place.path.name} promises {place.version}")
    return version


def _limits(table: Table) -> dict[str, float | None]:
    table.only(LIMIT_NAMES)
    limits: dict[str, float | None] = {}
    for name in LIMIT_NAMES:
        if name not in table.raw:
            continue
        try:
            limits[name] = parse_duration(table.raw[name])
        except ConfigError as error:
            table.note(name, str(error))
    return limits


def _requires(table: Table) -> tuple[str, ...]:
    modules = table.words("requires")
    for module in modules:
        if not all(part.isidentifier() for part in module.split(".")):
            table.note("requires", f"{module!r} is not the name of a Python module")
    return modules


def _rules(table: Table, params: Table) -> tuple[str, ...]:
    rules = table.words("rules")
    for at, rule in enumerate(rules):
        if not _RULE.fullmatch(rule):
            table.note(f"rules[{at}]", f"{rule!r} is no id of a rule: use letters, digits, '_' and '-', a letter first")
        elif rule in rules[:at]:
            table.note(f"rules[{at}]", f"{rule} is there twice")
    if rules and "rules" in params.raw:
        params.note("rules", "is how the payload gets what a playbook says of its rules: use another name")
    return rules


def _python(table: Table) -> tuple[int, int]:
    text = table.take("python", ">=3.8")
    match = _PYTHON.fullmatch(text)
    oldest = (3, int(match[1])) if match else (0, 0)
    if oldest < _OLDEST_PYTHON:
        table.note("python", f"{text!r} is not of the form >=3.N with N at least {_OLDEST_PYTHON[1]}")
    return oldest


def _include(pack: Table, place: _Place) -> tuple[str, ...]:
    include = pack.words("include")
    if include and not place.folder:
        pack.note("include", "a single-file payload is packed alone: make it a folder to add files")
    return include


# --- what runs --------------------------------------------------------------------------------------------------------


def _entry(table: Table, place: _Place) -> str | None:
    if "program" in table.raw:
        if "entry" in table.raw:
            table.note("entry", "a payload has an entry or a program, not both")
        return None
    entry = table.take("entry", "" if place.folder else f"{place.package}:run")
    fault = _entry_fault(entry, place)
    if fault:
        table.note("entry", fault)
    return entry


def package_fault(package: str) -> str | None:
    """Say why no Python package of that name can be a payload, None when it can."""
    if not (package.isascii() and package.isidentifier()) or keyword.iskeyword(package):
        return "can't be imported under that name: name it like a Python module, such as my_payload"
    if package in sys.stdlib_module_names or package == "remoterun":
        return f"would hide the module {package} on the target: give it another name"
    return None


def _entry_fault(entry: str, place: _Place) -> str | None:
    package = place.package
    fault = package_fault(package)
    if fault:
        return f"{place.path.name} {fault}"
    if not entry:
        return f'is required: write entry = "{package}:run", or program = "..." for an executable'
    if not _ENTRY.fullmatch(entry):
        return f"{entry!r} is not of the form {package}:run"
    first, *inner = entry.partition(":")[0].split(".")
    if first != package:
        return f"{entry!r} does not start with {package}, the Python name of {place.path.name}"
    inside = place.path.joinpath(*inner) if place.folder else place.path
    if inner and not place.folder:
        return f"{entry!r} names a module inside a single file"
    if any(left_out(part) for part in inner):
        return f"{entry!r} names a module that packs leave out"
    if place.folder and not (_is_file(inside / "__init__.py") or (inner and _is_file(inside.with_suffix(".py")))):
        return f"{entry!r} names a module that is not there: {inside}"
    return None


def _program(table: Table, place: _Place) -> str | None:
    if "program" not in table.raw:
        return None
    program = table.need("program")
    inside = PurePosixPath(program)
    if not place.folder:
        table.note("program", "a single file is a Python payload: make it a folder to run a program")
    elif program and (str(inside) != program or inside.is_absolute() or ".." in inside.parts):
        table.note("program", f"{program!r} is not a plain path inside the payload's folder")
    elif any(left_out(part) for part in inside.parts):
        table.note("program", f"{program!r} is a name that packs leave out")
    elif program and not _is_file(place.path / inside):
        table.note("program", f"{program!r} is not there")
    return program


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that is too long or holds a NUL
        return False


# --- parameters -------------------------------------------------------------------------------------------------------


def _read_param(params: Table, name: str) -> Param | None:
    table = params.table(name)
    if not isinstance(params.raw[name], dict):
        return None
    table.only(_PARAM_KEYS)
    if not _PARAM_NAME.fullmatch(name):
        params.note(name, "parameter names are lower_snake_case")
    kind = _type(table, "type", "")
    items = _type(table, "items", "string")
    if kind == "list" and items == "list":
        table.note("items", "lists of lists are of the type json")
    if "items" in table.raw and kind != "list":
        table.note("items", "is for lists only")
    plain = Param(
        name=name,
        type=kind,
        items=items,
        help=table.take("help", ""),
        required=table.take("required", False),  # noqa: FBT003 - the value of a key
        var=table.need("var") if "var" in table.raw else None,
    )
    if plain.required and "default" in table.raw:
        table.note("default", "a required parameter has no default")
    return _with_bounds(table, plain)


def _type(table: Table, key: str, default: str) -> ParamType:
    if not default:
        table.need(key)
    kind = table.take(key, default)
    if kind in PARAM_TYPES:
        return cast("ParamType", kind)
    if kind:
        table.note(key, f"{kind!r} is none of {', '.join(PARAM_TYPES)}", nearest(kind, PARAM_TYPES))
    return "json"


def _with_bounds(table: Table, plain: Param) -> Param:
    single = plain.item if plain.type == "list" else plain
    bounds: dict[str, float | None] = {"min": None, "max": None}
    for key in bounds:
        if key in table.raw and single.type not in NUMERIC:
            table.note(key, f"is for {', '.join(sorted(NUMERIC))} only")
        elif key in table.raw:
            bound = _checked(table, single, key, table.raw[key])
            bounds[key] = bound if isinstance(bound, int | float) else None
    if bounds["min"] is not None and bounds["max"] is not None and bounds["min"] > bounds["max"]:
        table.note("min", "is more than max")
    param = replace(plain, min=bounds["min"], max=bounds["max"], choices=_choices(table, single))
    if "default" not in table.raw:
        return param
    default = table.raw["default"]
    _checked(table, param, "default", default)
    return replace(param, default=cast("Json", default), has_default=True)


def _choices(table: Table, single: Param) -> tuple[Json, ...]:
    if "choices" in table.raw and single.type in ("json", "bool"):
        table.note("choices", f"is not for {single.type}")
        return ()
    choices = table.take("choices", list[object]())
    if not choices and (single.type == "enum" or "choices" in table.raw):
        table.note("choices", "is required and not empty")
    return tuple(_checked(table, single, f"choices[{at}]", choice) for at, choice in enumerate(choices))


def _checked(table: Table, param: Param, key: str, value: object) -> Json:
    """Check a value of the manifest by the parameter's own type; problems get the manifest's name."""
    found: list[Problem] = []
    checked = replace(param, required=True).check(value, path=table.place(key), problems=found)
    table.problems.extend(replace(problem, file=table.file) for problem in found)
    return checked
