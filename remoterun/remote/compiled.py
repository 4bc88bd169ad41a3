"""Packs with their code compiled: Python needs longer to compile a large payload than the payload needs to run."""

from __future__ import annotations

import os
import sys

from remoterun.remote.cache import cache_folder, keep_code, kept_code

# The loader of zip files takes a .pyc with these flags as it is: made for the hash of a source, which is not looked at
# again. Both are signed together.
_UNCHECKED = (1).to_bytes(4, "little") + bytes(8)


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
        keep_code(*place, _compiled(data))


def _compiled(data: bytes) -> bytes:
    import io
    import marshal
    import zipfile
    from importlib.util import MAGIC_NUMBER

    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as pack, zipfile.ZipFile(buffer, "w") as result:
        for member in pack.infolist():
            text = pack.read(member)
            result.writestr(member, text)
            if member.filename.endswith(".py"):
                try:
                    code = compile(text, member.filename, "exec", dont_inherit=True)
                except (SyntaxError, ValueError):
                    # Only the import of it fails, if there ever is one: some modules are for other Pythons.
                    continue
                result.writestr(member.filename + "c", MAGIC_NUMBER + _UNCHECKED + marshal.dumps(code))
    return buffer.getvalue()
