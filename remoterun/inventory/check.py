"""A parsed file against its model: every problem at once, in words, with its line.

Imports pydantic: load this module lazily.
"""

from __future__ import annotations

import re
import types
from typing import TYPE_CHECKING, Annotated, Final, Generic, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from remoterun.errors import Problem, nearest, show
from remoterun.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic_core import ErrorDetails

    from remoterun.inventory.yamlfile import Document, Part
    from remoterun.model import Json

_M = TypeVar("_M", bound=BaseModel)

_MOST_PROBLEMS: Final = 200
_MOST_ATTEMPTS: Final = 4
_WANTED: Final = {
    "string_type": "text",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "list_type": "a list",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked(Generic[_M]):
    """Hold what could be read of a file, every problem found in it, and the places that `value` leaves out for that.

    For an unknown key these are the places of all that it may have been meant for.
    """

    value: _M | None
    problems: tuple[Problem, ...]
    left_out: tuple[tuple[Part, ...], ...] = ()


def check(document: Document, model: type[_M]) -> Checked[_M]:
    """Check a document; what is wrong is left out, so that the rest can be judged in the same go."""
    data = _copy(document.root)
    problems, left_out = list(document.problems), list(document.refused)
    for attempt in range(_MOST_ATTEMPTS):
        try:
            value = model.model_validate(data)
            return Checked(value=value, problems=tuple(problems), left_out=tuple(left_out))
        except ValidationError as error:
            details = error.errors(include_url=False)
        if attempt == 0:
            problems += [_problem(document, model, detail) for detail in details[:_MOST_PROBLEMS]]
            if (more := len(details) - _MOST_PROBLEMS) > 0:
                problems.append(Problem(file=document.file, message=f"and {more} more problems"))
        for detail in details:
            place = _droppable(document.locate(_place(detail))[0])
            left_out += _meant(document, model, place, detail)
            data = _without(data, place)
    return Checked(value=None, problems=tuple(problems), left_out=((),))


def _place(detail: ErrorDetails) -> tuple[Part, ...]:
    """Return where the error is: pydantic adds "[key]" for a key, and for a missing key the key itself."""
    place = detail["loc"]
    return place[:-1] if place and (place[-1] == "[key]" or detail["type"] == "missing") else place


def _problem(document: Document, model: type[BaseModel], detail: ErrorDetails) -> Problem:
    place = _place(detail)
    kind, last = detail["type"], str(detail["loc"][-1]) if detail["loc"] else ""
    if kind == "missing":
        return document.problem(place, f"the key {show(last)} is missing", missing=last)
    if kind == "extra_forbidden":
        return document.problem(place, "unknown key", nearest=nearest(last, _known_keys(model, place[:-1])))
    if kind == "literal_error":
        choices, given = str(detail["ctx"]["expected"]), detail["input"]
        near = nearest(given, re.findall(r"'(.*?)'", choices)) if isinstance(given, str) else ()
        return document.problem(place, f"must be {choices}, not {_named(given)}", nearest=near)
    return document.problem(place, _words(detail))


def _words(detail: ErrorDetails) -> str:
    """Say in plain words what is wrong with a value."""
    kind, given, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind in _WANTED:
        quotes = ": put it in quotes" if kind == "string_type" and isinstance(given, (bool, int, float)) else ""
        keys = ": write NAME: where - NAME stands" if _WANTED[kind] == "a mapping" and isinstance(given, list) else ""
        return f"must be {_WANTED[kind]}, not {_named(given)}{quotes}{keys}"
    if kind == "greater_than_equal":
        return f"must be at least {context['ge']}, not {_named(given)}"
    if kind == "less_than_equal":
        return f"must be at most {context['le']}, not {_named(given)}"
    if kind == "too_short":
        return "must not be empty"
    return str(context["error"]) if kind == "value_error" else detail["msg"]


def _named(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list) else show(value)


def _known_keys(model: type[BaseModel], place: Sequence[Part]) -> list[str]:
    """Return the keys of the mapping that stands at a place."""
    here: object = model
    for part in place:
        here = _inside(here, part)
    found = _model_of(here)
    return [field.alias or name for name, field in found.model_fields.items()] if found else []


def _inside(annotation: object, part: Part) -> object:
    """Return the type of what stands under a key or index of a value of some type."""
    if found := _model_of(annotation):
        fields = found.model_fields.items()
        return next((field.annotation for name, field in fields if part in (name, field.alias)), None)
    plain = _plain(annotation)
    return get_args(plain)[-1] if get_origin(plain) in (dict, list) else None


def _model_of(annotation: object) -> type[BaseModel] | None:
    plain = _plain(annotation)
    return plain if isinstance(plain, type) and issubclass(plain, BaseModel) else None


def _plain(annotation: object) -> object:
    """Strip Annotated and `| None` from a type."""
    while get_origin(annotation) in (Annotated, Union, types.UnionType):
        annotation = next(arg for arg in get_args(annotation) if arg is not type(None))
    return annotation


def _copy(value: Json) -> Json:
    """Copy a value so that nothing in it is shared: aliases make one container stand in several places."""
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _droppable(path: tuple[Part, ...]) -> tuple[Part, ...]:
    """Return the path of a key: of the items of a list, all are dropped with one."""
    while path and isinstance(path[-1], int):
        path = path[:-1]
    return path


def _meant(
    document: Document, model: type[BaseModel], path: tuple[Part, ...], detail: ErrorDetails
) -> list[tuple[Part, ...]]:
    """Return the places of what is missing without the value at a path."""
    if detail["type"] != "extra_forbidden":
        return [path]
    around, said = path[:-1], detail["input"]
    known = _known_keys(model, around)
    near = () if isinstance(said, dict | list) else nearest(str(path[-1]), known)
    return [(*around, key) for key in near or known if document.locate((*around, key))[0] == around]


def _without(data: Json, path: tuple[Part, ...]) -> Json:
    """Drop what stands at the path of a key; return what is left."""
    if not path:
        return {}
    here = data
    for part in path[:-1]:
        if isinstance(here, dict) and part in here:
            here = here[str(part)]
        elif isinstance(here, list) and isinstance(part, int) and part < len(here):
            here = here[part]
        else:
            return data  # something around it has been dropped already
    if isinstance(here, dict):
        here.pop(str(path[-1]), None)
    return data
