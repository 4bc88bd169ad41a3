"""Sessions to targets, by SSH, by Fabric and local: connections shared and bounded.

Only here are asyncssh and fabric imported, and lazily.
"""

from remoterun.transports.pool import Pool
from remoterun.transports.session import ConnectionLost, Exit, OnPhase, Session, SessionEnded

__all__ = ["ConnectionLost", "Exit", "OnPhase", "Pool", "Session", "SessionEnded"]
