"""Typed parameters of payloads: checking what was given, strictly, and reading it from text."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from remoterun.errors import ConfigError, Problem, nearest, show
from remoterun.model import Json, parse_duration
from remoterun.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

ParamType: TypeAlias = Literal[
    "path", "string", "int", "float", "bool", "duration", "moment", "size", "enum", "list", "json"
]

PARAM_TYPES: Final[tuple[str, ...]] = get_args(ParamType)
_TEXTS: Final = frozenset({"string", "path", "json"})
NUMERIC: Final = frozenset({"int", "float", "duration", "size"})

_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1
_DEEPEST = 64
# Bytes of argv that are not UTF-8 arrive as U+DC80 to U+DCFF and travel well; other surrogates would merge into pairs.
_NO_TEXT = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_DATE = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2})?(Z|[+-][0-9]{2}:[0-9]{2})?)?", re.ASCII
)
_SIZE = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?) ?([kKMGTPE]?i?B)")
_SIZE_UNITS: Final = MappingProxyType(
    {"B": 1}
    | {
        f"{letter}B": 1000**power
        for power, letters in enumerate(("kK", "M", "G", "T", "P", "E"), 1)
        for letter in letters
    }
    | {f"{letter}iB": 1024**power for power, letter in enumerate("KMGTPE", 1)}
)


class _WrongError(ValueError):
    """Carry why one value is wrong, and the known words nearest to it."""

    def __init__(self, message: str, near: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.near = near


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """Describe one parameter of a payload.

    `default` is kept as its author wrote it (``10GiB``); `min`, `max` and `choices` as they are compared (bytes,
    seconds). For a list these three hold for its items, which have the type `items`. `var` names a target's variable
    that supplies the default.
    """

    name: str
    type: ParamType
    help: str = ""
    required: bool = False
    default: Json = None
    has_default: bool = False
    min: float | None = None
    max: float | None = None
    choices: tuple[Json, ...] = ()
    items: ParamType = "string"
    var: str | None = None

    @property
    def item(self) -> Param:
        """Return the description of a list's items, of which none may be null."""
        return replace(self, type=self.items, required=True)

    def check(self, value: object, *, path: str, problems: list[Problem]) -> Json:
        """Return the value as the payload gets it: durations in seconds, sizes in bytes. Note every problem."""
        if self.type == "list" and isinstance(value, list):
            item = self.item
            return [item.check(each, path=f"{path}[{at}]", problems=problems) for at, each in enumerate(value)]
        if value is None and not self.required and not self.has_default:
            return None
        try:
            return self._within(_CHECKS[self.type](value))
        except _WrongError as wrong:
            problems.append(Problem(message=str(wrong), path=path, nearest=wrong.near))
            return None

    def parse(self, text: str, *, path: str, problems: list[Problem]) -> Json:
        """Read the text of ``--set name=text`` as a playbook would hold it (a size stays text). Note every problem."""
        try:
            value = _parse(self, text)
        except _WrongError as wrong:
            problems.append(Problem(message=str(wrong), path=path, nearest=wrong.near))
            return None
        self.check(value, path=path, problems=problems)
        return value

    def complete(
        self, given: Mapping[str, object], variables: Mapping[str, object], *, where: str, problems: list[Problem]
    ) -> Json:
        """Return the parameter's value: what was given, else the target's variable, else the default, else None."""
        path = f"{where}.{self.name}" if where else self.name
        if self.name in given:
            return self.check(given[self.name], path=path, problems=problems)
        if self.var is not None and self.var in variables:
            return self.check(variables[self.var], path=f"vars.{self.var}", problems=problems)
        if self.required:
            variable = f", or the target's variable `{self.var}`" if self.var else ""
            meaning = f" ({self.help})" if self.help else ""
            problems.append(Problem(message=f"is required: set this {self.type}{variable}{meaning}", path=path))
            return None
        return self.check(self.default, path=path, problems=problems)

    def _within(self, value: Json) -> Json:
        if isinstance(value, int | float) and not isinstance(value, bool):
            if self.min is not None and value < self.min:
                raise _WrongError(f"{value:,} is less than the smallest allowed, {self.min:,}")
            if self.max is not None and value > self.max:
                raise _WrongError(f"{value:,} is more than the largest allowed, {self.max:,}")
        if self.choices and value not in self.choices:
            words = [str(choice) for choice in self.choices]
            near = nearest(value, words) if isinstance(value, str) else ()
            raise _WrongError(f"{show(value)} is none of {', '.join(words)}", near)
        return value


def check_params(
    params: tuple[Param, ...],
    given: Mapping[str, object],
    variables: Mapping[str, object],
    *,
    where: str,
    secret: Collection[str] = (),
) -> dict[str, Json]:
    """Return every parameter with its checked value, but for the `secret` ones, whose values nobody knows yet.

    Raises:
        ConfigError: with every unknown, missing and wrong one; `where` is the place they were given at.
    """
    known = [param.name for param in params]
    problems = [unknown_param(str(name), known, where=where) for name in (*given, *secret) if name not in known]
    problems += [
        Problem(message=f"is a {param.type} with rules of its own: a secret is any text", path=f"{where}.{param.name}")
        for param in params
        if param.name in secret and (param.type not in _TEXTS or param.choices)
    ]
    complete = {
        param.name: param.complete(given, variables, where=where, problems=problems)
        for param in params
        if param.name not in secret
    }
    if problems:
        raise ConfigError(problems)
    return complete


def unknown_param(name: str, known: list[str], *, where: str) -> Problem:
    """Say that a payload has no such parameter."""
    message = (
        f"there is no such parameter; there are: {', '.join(known)}" if known else "this payload has no parameters"
    )
    return Problem(message=message, path=f"{where}.{name}" if where else name, nearest=nearest(name, known))


# --- one check per type: value as given -> value as the payload gets it -----------------------------------------------


def _expected(what: str, value: object) -> _WrongError:
    kind = "null" if value is None else f"{type(value).__name__} {show(value)}"
    return _WrongError(f"expected {what}, got {kind}")


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise _expected("a string", value)
    if _NO_TEXT.search(value):
        raise _WrongError(f"{show(value)} holds half of a surrogate pair, which is no text")
    return value


def _path(value: object) -> str:
    path = _string(value)
    if not path or "\0" in path:
        raise _WrongError("a path is not empty and holds no NUL")
    return path


def _int(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _expected("an int", value)
    if not _INT_MIN <= value <= _INT_MAX:
        raise _WrongError("the number does not fit into 64 bits")
    return value


def _float(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _expected("a number", value)
    number = float(_int(value)) if isinstance(value, int) else value
    if not math.isfinite(number):
        raise _WrongError(f"{number} is not a finite number")
    return number


def _bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise _expected("true or false", value)
    return value


def _duration(value: object) -> float:
    if not isinstance(value, str):
        raise _expected("a duration such as 30s", value)
    try:
        seconds = parse_duration(value)
    except ConfigError as error:
        raise _WrongError(str(error)) from error
    if seconds is None:
        raise _WrongError(f"{show(value)} is not a finite duration: write 500ms, 30s, 20m or 2h")
    return seconds


def _moment(value: object) -> float:
    """Return seconds since 1970, or minus the seconds before now: only the target's own clock says when that is."""
    if not isinstance(value, str):
        raise _expected("a time such as 7d (ago) or 2026-07-31", value)
    if not _DATE.fullmatch(value):
        try:
            return -_duration(value)
        except _WrongError as wrong:
            raise _WrongError(f"{show(value)} is neither an age such as 7d nor a date such as 2026-07-31") from wrong
    try:
        date = datetime.fromisoformat(value)
        seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise _WrongError(f"{show(value)} is no date ({error})") from error
    if seconds < 0:
        raise _WrongError(f"{show(value)} is before 1970")
    return seconds


def _size(value: object) -> int:
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    unit = _SIZE_UNITS.get(match[2]) if match else None
    if match is None or unit is None:
        raise _expected("a size such as 512B, 10MB or 10GiB", value)
    whole, _, digits = match[1].partition(".")
    # Exact, and without the millisecond that importing fractions takes.
    size, rest = divmod(int(whole + digits) * unit, 10 ** len(digits))
    if rest or size > _INT_MAX:
        raise _WrongError(f"{show(value)} is not a whole number of bytes that fits into 64 bits")
    return int(size)


def _list(value: object) -> Json:
    raise _expected("a list", value)


def _json(value: object, depth: int = 0) -> Json:
    if depth > _DEEPEST:
        raise _WrongError(f"is nested deeper than {_DEEPEST} levels")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int):
        return _int(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, list):
        return [_json(each, depth + 1) for each in value]
    if isinstance(value, dict):
        return {_string(key): _json(each, depth + 1) for key, each in value.items()}
    raise _WrongError(f"a {type(value).__name__} is not JSON")


_CHECKS: Final[Mapping[ParamType, Callable[[object], Json]]] = MappingProxyType(
    {
        "path": _path,
        "string": _string,
        "int": _int,
        "float": _float,
        "bool": _bool,
        "duration": _duration,
        "moment": _moment,
        "size": _size,
        "enum": _string,
        "list": _list,
        "json": _json,
    }
)

# --- text of a flag -> value as a playbook would hold it --------------------------------------------------------------


def _parse(param: Param, text: str) -> Json:
    if param.type == "int":
        # 20 digits hold every 64-bit number, and no text is costly to read.
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", text):
            raise _WrongError(f"{show(text)} is not an int")
        return int(text)
    if param.type == "float":
        if not re.fullmatch(r"[+-]?[0-9]{1,400}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,4})?", text):
            raise _WrongError(f"{show(text)} is not a number")
        return float(text)
    if param.type == "bool":
        if text not in ("true", "false"):
            raise _WrongError(f"{show(text)} is neither true nor false")
        return text == "true"
    if param.type == "list":
        return _parse_list(param, text)
    return _parse_json(text) if param.type == "json" else text


def _parse_list(param: Param, text: str) -> Json:
    if text.startswith("["):
        return _parse_json(text)
    return [_parse(param.item, part) for part in text.split(",")] if text else []


def _parse_json(text: str) -> Json:
    try:
        return _json(json.loads(text))
    except _WrongError:
        raise
    except (ValueError, RecursionError) as error:
        raise _WrongError(f"{show(text)} is not JSON ({error})") from error
