"""What is said between a controller and one target, whatever number of connections it takes."""

from __future__ import annotations

from os import urandom
from typing import TYPE_CHECKING

from remoterun.model import Manner, OtherWork
from remoterun.remote.wire import LOOKER
from remoterun.runner.clock import uptime
from remoterun.runner.collect import Collector
from remoterun.runner.request import Attach, described

if TYPE_CHECKING:
    from remoterun.model import Job
    from remoterun.runner.keep import Keep
    from remoterun.secrets import Redactor


class Dialogue:
    """Hold what outlives a connection: what has arrived, how much of it, and who is asking.

    `job` is what is done there, as far as that is known. `number` is that of the next message of the supervisor,
    `started` tells that it is known to be there, `begun` when it first was and `heard` when the target last gave a sign
    of life, by the loop's clock. `keep` says what all jobs of the run may keep together. `gap` is how long, by
    the machine's uptime, nothing was said from here since the last connection began. `doubt`: until then, by the same
    clock, whatever a lost connection may have started would still be there.
    """

    def __init__(self, job: Job, manner: Manner, redactor: Redactor, keep: Keep | None = None) -> None:
        self.job = job
        self._keep = keep
        self.collector = Collector(job, redactor, keep)
        self._redactor = redactor
        self.manner = manner
        self.number = 0
        self.connections = 0
        self.started = False
        self.begun = self.heard = 0.0
        self.doubt: float | None = None
        self.gap = 0.0
        self._ticked = 0.0
        self._controller = LOOKER if manner is Manner.COLLECT else urandom(8)

    def tick(self, *, first: bool = False) -> None:
        """Note that this program goes on; one that did not for a while, as on a laptop that sleeps, was not heard."""
        now = uptime()
        self.gap = 0.0 if first or not self._ticked else max(self.gap, now - self._ticked)
        self._ticked = now

    def learn(self, about: object) -> None:
        """Take up a run that somebody else has planned.

        Raises:
            ValueError: when what the target knows of it is not of its form.
        """
        if isinstance(self.job.work, OtherWork) and not self.started:
            facts = self.collector.facts
            self.job = described(self.job, about)
            self.collector = Collector(self.job, self._redactor, self._keep)
            self.collector.facts = facts

    def attach(self) -> Attach:
        """Say what the next connection is to ask for."""
        self.connections += 1
        return Attach(
            controller=self._controller,
            generation=self.connections,
            number=self.number,
            only=self.started or self.doubt is not None or not self.manner.starts,
        )
