"""Playbooks: which payloads run where, with which parameters, limits and judgement.

Importing this module is cheap: PyYAML and pydantic are imported when a file is read.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final

from remoterun.errors import ConfigError, Problem, nearest, show
from remoterun.inventory.words import NAME, VARIABLE, local_path
from remoterun.model import Json, Playbook, RuleChanges, SecretRef, SecretSource, Severity, Step, VarRef
from remoterun.records import dataclass
from remoterun.store import read_bytes, remember

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from remoterun.inventory.schema import PlaybookFile, SecretFile, StepFile
    from remoterun.model import Target

FOLDER: Final = "playbooks"
SUFFIXES: Final = (".yaml", ".yml")


def load_playbook(path: Path) -> Playbook:
    """Read a playbook file; its name is the file's, without the suffix.

    Raises:
        ConfigError: every problem in it at once.
    """
    data = read_bytes(path)
    return remember("playbook", f"{path}\0".encode("utf-8", "surrogateescape") + data, lambda: _parsed(path, data))


def _parsed(path: Path, data: bytes) -> Playbook:
    partly = _parsed_partly(path, data)
    if partly.problems or partly.playbook is None:
        raise ConfigError(partly.problems)
    return partly.playbook


@dataclass(frozen=True, slots=True, kw_only=True)
class PartlyRead:
    """Hold as much of a playbook file as can be used, what is wrong with it, and the places that are left out."""

    playbook: Playbook | None
    problems: list[Problem]
    left_out: tuple[tuple[str | int, ...], ...]


def load_partly(path: Path) -> PartlyRead:
    """Read as much of a playbook file as can be.

    Raises:
        ConfigError: nothing of it can be read.
    """
    return _parsed_partly(path, read_bytes(path))


def _parsed_partly(path: Path, data: bytes) -> PartlyRead:
    from remoterun.inventory.check import check
    from remoterun.inventory.schema import PlaybookFile
    from remoterun.inventory.yamlfile import in_order, parse

    document = parse(data, str(path))
    checked = check(document, PlaybookFile)
    problems = list(checked.problems)

    def report(place: tuple[str | int, ...], message: str) -> None:
        problems.append(document.problem(place, message))

    file = checked.value
    if file is None:
        return PartlyRead(playbook=None, problems=in_order(problems), left_out=checked.left_out)
    steps = [_step(said, ("steps", number), report) for number, said in enumerate(file.steps)]
    secrets = secret_sources(file.secrets or {}, path.parent, ("secrets",), report)
    if not left_out(checked.left_out, ("secrets",)):
        _check_references(file, steps, report)
    playbook = Playbook(
        name=path.stem,
        steps=tuple(steps),
        description=file.description or "",
        targets=tuple(file.targets or ("all",)),
        secrets=secrets,
        limits=file.limits.values() if file.limits else {},
        sha256=hashlib.sha256(data).hexdigest(),
        source=str(path),
    )
    return PartlyRead(playbook=playbook, problems=in_order(problems), left_out=checked.left_out)


def left_out(places: Iterable[tuple[str | int, ...]], here: tuple[str | int, ...]) -> bool:
    """Tell whether something was left out of a file at a place, around it or in it."""
    return any(place[: len(here)] == here[: len(place)] for place in places)


def secret_sources(
    said: Mapping[str, SecretFile],
    folder: Path,
    place: tuple[str | int, ...],
    report: Callable[[tuple[str | int, ...], str], None],
) -> dict[str, SecretSource]:
    """Return where the secrets come from that stand at `place` in a file of `folder`; `report` takes what is wrong."""
    secrets: dict[str, SecretSource] = {}
    for name, secret in said.items():
        if secret.file is not None:
            try:
                secrets[name] = SecretSource(kind="file", words=(local_path(secret.file, folder),))
            except ValueError as error:
                report((*place, name, "file"), str(error))
        elif secret.env is not None:
            secrets[name] = SecretSource(kind="env", words=(secret.env,))
        else:
            words = tuple(secret.command or ())
            secrets[name] = SecretSource(kind="command", words=words, folder=str(folder.absolute()))
    return secrets


def _check_references(
    file: PlaybookFile, steps: Sequence[Step], report: Callable[[tuple[str | int, ...], str], None]
) -> None:
    """Report references to secrets that the playbook does not have."""
    for number, step in enumerate(steps):
        for where, values in (("params", step.params), ("env", step.env)):
            for name, value in values.items():
                if isinstance(value, SecretRef) and value.secret not in (file.secrets or {}):
                    near = nearest(value.secret, file.secrets or {})
                    guess = f" (did you mean {' or '.join(near)}?)" if near else ""
                    report(
                        ("steps", number, where, name, "secret"),
                        f"there is no secret {show(value.secret)} under `secrets`{guess}",
                    )


def _step(said: StepFile, place: tuple[str | int, ...], report: Callable[[tuple[str | int, ...], str], None]) -> Step:
    from remoterun.catalog.versions import parse_reference

    try:
        parse_reference(said.payload)
    except ConfigError as error:
        report((*place, "payload"), error.problems[0].message)
    params: dict[str, Json | VarRef | SecretRef] = {}
    for name, value in (said.params or {}).items():
        try:
            params[name] = _reference(value)
        except ValueError as error:
            key = "var" if isinstance(value, dict) and "var" in value else "secret"
            report((*place, "params", name, key), str(error))
    rules = said.rules.changes() if said.rules else RuleChanges()
    for rule in rules.severity:
        if rule in rules.ignore:
            report((*place, "rules", "severity", rule), f"{rule} is ignored as well: keep one of the two")
    return Step(
        payload=said.payload,
        params=params,
        rules=rules,
        env=said.env or {},
        limits=said.limits.values() if said.limits else {},
        fail_on=Severity(said.fail_on or Severity.SUSPECT),
    )


def _reference(value: Json) -> Json | VarRef | SecretRef:
    """Return a reference for exactly ``{var: NAME}``, ``{var: NAME, default: VALUE}`` or ``{secret: NAME}``.

    Any other value is returned as it is.

    Raises:
        ValueError: what is named can be neither a variable nor a secret.
    """
    if not isinstance(value, dict):
        return value
    if value.keys() == {"secret"}:
        return SecretRef(secret=_name(value["secret"], "secret"))
    if value.keys() in ({"var"}, {"var", "default"}):
        return VarRef(var=_name(value["var"], "variable"), default=value.get("default"), has_default="default" in value)
    return value


def _name(value: Json, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be the name of a {what}, not {show(value)}")
    return VARIABLE.check(value)


def find_playbook(project: Path | None, name: str, payload_names: Collection[str]) -> Playbook:
    """Return the project's playbook of a name; a payload of that name is its own playbook, for all targets.

    Args:
        project: the folder that holds playbooks/, or None.
        name: ``check-ckpt``; for a payload also ``check-ckpt@1``.
        payload_names: the names, without versions, that the catalog knows.

    Raises:
        ConfigError: there is neither, two files have the name, the file has problems, or nobody may look for it.
    """
    if NAME.fits(name) and project is not None:
        files = _files(project / FOLDER, name)
        if len(files) > 1:
            raise ConfigError(f"the playbook {name} is there twice, as {files[0]} and {files[1]}: remove one")
        if files:
            return load_playbook(files[0])
    payload = name.partition("@")[0]
    if payload in payload_names:
        return Playbook(name=payload, steps=(Step(payload=name),), targets=("all",))
    known = {*payload_names, *playbook_names(project)}
    if name in known:
        raise ConfigError(f"{show(name)} is no name for a playbook: {NAME.rule}")
    place = f"in {project / FOLDER}" if project is not None else "(there is no project here)"
    message = f"{show(name)} is neither a playbook {place} nor a payload"
    raise ConfigError(Problem(message=message, nearest=nearest(_stem(payload), known)))


def _files(folder: Path, name: str) -> list[Path]:
    try:
        return [path for suffix in SUFFIXES if (path := folder / f"{name}{suffix}").is_file()]
    except OSError as error:
        raise ConfigError(Problem(file=str(folder), message=f"can't be looked into: {error.strerror}")) from error


def _stem(name: str) -> str:
    """Return what is left of a file's path: people name the file."""
    path = PurePath(name)
    return path.stem if path.suffix in SUFFIXES else path.name


def playbook_names(project: Path | None) -> tuple[str, ...]:
    """Return the names of the project's playbooks, sorted."""
    if project is None:
        return ()
    try:
        found = {path.stem for path in (project / FOLDER).iterdir() if path.suffix in SUFFIXES}
    except OSError:  # no such folder: a project needs no playbooks
        return ()
    return tuple(sorted(found))


def resolve_params(step: Step, target: Target, *, playbook: str) -> dict[str, Json]:
    """Return a step's parameters for one target, references replaced by the target's variables; no secrets.

    Args:
        step: what the playbook says.
        target: whose variables are meant.
        playbook: its name, for problems.

    Raises:
        ConfigError: every reference without a default to a variable that the target does not have.
    """
    params: dict[str, Json] = {}
    problems: list[Problem] = []
    for name, value in step.params.items():
        if isinstance(value, SecretRef):
            continue
        if not isinstance(value, VarRef):
            params[name] = value
        elif value.var in target.vars or value.has_default:
            params[name] = target.vars.get(value.var, value.default)
        else:
            message = (
                f"the target {target.id} has no variable {show(value.var)}, which the playbook {playbook} uses for "
                f"{name}: set it under vars, give the reference a default, or say --set {name}=VALUE"
            )
            place = f"{step.payload}.params.{name}"
            problems.append(Problem(path=place, message=message, nearest=nearest(value.var, target.vars)))
    if problems:
        raise ConfigError(problems)
    return params


def unknown_rules(playbook: Playbook, step: int, payload: str, known: Collection[str]) -> list[Problem]:
    """Say which rules that a step names its payload does not have, each at its place in the file."""
    changes = playbook.steps[step].rules
    places: dict[str, tuple[str | int, ...]] = {rule: ("severity", rule) for rule in changes.severity}
    places |= {rule: ("ignore", index) for index, rule in enumerate(changes.ignore)}
    strange = [rule for rule in (*changes.ignore, *changes.severity) if rule not in known]
    return [
        located(playbook.source, ("steps", step, "rules", *places[rule]), _no_rule(rule, (payload,), known))
        for rule in strange
    ]


def unknown_flag_rules(changes: RuleChanges, payloads: Collection[str], known: Collection[str]) -> list[Problem]:
    """Say which rules that flags name none of the payloads has."""
    named = [*(("--ignore", rule) for rule in changes.ignore), *(("--severity", rule) for rule in changes.severity)]
    return [replace(_no_rule(rule, payloads, known), path=flag) for flag, rule in named if rule not in known]


def _no_rule(rule: str, payloads: Collection[str], known: Collection[str]) -> Problem:
    who = " and ".join(dict.fromkeys(payloads))
    has = "have" if len(set(payloads)) > 1 else "has"
    what = f"no rule {show(rule)}" if known else "no rules that can be changed"
    return Problem(message=f"{who} {has} {what}", nearest=nearest(rule, known))


def located(source: str | None, place: tuple[str | int, ...], problem: Problem) -> Problem:
    """Put a problem at its place in the file `source`, which is read once more for the line."""
    from remoterun.inventory.yamlfile import parse

    if source is None:
        return problem
    document = parse(read_bytes(Path(source)), source)
    return document.problem(place, problem.message, nearest=problem.nearest)


def playbook_schema() -> dict[str, Json]:
    """Return the JSON Schema of a playbook file (draft 2020-12)."""
    from remoterun.inventory.schema import PlaybookFile, json_schema

    return json_schema(PlaybookFile, "remoterun playbook")
