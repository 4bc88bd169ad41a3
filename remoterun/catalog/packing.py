"""Packing of payloads: the files of one, as a zip with the same bytes on every machine."""

from __future__ import annotations

import fnmatch
import io
import os
import stat
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from remoterun.errors import ConfigError, Problem
from remoterun.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PACK_LIMIT: Final = 16 * 1024 * 1024
_LEFT_OUT: Final = frozenset({"tests", "__pycache__"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Hold one file of a pack; a program has its executable bits set."""

    name: str
    data: bytes = field(repr=False)
    program: bool = False


def canonical_zip(members: Iterable[Member]) -> bytes:
    """Return a zip whose bytes depend on nothing but names, contents and which member is a program."""
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for member in sorted(members, key=lambda member: member.name):
            info = zipfile.ZipInfo(member.name, (1980, 1, 1, 0, 0, 0))
            info.create_system = 3  # Unix: only then the mode counts
            info.external_attr = (stat.S_IFREG | (0o755 if member.program else 0o644)) << 16
            archive.writestr(info, member.data)
    return buffer.getvalue()


def code_size(members: Iterable[Member]) -> int:
    """Count the bytes of Python source."""
    return sum(len(member.data) for member in members if member.name.endswith(".py"))


def lean_member(member: Member) -> Member:
    """Return a member without what only its readers at home need."""
    from remoterun.catalog.lean import lean

    if not member.name.endswith(".py"):
        return member
    return Member(name=member.name, data=lean(member.data.decode("utf-8")).encode("utf-8"), program=member.program)


def left_out(name: str) -> bool:
    """Tell whether packs never hold a file or folder of that name."""
    return name in _LEFT_OUT or name.startswith(".")


def collect_file(path: Path, name: str) -> list[Member]:
    """Read a single-file payload as the member `name`."""
    return _read({name: path}, program=None, subject=str(path))


def collect_folder(folder: Path, *, package: str | None, program: str | None, include: tuple[str, ...]) -> list[Member]:
    """Read what belongs into the pack of a folder.

    A package's Python files stand under ``package/``; a program and its files stand at the top. `include` are patterns
    of further files, relative to the folder, where ``*`` also matches ``/``. Folders named ``tests`` or ``__pycache__``
    and names that start with a dot never belong.

    Raises:
        ConfigError: for a link that leaves the folder or leads to another folder, a file that can't be read, a name
            that is not ASCII, a pattern that matches nothing, and more than `PACK_LIMIT`.
    """
    problems: list[Problem] = []
    names = sorted(_walk(folder, problems))
    problems += [
        _problem(folder, f"no file matches {pattern!r}", path="pack.include")
        for pattern in include
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names)
    ]
    chosen = [name for name in names if _belongs(name, program=program, include=include)]
    problems += [problem for name in chosen if (problem := _refusal(folder, name))]
    if problems:
        raise ConfigError(problems)
    prefix = f"{package}/" if package else ""
    return _read({prefix + name: folder / name for name in chosen}, program=program, subject=str(folder))


def _problem(folder: Path, message: str, *, path: str | None = None) -> Problem:
    return Problem(message=message, file=str(folder / "payload.toml"), path=path)


def _walk(folder: Path, problems: list[Problem]) -> Iterator[str]:
    def unreadable(error: OSError) -> None:
        problems.append(_problem(folder, f"{error.filename} can't be read: {error.strerror}"))

    for base, folders, files in os.walk(folder, onerror=unreadable):
        here = Path(base)
        folders[:] = sorted(name for name in folders if not left_out(name))
        for name in folders:
            if (here / name).is_symlink():
                message = f"{here / name} is a link to a folder: packs hold no links, copy the files or leave it out"
                problems.append(_problem(folder, message))
        yield from ((here / name).relative_to(folder).as_posix() for name in files if not left_out(name))


def _belongs(name: str, *, program: str | None, include: tuple[str, ...]) -> bool:
    own = name.endswith(".py") if program is None else name == program
    return own or any(fnmatch.fnmatchcase(name, pattern) for pattern in include)


def _refusal(folder: Path, name: str) -> Problem | None:
    path = folder / name
    if not (name.isascii() and name.isprintable()):
        return _problem(folder, f"{name!r}: names of packed files are plain ASCII, to be the same on every machine")
    # realpath stops at a broken or circular link without an error; is_file tells.
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        return _problem(folder, f"{path} is a link that leaves the payload's folder: copy the file instead")
    return None if path.is_file() else _problem(folder, f"{path} is not a file that can be packed")


def _read(paths: dict[str, Path], *, program: str | None, subject: str) -> list[Member]:
    try:
        _refuse_big({name: path.stat().st_size for name, path in paths.items()}, subject)
        return [Member(name=name, data=path.read_bytes(), program=name == program) for name, path in paths.items()]
    except OSError as error:
        raise ConfigError(Problem(message=f"can't be read: {error.strerror}", file=str(error.filename))) from error


def _refuse_big(sizes: dict[str, int], subject: str) -> None:
    total = sum(sizes.values())
    if total > PACK_LIMIT:
        biggest = ", ".join(f"{name} ({sizes[name]:,})" for name in sorted(sizes, key=lambda name: -sizes[name])[:3])
        message = f"holds {total:,} bytes, more than the {PACK_LIMIT:,} that a pack may have; the biggest: {biggest}"
        raise ConfigError(Problem(message=message, file=subject))
