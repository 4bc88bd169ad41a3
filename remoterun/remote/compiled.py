"""Packs with their code compiled: Python needs longer to compile a large payload than the payload needs to run."""

from __future__ import annotations

import os
import sys

from remoterun.remote.cache import cache_folder, keep_code, kept_code
from remoterun.remote.wire import COMPILED, COMPILED_SIZE


def _place(sha: str, key: bytes) -> tuple[str, bytes] | None:
    """Return where the compiled form of a pack is kept, and what it is signed with: its name is part of that."""
    folder = cache_folder("code") if key else None
    if folder is None:
        return None
    from _blake2 import blake2b

    name = "%s-%s-%x" % (sha, sys.implementation.cache_tag, sys.hexversion)
    return os.path.join(folder, name), blake2b(name.encode(), key=key, digest_size=32).digest()


def compiled_pack(sha: str, key: bytes) -> bytes | None:
    """Return the compiled form of a pack if it is kept here for this Python, and nobody has touched it."""
    place = _place(sha, key)
    return None if place is None else kept_code(*place)


def keep_compiled(sha: str, key: bytes, data: bytes) -> None:
    """Compile a verified pack and keep the result; sources stay in it, for tracebacks and whatever else reads them."""
    place = _place(sha, key)
    if place is not None:
        keep_code(*place, with_code(data))


def with_code(data: bytes) -> bytes:
    """Lay the code of all modules, by their names, in front of the pack: (is a package, path in it, code).

    Modules for other Pythons, and those that are nested too deep for this one, have none: Python's own importer says
    what is wrong with them, if they are ever imported.
    """
    import io
    import marshal
    import zipfile

    table = {}
    with zipfile.ZipFile(io.BytesIO(data)) as pack:
        for name in pack.namelist():
            if not name.endswith(".py"):
                continue
            try:
                code = marshal.dumps(compile(pack.read(name), name, "exec", dont_inherit=True))
            except Exception:  # of what is nested too deep, RecursionError or MemoryError, by the Python
                code = b""
            *folders, last = name[:-3].split("/")
            package = last == "__init__"
            table[".".join(folders if package else (*folders, last))] = package, name, code
    head = marshal.dumps(table)
    return COMPILED + len(head).to_bytes(COMPILED_SIZE, "little") + head + data
