"""What is said between a controller and one target, whatever number of connections it takes."""

from __future__ import annotations

from os import urandom
from typing import TYPE_CHECKING

from remoterun.model import OtherWork
from remoterun.runner.collect import Collector
from remoterun.runner.request import Attach, described

if TYPE_CHECKING:
    from remoterun.model import Job, Manner
    from remoterun.secrets import Redactor


class Dialogue:
    """Hold what outlives a connection: what has arrived, how much of it, and who is asking.

    `job` is what is done there, as far as that is known. `number` is that of the next message of the supervisor,
    `started` tells that it is known to be there, `begun` when it first was and `heard` when the target last gave a sign
    of life, by the loop's clock.
    """

    def __init__(self, job: Job, manner: Manner, redactor: Redactor) -> None:
        self.job = job
        self.collector = Collector(job, redactor)
        self._redactor = redactor
        self.manner = manner
        self.number = 0
        self.connections = 0
        self.started = False
        self.begun = self.heard = 0.0
        self._controller = urandom(8)

    def learn(self, about: object) -> None:
        """Take up a run that somebody else has planned.

        Raises:
            ValueError: when what the target knows of it is not of its form.
        """
        if isinstance(self.job.work, OtherWork) and not self.started:
            facts = self.collector.facts
            self.job = described(self.job, about)
            self.collector = Collector(self.job, self._redactor)
            self.collector.facts = facts

    def attach(self) -> Attach:
        """Say what the next connection is to ask for."""
        self.connections += 1
        return Attach(
            controller=self._controller,
            generation=self.connections,
            number=self.number,
            only=self.started or not self.manner.starts,
        )
