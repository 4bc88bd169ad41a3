"""What a usage error says: the parser's words, the nearest right ones, and where that which was meant is to be put."""

from __future__ import annotations

import shlex
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from remoterun.errors import ConfigError, Problem, nearest, show

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typer.exceptions import TyperException

# How the words of a program are told from remoterun's own.
_PROGRAMS: Final[Mapping[str, str]] = MappingProxyType(
    {"run": "remoterun run SCRIPT.py --on TARGET -- {}", "exec": "remoterun exec --on TARGET -- PROGRAM {}"}
)
_FAIL_ON: Final = (
    "`fail_on: {}` belongs to a step of a playbook, and `play` has no flag for it; what a rule counts for in this run "
    "is said by --severity and --ignore"
)
# What other programs call it: what to write here, and what stands there for a value that was not given.
_MEANT: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        **dict.fromkeys(("--target", "--targets", "--host", "--hosts", "-t", "-H"), ("--on {}", "PATTERN")),
        **dict.fromkeys(("--inventory", "-i"), ("--project {}", "DIR")),
        **dict.fromkeys(("--param", "-p"), ("--set {}", "NAME=VALUE")),
        "--json": ("--output json", ""),
        "--format": ("--output {}", "FORMAT"),
        "--timeout": ("--limit run={}", "DURATION"),
        "-h": ("--help", ""),
        "-V": ("--version", ""),
    }
)
# What word processors and web pages make of hyphens.
_DASHES: Final = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"


def usage_problem(words: Sequence[str], error: TyperException) -> Problem:
    """Say a usage error of the command line `words`, and what to do about it where that is known."""
    context: Any = getattr(error, "ctx", None)
    message = error.format_message()
    if context is None:
        return Problem(message=message)
    # Options that are not there are the only ones that come with the like of them, if only with none.
    if hasattr(error, "possibilities"):
        return _no_option(words, str(getattr(error, "option_name", "")), context)
    if message.startswith("Missing argument"):
        return Problem(message=f"{message.rstrip('.')}; {_missing(message, context)}")
    if message.startswith("Got unexpected extra argument"):
        return Problem(message=_one_too_many(words, message, context))
    if message.startswith("No such command"):
        return _no_command(words, message, context)
    return Problem(message=message.replace("a valid int range", "a whole number"))


def _flags(context: Any) -> list[str]:
    return [name for param in context.command.get_params(context) for name in param.opts if name.startswith("-")]


def _help(context: Any) -> str:
    return f"`{context.command_path} --help` says what there is"


def _missing(message: str, context: Any) -> str:
    if "'PLAYBOOK'" in message and (names := sorted(_playable())):
        return f"there are {', '.join(names)}"
    if "'RUN'" in message:
        return "`remoterun runs` lists them, and `last` is the newest"
    return _help(context)


def _no_option(words: Sequence[str], option: str, context: Any) -> Problem:
    command, flags, message = words[0], _flags(context), f"No such option: {option}"
    if command == "play" and option.replace("_", "-") == "--fail-on":
        return Problem(message=f"{message}; {_FAIL_ON.format(_value(words, option) or 'LEVEL')}")
    if command == "check" and option == "--on":
        target = _value(words, option) or "TARGET"
        return Problem(message=f"{message}: `check` looks at this machine; `remoterun play check-ckpt --on {target}`")
    near = tuple(f"--{name}" for name in nearest(option.lstrip("-"), (flag[2:] for flag in flags)))
    if command in _PROGRAMS and "--" not in words:
        # It may be both: a word of the program, and one of ours that is mistyped.
        said = str(Problem(message=message, nearest=near))
        return Problem(
            message=f"{said}; what belongs to the program goes behind `--`: {_PROGRAMS[command].format(option)}"
        )
    meant, missing = _MEANT.get(option, ("", ""))
    name, value = option.lstrip("-").replace("-", "_"), _value(words, option)
    if meant.partition(" ")[0] in flags:
        near = (meant.format(value or missing),)
    elif "--set" in flags and name in _parameters():
        near = (f"--set {name}={value or 'VALUE'}",)
    return Problem(message=message if near else f"{message}; {_help(context)}", nearest=near)


def _value(words: Sequence[str], option: str) -> str | None:
    """Return what an option was given, as a shell takes it."""
    for number, word in enumerate(words):
        name, _, value = word.partition("=")
        if name == option:
            value = value or next(iter(words[number + 1 : number + 2]), "")
            return shlex.quote(value) if value else None
    return None


def _one_too_many(words: Sequence[str], message: str, context: Any) -> str:
    dashed = next((word for word in words if word[0:1] and word[0] in _DASHES), None)
    if dashed is not None:
        return f"{show(dashed)} begins with a dash where hyphens belong: write --{dashed.lstrip(_DASHES + '-')}"
    first = message.partition(" (")[2].rstrip(")").partition(" ")[0]
    if first == "=":
        return "'=' stands between blanks: write NAME=VALUE as one word"
    if "--on" not in _flags(context):
        return f"{message}; {_help(context)}"
    if words[0] == "play" and first in _playable():
        argument = next(param.name for param in context.command.params if param.param_type_name == "argument")
        target = shlex.quote(str(context.params.get(argument) or "TARGET"))
        return f"{show(first)} is a word too many; the playbook comes first: `remoterun play {first} --on {target}`"
    return f"{show(first)} is a word too many; each target has an --on of its own: `--on {shlex.quote(first)}`"


def _no_command(words: Sequence[str], message: str, context: Any) -> Problem:
    name = next((word for word in words if repr(word) in message), "")
    if context.parent is None and name in _playable():
        return Problem(message=f"No such command {name!r}; `remoterun play {name}` plays it")
    if "Did you mean" in message:
        return Problem(message=message)
    chosen = f"; `--target {name}` chooses a target" if "--target" in _flags(context) else f"; {_help(context)}"
    return Problem(message=f"No such command {name!r}{chosen}")


def _parameters() -> set[str]:
    """Return the names of what payloads take here."""
    from remoterun.api import Project

    try:
        catalog = Project.load().catalog
    except ConfigError:
        return set()
    payloads = (payload for name in catalog.names() for payload in catalog.versions(name))
    return {param.name for payload in payloads for param in payload.params}


def _playable() -> set[str]:
    from remoterun.api import Project
    from remoterun.playbook import playbook_names

    try:
        project = Project.load()
    except ConfigError:
        return set()
    return {*playbook_names(project.root), *project.catalog.names()}
