"""The embedded lab: an SSH server and a `pct` on loopback, for the demo, for payload authors and for tests."""

from remoterun.lab.lab import Lab
from remoterun.lab.pct import Guest

__all__ = ["Guest", "Lab"]
