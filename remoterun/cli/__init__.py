"""The command line: parse, call, print, map to an exit status."""

from remoterun.cli.guard import run

__all__ = ["run"]
