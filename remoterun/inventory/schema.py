"""The files a user writes, as pydantic models. Imports pydantic: load this module lazily.

Only the shape of each value is judged here, strictly and without coercion; what values mean together is the business of
`resolve`. Titles, descriptions and patterns go into the JSON Schemas that editors complete and check by.
"""

# No `from __future__ import annotations`: pydantic reads the annotations when a class is made.

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Final, Literal, Self, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    JsonValue,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from remoterun.errors import show
from remoterun.inventory import words
from remoterun.inventory.settings import Become, GuestHop, Settings
from remoterun.model import HopKind, Json, Limits, RuleChanges, SecretRef, Severity, parse_duration
from remoterun.records import dataclass

_EnvValue = TypeVar("_EnvValue", str, str | SecretRef)

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True, slots=True)
class Vetted:
    """Mark a text that must be of one kind of word."""

    word: words.Word

    def __get_pydantic_core_schema__(self, source: type, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.word.check, handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(core), "pattern": f"^(?:{self.word.pattern})$"}


class OrSecret:
    """Mark a text in whose place a reference to a secret may stand."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(_text_or_secret, core_schema.str_schema(strict=True))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        secret = {"type": "string", "pattern": f"^(?:{words.VARIABLE.pattern})$", "description": "name of a secret"}
        reference = {
            "type": "object",
            "properties": {"secret": secret},
            "required": ["secret"],
            "additionalProperties": False,
        }
        return {"anyOf": [{"type": "string"}, reference]}


def _text_or_secret(value: object, check: core_schema.ValidatorFunctionWrapHandler) -> object:
    if not isinstance(value, dict):
        return check(value)
    if value.keys() != {"secret"} or not isinstance(value["secret"], str):
        raise ValueError("must be text, or {secret: NAME} for a secret of this playbook")
    return SecretRef(secret=words.VARIABLE.check(value["secret"]))


def _one_as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _members_as_group(value: object) -> object:
    return {"members": value} if isinstance(value, (str, list)) else value


def _nothing_as_mapping(value: object) -> object:
    return {} if value is None else value


def _text_duration(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError(f"{show(value)} is not {words.DURATION.what}: {words.DURATION.rule}")
    return value


def _possible_env(env: dict[str, _EnvValue]) -> dict[str, _EnvValue]:
    for name, value in env.items():
        try:
            if isinstance(value, str):
                words.check_env(name, value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return env


def _one_or_more(item: object) -> BeforeValidator:
    """Let a single text stand for a list of one."""
    either = item | Annotated[list[item], Field(min_length=1)]  # type: ignore[valid-type]
    return BeforeValidator(_one_as_list, json_schema_input_type=either)


Name: TypeAlias = Annotated[str, Vetted(words.NAME)]
Path: TypeAlias = Annotated[str, Vetted(words.LOCAL_PATH)]
HostKey: TypeAlias = Annotated[str, Vetted(words.HOST_KEY)]
Pattern: TypeAlias = Annotated[str, Vetted(words.PATTERN)]
Duration: TypeAlias = Annotated[
    str, BeforeValidator(_text_duration, json_schema_input_type=str), Vetted(words.DURATION)
]
Rule: TypeAlias = Annotated[str, Vetted(words.RULE)]
Port: TypeAlias = Annotated[int, Field(ge=1, le=words.HIGHEST_PORT)]
Bound: TypeAlias = Annotated[int, Field(ge=1, le=1000)]
Names: TypeAlias = Annotated[list[Name], Field(min_length=1), _one_or_more(Name)]
Paths: TypeAlias = Annotated[list[Path], Field(min_length=1), _one_or_more(Path)]
HostKeys: TypeAlias = Annotated[list[HostKey], Field(min_length=1), _one_or_more(HostKey)]
Patterns: TypeAlias = Annotated[list[Pattern], Field(min_length=1), _one_or_more(Pattern)]
Chain: TypeAlias = Annotated[list[str], Field(min_length=1), _one_or_more(str)]
Env: TypeAlias = Annotated[dict[Annotated[str, Vetted(words.ENV_NAME)], str], AfterValidator(_possible_env)]
StepEnv: TypeAlias = Annotated[
    dict[Annotated[str, Vetted(words.ENV_NAME)], Annotated[str | SecretRef, OrSecret()]],
    AfterValidator(_possible_env),
]
Values: TypeAlias = dict[Annotated[str, Vetted(words.VARIABLE)], JsonValue]


class FileModel(BaseModel):
    """Be the base of every mapping in a file: strict, closed, and no key without a value."""

    model_config = ConfigDict(
        strict=True,
        defer_build=True,
        extra="forbid",
        frozen=True,
        model_title_generator=lambda model: model.__name__.removesuffix("File"),
    )

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_nothing(cls, value: object) -> object:
        if value is None:
            raise ValueError("has no value: give it one, or remove the key")
        return value


_LIMIT_HELP: Final = {item.name: str(item.metadata["help"]) for item in fields(Limits)}


class LimitsFile(FileModel):
    """Bound each phase of a target's way: 500ms, 30s, 20m, 2h, or none."""

    connect: Duration | None = Field(default=None, description=_LIMIT_HELP["connect"])
    enter: Duration | None = Field(default=None, description=_LIMIT_HELP["enter"])
    upload: Duration | None = Field(default=None, description=_LIMIT_HELP["upload"])
    idle: Duration | None = Field(default=None, description=_LIMIT_HELP["idle"])
    stall: Duration | None = Field(default=None, description=_LIMIT_HELP["stall"])
    run: Duration | None = Field(default=None, description=_LIMIT_HELP["run"])
    total: Duration | None = Field(default=None, description=_LIMIT_HELP["total"])
    lease: Duration | None = Field(default=None, description=_LIMIT_HELP["lease"])

    def values(self) -> Mapping[str, float | None]:
        """Return the limits that are said, in seconds; None is no limit."""
        said: dict[str, str] = self.model_dump(exclude_unset=True)
        return {name: parse_duration(text) for name, text in said.items()}


class ConcurrencyFile(FileModel):
    """Bound what one host is asked at once."""

    logins: Bound | None = Field(default=None, description="connections that are logging in at once (default 6)")
    enter: Bound | None = Field(default=None, description="guests being entered at once (default 4)")
    sessions: Bound | None = Field(default=None, description="open sessions per connection (default 8)")

    def values(self) -> Mapping[str, int]:
        """Return the bounds that are said."""
        said: dict[str, int] = self.model_dump(exclude_unset=True)
        return said


class PlaceKeys(FileModel):
    """Hold the keys that say how payloads run on a target."""

    model_config = ConfigDict(json_schema_extra={"not": {"required": ["venv", "python"]}})

    venv: Annotated[str, Vetted(words.VENV)] | None = Field(
        default=None,
        description="folder of the virtual environment or conda prefix on the target; its bin/python runs the payloads",
    )
    python: Annotated[str, Vetted(words.PYTHON)] | None = Field(
        default=None,
        description="the interpreter, instead of venv: an absolute path on the target, or a name on its PATH "
        "(default python3)",
    )
    env: Env | None = Field(default=None, description="environment variables of the payload; values are text")
    vars: Values | None = Field(default=None, description="values that playbooks refer to by {var: NAME}")
    limits: LimitsFile | None = Field(default=None, description="time limits by phase")

    def settings(self, *, hop: HopKind | None = None, tags: list[str] | None = None) -> Settings:
        """Return what is said about targets."""
        values: dict[str, Json] = dict(self.vars or {})
        return Settings(
            venv=self.venv,
            python=self.python,
            hop=hop,
            env=self.env or {},
            vars=values,
            tags=frozenset(tags or ()),
            limits=self.limits.values() if self.limits else {},
        )


class GuestFile(PlaceKeys):
    """Describe a guest of a host; its key is the VMID (hop pct) or the container's name (hop lxc)."""

    name: Name | None = Field(
        default=None, description="a friendly name, unique in the inventory, to select the guest by"
    )
    hop: GuestHop | None = Field(default=None, description="how the guest is entered (default pct)")
    user: Annotated[str, Vetted(words.GUEST_USER)] | None = Field(
        default=None, description="account inside the guest that payloads run as (default root)"
    )
    tags: Names | None = Field(default=None, description="words to select by, as tag:NAME")


class LoginKeys(PlaceKeys):
    """Hold the keys that say how hosts are reached, beside those of their targets."""

    user: Annotated[str, Vetted(words.LOGIN_USER)] | None = Field(default=None, description="login name on the host")
    port: Port | None = Field(default=None, description="SSH port")
    identity_file: Paths | None = Field(
        default=None, description="private key file or files to log in with; relative paths start at this file's folder"
    )
    known_hosts: Paths | None = Field(default=None, description="known_hosts file or files to check the host's key by")
    ssh_config: Annotated[str, Vetted(words.LOCAL_PATH)] | None = Field(
        default=None, description="file to read instead of ~/.ssh/config, or none"
    )
    jump: Chain | None = Field(
        default=None,
        description="hosts to tunnel through, the first to be reached first, as a list or with commas: keys of this "
        "inventory or user@address:port; none connects directly",
    )
    become: Become | None = Field(
        default=None, description="sudo: enter guests by `sudo -n`; none: as the login itself"
    )
    concurrency: ConcurrencyFile | None = Field(default=None, description="bounds on what the host is asked at once")
    tags: Names | None = Field(default=None, description="words to select by, as tag:NAME")


class DefaultsFile(LoginKeys):
    """Hold what goes for every host and target that says nothing else."""

    hop: GuestHop | None = Field(default=None, description="how guests are entered (default pct)")
    host_key: Literal["accept-new", "strict"] | None = Field(
        default=None,
        description="accept-new: trust and keep the first key of a host that nothing is known of; a changed key always "
        "fails (default strict)",
    )


Guest: TypeAlias = Annotated[GuestFile, BeforeValidator(_nothing_as_mapping, json_schema_input_type=GuestFile | None)]


class HostFile(LoginKeys):
    """Describe a host; what it says about targets goes for its guests too."""

    address: Annotated[str, Vetted(words.ADDRESS)] | None = Field(
        default=None, description="name or IP address (default: the host's key, which ssh_config may know)"
    )
    host_key: HostKeys | None = Field(
        default=None,
        description="pinned fingerprint or fingerprints (SHA256:...); nothing else is trusted then; or accept-new, or "
        "strict",
    )
    transport: Literal["ssh", "local", "fabric"] | None = Field(
        default=None,
        description="local: this machine itself, without SSH; fabric: as Fabric reaches it, with fabric.yaml",
    )
    hop: HopKind | None = Field(default=None, description="how its guests are entered (default pct)")
    is_target: bool | None = Field(
        default=None,
        alias="self",
        description="true: the host itself is a target beside its guests; false: a host without guests is none, "
        "as a jump host should be",
    )
    guests: dict[Name, Guest] | None = Field(
        default=None, description="guests by VMID (hop pct) or container name (hop lxc)"
    )


class GroupFile(PlaceKeys):
    """Name a set of targets, and hold what goes for them."""

    members: Patterns = Field(description="patterns: ids, names, hosts, globs, groups, tag:NAME, all")


Host: TypeAlias = Annotated[HostFile, BeforeValidator(_nothing_as_mapping, json_schema_input_type=HostFile | None)]
Group: TypeAlias = Annotated[
    GroupFile,
    BeforeValidator(
        _members_as_group, json_schema_input_type=Pattern | Annotated[list[Pattern], Field(min_length=1)] | GroupFile
    ),
]


class InventoryFile(FileModel):
    """Say which hosts and guests there are, and how they are reached and entered (inventory.yaml)."""

    defaults: DefaultsFile | None = Field(
        default=None, description="settings of every host and target; nearer ones win"
    )
    hosts: dict[Name, Host] | None = Field(default=None, description="hosts by key, reached by SSH")
    groups: dict[Name, Group] | None = Field(default=None, description="named sets of targets")


class RulesFile(FileModel):
    """Say what findings of single rules count for, by the rule's id."""

    ignore: Annotated[list[Rule], Field(min_length=1), _one_or_more(Rule)] | None = Field(
        default=None, description="rules whose findings count for nothing; records still say how many there were"
    )
    severity: dict[Rule, Literal["info", "suspect", "bad"]] | None = Field(
        default=None, description="severities in place of the rules' own"
    )

    def changes(self) -> RuleChanges:
        """Return what is said."""
        severity = {rule: Severity(value) for rule, value in (self.severity or {}).items()}
        return RuleChanges(ignore=tuple(self.ignore or ()), severity=severity)


class SecretFile(FileModel):
    """Say where a secret comes from on the machine that remoterun runs on: one of three places."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    env: Annotated[str, Vetted(words.ENV_NAME)] | None = Field(
        default=None, description="an environment variable that holds it"
    )
    file: Path | None = Field(
        default=None, description="a file that holds it; relative paths start at this file's folder"
    )
    command: Annotated[list[str], Field(min_length=1)] | None = Field(
        default=None, description="a program and its arguments that prints it, started in this file's folder"
    )

    @model_validator(mode="before")
    @classmethod
    def _no_value(cls, value: object) -> object:
        if not isinstance(value, dict):
            # Nothing of it is shown: it may be the secret itself.
            raise ValueError("must be a mapping with one of env, file and command: a secret itself has no place here")
        return value

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if len(self.model_fields_set) != 1:
            raise ValueError("must say one of env, file and command")
        return self


class StepFile(FileModel):
    """Run one payload."""

    payload: Annotated[str, Vetted(words.PAYLOAD)] = Field(
        description="the payload's name, with a version if it matters: check-ckpt, check-ckpt@1, check-ckpt@=1.2.0"
    )
    params: Values | None = Field(
        default=None,
        description="parameters by name; {var: NAME} or {var: NAME, default: VALUE} takes the target's variable, "
        "{secret: NAME} a secret of this playbook",
    )
    rules: RulesFile | None = Field(
        default=None, description="what findings of single rules count for: {ignore: [CK054], severity: {CK120: info}}"
    )
    env: StepEnv | None = Field(
        default=None, description="environment variables of the payload; values are text or {secret: NAME}"
    )
    limits: LimitsFile | None = Field(default=None, description="time limits of this step")
    fail_on: Literal["info", "suspect", "bad"] | None = Field(
        default=None, description="the lowest severity of a finding that fails the target (default suspect)"
    )


class PlaybookFile(FileModel):
    """Say which payloads run on which targets, with which parameters, limits and judgement (playbooks/NAME.yaml)."""

    description: str | None = Field(default=None, description="what the playbook is for, in one line")
    targets: Patterns | None = Field(default=None, description="patterns of targets, replaced by --on (default all)")
    secrets: dict[Annotated[str, Vetted(words.VARIABLE)], SecretFile] | None = Field(
        default=None, description="secrets by name, which steps refer to by {secret: NAME}"
    )
    limits: LimitsFile | None = Field(default=None, description="time limits of every step")
    steps: Annotated[list[StepFile], Field(min_length=1)] = Field(
        description="payloads to run on each target, in order"
    )


def json_schema(model: type[FileModel], title: str) -> dict[str, Json]:
    """Return the JSON Schema (draft 2020-12) of a file, as strict as the loader about keys, types and patterns."""
    schema: dict[str, Json] = model.model_json_schema(mode="validation")
    tidy = _tidied(schema)
    return {"$schema": DIALECT, **(tidy if isinstance(tidy, dict) else {}), "title": title}


def _tidied(part: Json) -> Json:
    """Say what pydantic leaves open: a key without a value is not one left out, and no key may break its pattern."""
    if isinstance(part, list):
        return [_tidied(item) for item in part]
    if not isinstance(part, dict):
        return part
    tidy = {key: _tidied(value) for key, value in part.items()}
    if isinstance(properties := tidy.get("properties"), dict):
        tidy["properties"] = {key: _not_null(value) for key, value in properties.items()}
    if "patternProperties" in tidy:
        tidy["additionalProperties"] = False
    return tidy


def _not_null(field: Json) -> Json:
    if not isinstance(field, dict) or not isinstance(choices := field.get("anyOf"), list):
        return field
    left = [choice for choice in choices if choice != {"type": "null"}]
    rest = {key: value for key, value in field.items() if key not in ("anyOf", "default")}
    return {**left[0], **rest} if len(left) == 1 and isinstance(left[0], dict) else {**rest, "anyOf": left}
