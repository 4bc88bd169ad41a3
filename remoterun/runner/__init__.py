"""From a plan to its outcomes: all concurrency, limits, deadlines and cancellation; tells what happens as events."""

from remoterun.runner.control import Control
from remoterun.runner.execute import execute

__all__ = ["Control", "execute"]
