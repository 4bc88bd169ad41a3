"""Put the target's side together as one text to send. Runs on the controller; reads the modules as data."""

from __future__ import annotations

import zlib
from functools import lru_cache

from remoterun.store import remember

# In the order of their imports. All share one namespace on the target, so no name may stand in two of them.
_PROGRAM = ("wire", "system", "cache", "compiled", "link", "process", "supervisor", "relay", "leg")
_RUNTIME = ("wire", "importer", "runtime")
_QUOTES = '"""'


def _source(module: str) -> str:
    """Return a module's code without docstrings, comments and imports of ours: a target would only pay for them.

    In these modules only docstrings are triple-quoted.
    """
    from importlib.resources import files

    lines = files("remoterun.remote").joinpath(f"{module}.py").read_text("utf-8").splitlines(keepends=True)
    kept: list[str] = []
    ends_with = ""
    for line in lines:
        code = line.lstrip()
        if ends_with:
            ends_with = "" if ends_with in line else ends_with
        elif code.startswith(_QUOTES):
            # A body needs a statement where its only one was a docstring.
            kept.append(line[: len(line) - len(code)] + "0\n")
            ends_with = "" if code.count(_QUOTES) == 2 else _QUOTES
        elif line.startswith(("from remoterun.remote", "from __future__")):
            ends_with = ")" if "(" in line and ")" not in line else ""
        elif code and not code.startswith("#"):
            kept.append(line)
    return "".join(kept)


@lru_cache(maxsize=1)
def program() -> bytes:
    """Return the sources of the leg and of the runtime, a zero byte between them, zlib-compressed.

    Annotations in them are not to be evaluated; they don't say so themselves, for that would import a module.
    """
    # What is remembered is bound to the state of all modules of this package.
    return remember("program", b"", _bundled)


def _bundled() -> bytes:
    text, runtime = ("".join(map(_source, modules)) for modules in (_PROGRAM, _RUNTIME))
    return zlib.compress(f"{text}\0{runtime}".encode(), 6)
