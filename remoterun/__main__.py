"""Start the command line: `remoterun` and `python -m remoterun`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and leave with its exit status."""
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


if __name__ == "__main__":
    main()
