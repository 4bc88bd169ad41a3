"""From a plan to its outcomes: all concurrency, limits, deadlines and cancellation; tells what happens as events."""

from remoterun.runner.execute import Control, execute

__all__ = ["Control", "execute"]
