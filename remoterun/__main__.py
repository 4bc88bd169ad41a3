"""Start the command line: `remoterun` and `python -m remoterun`."""

import os
import sys

# Python looks first where `-m` was typed: in a folder of checkpoints, or of training code, lie files of any name.
# So nothing else is imported before, and no annotations of __future__. (PTH: pathlib would come from there.)
if (
    __name__ == "__main__"
    and not sys.flags.safe_path
    and os.path.isdir(sys.path[0])  # noqa: PTH112
    and os.path.samefile(sys.path[0], os.curdir)  # noqa: PTH121
):
    del sys.path[0]

import atexit
from typing import NoReturn

from remoterun.cli import output, signals


def main() -> int:
    """Run the command line and return its exit status."""
    argv = sys.argv[1:]
    # Before anything else is imported, which takes a third of a second: Ctrl-C may come at any time.
    signals.leave_at_once(document=output.machine_format(argv) is not None)
    output.open_streams()
    try:
        return output.end_of(_version) if argv == ["--version"] else _command_line(argv)
    finally:
        signals.ignore()
        output.settle_streams()


def _version() -> int:
    """Answer before anything heavy is imported: shells and scripts ask for it."""
    from remoterun import __version__

    output.write(f"remoterun {__version__}\n")
    return 0


def _command_line(argv: list[str]) -> int:
    import gc

    # Imports make hundreds of thousands of objects that live to the end: looking through them for garbage takes a
    # tenth of the start.
    gc.set_threshold(100_000, 50, 50)
    from remoterun.cli.guard import run

    return run(argv)


def start() -> NoReturn:
    """Run the command line and end the process with its exit status."""
    status = main()
    threading = sys.modules.get("threading")
    if threading is None or threading.active_count() == 1:
        # Nothing is left to be done, and taking a thousand modules apart takes as long as a tenth of a short run.
        atexit._run_exitfuncs()
        output.settle_streams()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    start()
