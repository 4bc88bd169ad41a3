"""Start the command line: `remoterun` and `python -m remoterun`."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line and leave with its exit status."""
    _open_standard_streams()
    if sys.argv[1:] == ["--version"]:
        # Answered before anything heavy is imported: shells and scripts ask for it.
        from remoterun import __version__

        sys.stdout.write(f"remoterun {__version__}\n")
        return
    import gc

    # Imports make hundreds of thousands of objects that live to the end: looking through them for garbage takes a
    # tenth of the start.
    gc.set_threshold(100_000, 50, 50)
    try:
        from remoterun.cli import run

        status = run(sys.argv[1:])
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)


def _open_standard_streams() -> None:
    """Give closed standard streams somewhere to lead: their numbers would go to the next files that are opened.

    A closed standard output stays unwritable, which is told.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR if number != 1 else os.O_RDONLY)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115  # lives as long as the process
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115


if __name__ == "__main__":
    main()
