"""Code without what only its readers and type checkers need: a target pays for every byte. Line numbers stay."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from string import ascii_letters
from typing import Final

# Strings and comments; a regular expression is fifty times as fast as the tokenizer, which runs at every start.
_TOKEN: Final = re.compile(
    r'"""(?:[^\\"]|\\.|"(?!""))*"""'
    r"|'''(?:[^\\']|\\.|'(?!''))*'''"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'(?:[^'\\\n]|\\.)*'"
    r"|#[^\n]*",
    re.DOTALL,
)
# Or a blank beside an operator, which only makes it easier to read.
_BLANK: Final = re.compile(
    _TOKEN.pattern + r"|(?<=[^\s]) (?=[-=+*/%<>|&!^])|(?<=[-=+*/%<>,:|&!^]) (?=[^\s])",
    re.DOTALL,
)
# Stands for the ends of lines inside strings, which are no lines of code.
_INNER: Final = "\0"
_DEPTH: Final = 12
_TYPING: Final = re.compile(r"\nfrom typing import (\([^)]*\)|.*)")


def _nested(depth: int) -> str:
    """Return the pattern of brackets on one line with others in them."""
    inner = f"(?:{_nested(depth - 1)}[^][\n]*)*" if depth else ""
    return rf"\[[^][\n]*{inner}\]"


_ANNOTATION: Final = rf"[\w.]+(?:{_nested(3)})?(?: \| [\w.]+(?:{_nested(3)})?)*"
_HEAD: Final = r"[^()]*(?:\([^()]*(?:\([^()]*\)[^()]*)*\)[^()]*)*"
# What is there for type checkers alone: a block, another name for a type, the types of a function, that of a name. What
# looks like the last, but is an entry of a dictionary, has a comma or a comprehension behind it.
_TYPES: Final = re.compile(
    r"\n(?:if TYPE_CHECKING:(?P<block>(?:\n(?: .*)?)+)(?=\n\w|\n@|\Z)(?!\nelse)"
    rf"|(?P<alias>\w+) = (?:(?:Callable|Dict|List|Optional|Tuple|Union){_nested(3)}|TypeVar\(.*\))(?=\n)"
    rf"|(?P<function> *def \w+\()(?P<parameters>{_HEAD})\)(?: -> {_ANNOTATION})?:(?=\n)"
    rf"|(?P<name> *[\w.]+): {_ANNOTATION}(?P<equal> =|(?=\n)(?!\n *for )))"
)
# Constants that a module keeps to itself. Functions and classes keep their names, which tracebacks tell.
_CONSTANTS: Final = re.compile(r"\n\(?(_[A-Z]\w*(?:,_[A-Z]\w*)*)\)?(?::0)?=(?!=)")
_NAME: Final = re.compile(_TOKEN.pattern + r"|(?<![\w.])_[A-Z]\w*", re.DOTALL)
_PARAMETER: Final = re.compile(rf"(\w): {_ANNOTATION}(?:( =) )?")


def lean(code: str) -> str:
    """Blank out comments on lines of their own, docstrings, types and blanks; indent by one character; shorten names.

    For code that is formatted as this project's is, with annotations that nobody evaluates: only which names a class
    annotates can still be told. A docstring is triple-quoted, without a prefix, and is the first thing after the line
    that ends with a colon.
    """
    code = _TYPES.sub(_without_types, _without_texts(code))
    code = _TYPING.sub(lambda match: _still_used(match, code), code).replace("TYPE_CHECKING", "0")
    for depth in range(_DEPTH, 0, -1):
        code = code.replace("\n" + "    " * depth, "\n" + "\t" * depth)
    code = _BLANK.sub(lambda match: "" if match[0] == " " else match[0], code)
    return _with_short_names(code).replace(_INNER, "\n")


def _without_texts(code: str) -> str:
    parts: list[str] = []
    at = 0
    # What the code so far ends with.
    before = ""
    for match in _TOKEN.finditer(code):
        between = code[at : match.start()]
        before = between.rstrip()[-1:] or before
        token = match[0]
        first = not between.rpartition("\n")[2].strip() if "\n" in between or not at else False
        if token.startswith("#"):
            token, between = "", between.rstrip(" ")
        elif first and before in {"", ":"} and token.startswith('"""'):
            # A body needs a statement; but in front of `from __future__` there may be none.
            token = before.replace(":", "0") + "\n" * token.count("\n")
        else:
            before = token[-1:]
            token = token.replace("\n", _INNER)
        parts += (between, token)
        at = match.end()
    return "".join((*parts, code[at:]))


def _with_short_names(code: str) -> str:
    """Call a module's own constants by few letters, by the fewest those that stand most often."""
    own = {name for names in _CONSTANTS.findall(code) for name in names.split(",")}
    found = Counter(_NAME.findall(code))
    # What stands in a text may be looked up by it.
    told = {name for text in found if text[0] != "_" for name in re.findall(r"\b_[A-Z]\w*", text)}
    taken = set(re.findall(r"\b_\w*", code))
    words = ("_" + "".join(letters) for size in (1, 2) for letters in itertools.product(ascii_letters, repeat=size))
    often = (name for name, _ in found.most_common() if name in own - told)
    short = dict(zip(often, (word for word in words if word not in taken), strict=False))
    return _NAME.sub(lambda match: short.get(match[0], match[0]), code)


def _without_types(match: re.Match[str]) -> str:
    if match["block"] is not None:
        return "\n" * match[0].count("\n")
    if match["alias"] is not None:
        return f"\n{match['alias']} = 0"
    if match["function"] is not None:
        return f"\n{match['function']}{_PARAMETER.sub(_bare, match['parameters'])}):"
    # Only of a class is it told which of its names are annotated.
    mark = "" if match["equal"] and "." in match["name"] else ":0"
    return f"\n{match['name']}{mark}{match['equal']}"


def _bare(match: re.Match[str]) -> str:
    return match[1] + ("=" if match[2] else "")


def _still_used(match: re.Match[str], code: str) -> str:
    """Return an import of those names that stand anywhere else, with as many lines."""
    names = [name for name in re.findall(r"\w+", match[1]) if name != "TYPE_CHECKING"]
    used = [name for name in names if code.count(name) > 1 and len(re.findall(rf"(?<![\w.]){name}\b", code)) > 1]
    return "\n" * match[0].count("\n") + (f"from typing import {', '.join(used)}" if used else "")
