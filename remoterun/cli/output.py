"""Standard output: it carries the chosen format and nothing else, and its reader may leave at any time.

Loaded before everything else, so nothing that takes time is imported here.
"""

from __future__ import annotations

import io
import os
import stat
import sys
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from remoterun.cli import signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from remoterun.model import Json

SIGPIPE_STATUS: Final = 141


class ReaderGoneError(OSError):
    """Say that nobody reads standard output any more. Without EPIPE: typer would turn that into exit status 1."""


class OutputError(OSError):
    """Say that standard output can't be written, or not to its end: a full disk, mostly."""


class _StdoutError(OutputError):
    """Say that nothing can be written where standard output leads, which is a file with -o."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"standard output cannot be written: {reason}")
        self.reason = reason


def no_output(error: Exception) -> ReaderGoneError | OutputError:
    """Tell a reader that has left from an output that can't be written."""
    if isinstance(error, ReaderGoneError | OutputError):
        return error
    if isinstance(error, BrokenPipeError):
        return ReaderGoneError()
    return _StdoutError(getattr(error, "strerror", None) or str(error))


# --- the process's streams --------------------------------------------------------------------------------------------


class _Descriptor(io.FileIO):
    """Write to a descriptor, and say in words of our own what goes wrong, whoever writes: libraries have theirs."""

    def write(self, data: object, /) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]  # whatever the buffer hands over
        except OSError as error:
            raise no_output(error) from error


def open_streams() -> None:
    """Take over standard output, and give closed standard streams somewhere to lead.

    The numbers of closed ones would go to the next files that are opened. What was closed stays unreadable and
    unwritable, which is told; but for standard error, which nobody has to hear.
    """
    for number, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  # these live as long as the process
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    was = sys.stdout
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Descriptor(1, "w", closefd=False)),
        encoding=was.encoding if was else "utf-8",
        errors=was.errors if was else "backslashreplace",
        line_buffering=os.isatty(1),
    )


def settle_streams() -> None:
    """Leave nothing in the standard streams that the interpreter would fail to write when it shuts down."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except (OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)


# --- what commands write ----------------------------------------------------------------------------------------------


def tell(text: str | bytes) -> None:
    """Write to standard error, if that can be written at all; after a signal, not to a reader that takes nothing."""
    if signals.hurried() and not signals.room_comes(2):
        return
    with suppress(OSError, ValueError):
        if isinstance(text, bytes):
            sys.stderr.buffer.write(text)
        else:
            sys.stderr.write(text)
        sys.stderr.flush()


def write(data: bytes | str) -> None:
    """Write to standard output and flush it.

    Raises:
        ReaderGoneError: when its reader has left.
        OutputError: when it can't be written for another reason.
    """
    try:
        sys.stdout.buffer.write(data if isinstance(data, bytes) else data.encode("utf-8", "backslashreplace"))
        sys.stdout.buffer.flush()
    except (OSError, ValueError) as error:
        raise no_output(error) from error


def write_document(data: bytes | str) -> None:
    """Write the one document of a command, which says how it ended: no signal makes it two, or half of one.

    Raises:
        ReaderGoneError: when its reader has left.
        OutputError: when it can't be written for another reason.
    """
    signals.finish()
    write(data)
    signals.ignore()


def write_pieces(pieces: Iterable[bytes]) -> None:
    """Write the one document of a command as it is made, piece by piece.

    Raises:
        ReaderGoneError: when its reader has left.
        OutputError: when it can't be written for another reason, or what is to be written can't be read.
    """
    signals.finish()
    with read_to_the_end():
        for piece in pieces:
            write(piece)
    signals.ignore()


@contextmanager
def read_to_the_end() -> Iterator[None]:
    """Tell records that can't be read any more, when a part of them has been written, from other errors."""
    try:
        yield
    except (ReaderGoneError, OutputError):
        raise
    except OSError as error:
        raise OutputError(f"the result ends here: {error}") from error


@contextmanager
def into(name: str | None) -> Iterator[None]:
    """Let a file take what standard output would carry: whole, or not at all.

    It has no name until it is whole, where the file system can do that, so that nothing is left of a command that is
    killed. What is no regular file, a pipe for instance, is written to as it is. `None` leaves standard output alone.

    Raises:
        ConfigError: when it can't be made.
        OutputError: when it can't be put in its place.
    """
    if name is None:
        yield
        return
    from pathlib import Path

    from remoterun.errors import ConfigError
    from remoterun.store import Unfinished

    place = Path(os.path.realpath(name))
    with ExitStack() as stack:
        try:
            found = _found(place)
            if found is not None and not stat.S_ISREG(found.st_mode):
                unfinished, file = None, os.open(place, os.O_WRONLY | os.O_CLOEXEC)
                stack.callback(os.close, file)
            else:
                unfinished = stack.enter_context(Unfinished(place, 0o666))
                file = unfinished.descriptor
        except OSError as error:
            raise ConfigError(f"-o {name}: cannot be written: {error.strerror}") from error
        if found is not None and unfinished is not None:
            with suppress(OSError):
                os.fchmod(file, stat.S_IMODE(found.st_mode))
        try:
            with _as_stdout(file):
                yield
        except _StdoutError as error:
            raise OutputError(f"{place} cannot be written: {error.reason}") from error
        if unfinished is not None:
            try:
                unfinished.put()
            except OSError as error:
                raise OutputError(f"{place} cannot be written: {error.strerror}") from error


def _found(place: Path) -> os.stat_result | None:
    try:
        return place.stat()
    except FileNotFoundError:
        return None


@contextmanager
def _as_stdout(file: int) -> Iterator[None]:
    was = os.dup(1)
    os.dup2(file, 1)
    try:
        yield
        sys.stdout.flush()
    finally:
        try:
            sys.stdout.flush()
        except (OSError, ValueError):
            # What the file did not take is nothing for the real standard output.
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(nowhere, 1)
            os.close(nowhere)
            with suppress(OSError, ValueError):
                sys.stdout.flush()
        os.dup2(was, 1)
        os.close(was)


def write_json(value: dict[str, Json], *, indent: int | None) -> None:
    """Write the one document of a command as strict JSON in ASCII."""
    import json

    write_document(json.dumps(value, indent=indent, allow_nan=False) + "\n")


def use_color(stream: object) -> bool:
    """Tell whether a stream is a terminal that wants colour (https://no-color.org)."""
    isatty = getattr(stream, "isatty", None)
    return bool(isatty and isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def machine_format(argv: Sequence[str]) -> str | None:
    """Look for the `--output` of a program before anything is parsed: usage errors come in that format too."""
    words = list(argv)
    if "--" in words:
        words = words[: words.index("--")]
    found = None
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name != "--output":
            continue
        if not equals:
            value = words[index + 1] if index + 1 < len(words) else ""
        # The last one counts, as it does once everything is parsed.
        found = value if value in {"json", "jsonl", "junit"} else None
    return found


# --- how commands end -------------------------------------------------------------------------------------------------


def end_of(work: Callable[[], int]) -> int:
    """Return the exit status of some work, also when standard output took no more of it."""
    try:
        return work()
    except ReaderGoneError:
        # It has what it wanted (`| head`).
        return SIGPIPE_STATUS
    except OutputError as error:
        from remoterun.model import RunStatus

        # What ran has run, but its result is lost: that is incomplete.
        tell(f"remoterun: {error}\n")
        return RunStatus.INCOMPLETE.exit_code
