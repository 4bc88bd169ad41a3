"""Take one job from the queue to its outcome, over as many connections as it takes."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from remoterun import hops
from remoterun.errors import CODES, TargetError
from remoterun.events import Logged, TargetMoved
from remoterun.model import ErrorInfo, Job, Manner, Outcome, Phase, Status, format_duration
from remoterun.runner.clock import Clock, uptime
from remoterun.runner.control import Control, cancelled
from remoterun.runner.conversation import Conversation
from remoterun.runner.dialogue import Dialogue
from remoterun.runner.request import Packed, Request, payload_of

if TYPE_CHECKING:
    from remoterun.events import OnEvent
    from remoterun.runner.keep import Keep
    from remoterun.secrets import Vault
    from remoterun.transports import Pool

_DIAGNOSE_S: Final = 5.0
_BACKOFF_S: Final = 0.2
_LONGEST_BACKOFF_S: Final = 5.0
_DOUBLINGS: Final = 5
# What a target says of a run that has no outcome for us; and what else no further try changes.
_OVER: Final = frozenset({"lease_expired", "taken_over"})
_FINAL: Final = _OVER | {"host_key_unknown", "host_key_changed", "auth_failed"}
# What may be another the next time, where a target was entered before; and every code of a host that was not reached.
_PASSING: Final = frozenset({"connection_lost", "enter_timeout", "enter_failed", "interpreter_broken"})
# So often, a Python may end while it is sent code before it is taken for broken: one may be killed, and then another.
_MOST_DEATHS: Final = 5
_DIES: Final = (
    "It may be short of memory (`ulimit -v`, the guest's own limit), or something there ends it: try it by hand."
)
_GONE: Final = (
    "Whoever has followed, fetched or cancelled it has its outcome; else its lease was over, or the target restarted."
)
# A target counts its lease from when it heard of us, which is a little later than we last heard of it.
_LEASE_SHARE: Final = 0.9


class JobRun:
    """Take one job from the queue to its outcome."""

    def __init__(
        self,
        job: Job,
        key: str,
        packed: Packed,
        tell: OnEvent,
        control: Control,
        manner: Manner,
        vault: Vault,
        *,
        use_cache: bool,
        keep: Keep,
    ) -> None:
        self._key = key
        self._packed = packed
        self._use_cache = use_cache
        self._vault = vault
        self._tell = tell
        self._control = control
        self._clock = Clock()
        self._phase = Phase.CONNECT
        self._started_at: float | None = None
        self._dialogue = Dialogue(job, manner, vault.redactor, keep)
        self._conversation: Conversation | None = None
        self._heard_at = 0.0
        self._lost_at = 0.0
        self._deaths = 0
        # How the Python over the last connection ended, if that is how it did.
        self._died = ""

    @property
    def _job(self) -> Job:
        """Return what is done there, as far as that is known: of what somebody else has planned, its target tells."""
        return self._dialogue.job

    async def outcome(self, pool: Pool) -> Outcome:
        """Run the job; every failure is a value."""
        try:
            return self._finish(await self._follow(pool), None)
        except TargetError as error:
            error = await self._why_no_answer(pool, self._by_total(error))
            return self._finish(self._status_of(error), self._told(error))
        except asyncio.CancelledError:
            if not self._control.cancelled:
                raise
            if self._dialogue.manner.lets_go_on:
                return self._finish(Status.RUNNING, None)
            return self._finish(Status.CANCELLED, self._told(self._unconfirmed()))
        except Exception as error:
            import traceback

            blank = self._finish(Status.FAILED, self._told(TargetError("internal", repr(error))))
            return replace(blank, log=(*blank.log, "".join(traceback.format_exception(error))))

    def _told(self, error: TargetError) -> ErrorInfo:
        return ErrorInfo.of(error, self._job.limits_set_by, run_id=self._key.partition("/")[0])

    def _status_of(self, error: TargetError) -> Status:
        """Whoever only looks after a run learns nothing of it where the target can't be asked, or says too much."""
        dialogue = self._dialogue
        if not (dialogue.manner.starts or dialogue.started or error.code in _OVER):
            return Status.RUNNING
        if dialogue.manner is Manner.COLLECT and dialogue.collector.short_of_room:
            return Status.RUNNING
        return Status(CODES[error.code].status)

    def _unconfirmed(self) -> TargetError:
        lease = self._job.limits.lease
        if not self._dialogue.started or lease is None:
            return cancelled()
        target = self._job.target.id
        message = f"the run was cancelled, and {target} has not confirmed it: it ends the payload by itself"
        return TargetError("cancelled", f"{message} within its lease of {format_duration(lease)}")

    # --- connections ---

    async def _follow(self, pool: Pool) -> Status:
        """Converse until the end is known; where a connection is lost, take up the run over another one."""
        tries = 0
        again = False
        lost = TargetError("connection_lost", "the connection ended")
        while True:
            known = self._dialogue.number
            try:
                return await self._converse(pool, again=again)
            except TargetError as error:
                if self._dialogue.number > known:
                    tries = self._deaths = 0
                if not tries:
                    self._lost_at = asyncio.get_running_loop().time()
                if error.code == "connection_lost":
                    self._doubt()
                trouble = self._explained(error)
                if not again:
                    lost = trouble
                if not self._may_go_on(trouble, again=again, tries=tries):
                    raise self._given_up(lost, trouble) from error
                wait = _least(min(_LONGEST_BACKOFF_S, _BACKOFF_S * 2 ** min(tries, _DOUBLINGS)), self._left()) or 0.0
            self._moved(Phase.CONNECT, waiting=False)
            target, step = self._job.target.id, self._job.step
            text = f"remoterun: {self._vault.redactor.text(trouble.message)}; the run is taken up again"
            self._tell(Logged(target=target, step=step, text=text))
            self._control.enter(None)
            try:
                await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
            finally:
                self._control.leave()
            tries += 1
            again = True

    def _doubt(self) -> None:
        """Start nothing by the next connection if the last one may have started something without a word of it."""
        talk, lease, dialogue = self._conversation, self._job.limits.lease, self._dialogue
        if talk is not None and talk.phase is Phase.UPLOAD and lease is not None and dialogue.doubt is None:
            dialogue.doubt = self._heard_at + lease * _LEASE_SHARE

    def _may_go_on(self, error: TargetError, *, again: bool, tries: int) -> bool:
        """Tell whether another connection is worth trying: for the lease, and while nothing can be started twice."""
        lease, talk = self._job.limits.lease, self._conversation
        if lease is None or talk is None or error.code in _FINAL:
            return False
        if not again and (error.code != "connection_lost" or talk.phase is Phase.ENTER):
            return False
        if not _may_pass(error) or self._deaths >= _MOST_DEATHS:
            return False
        now = asyncio.get_running_loop().time()
        deadline = self._deadline()
        # Each connection hears of the target, also of one that starts nothing time and again.
        heard = self._dialogue.heard if self._dialogue.started else min(self._dialogue.heard, self._lost_at)
        # Once in any case: after a long sleep, only the target knows whether it has waited.
        in_time = not tries or now < heard + lease
        return in_time and (deadline is None or now < deadline)

    def _given_up(self, lost: TargetError, last: TargetError) -> TargetError:
        if self._died and self._deaths > 1:
            target = self._job.target
            message = f"{self._deaths} times, while it was sent the payload's code, {target.interpreter} {self._died}"
            return TargetError("interpreter_broken", f"{target.id}: {message}", hint=_DIES)
        if lost is last or last.code in _FINAL or last.code == "payload_killed":
            return last
        if not _may_pass(last):
            return last
        limits = self._job.limits
        tried = f"{lost.message}, and could not be taken up again within the"
        if limits.total is not None and not self._left():
            text = f"{tried} {format_duration(limits.total)} for everything: {last.message}"
            return TargetError("total_timeout", text, limit=("total", limits.total, "limits.total"))
        return TargetError("connection_lost", f"{tried} lease of {format_duration(limits.lease)}: {last.message}")

    def _explained(self, error: TargetError) -> TargetError:
        """Tell a run that its lease has ended from one that is gone though the lease is not over."""
        lease = self._job.limits.lease
        if error.code != "lease_expired" or lease is None:
            return error
        if self._dialogue.collector.result is not None:
            return self._silenced(lease)
        if self._dialogue.doubt is not None:
            return self._doubted(self._dialogue.doubt, lease)
        if not self._dialogue.started or self._dialogue.manner is Manner.COLLECT:
            # Whoever only looks is not who the target waits for.
            return TargetError(error.code, error.message, hint=_GONE)
        boot, before = self._boot_id(), self._boot_before
        if boot and before and boot != before:
            return TargetError("connection_lost", f"{self._job.target.id} was restarted in the middle of the run")
        # The loop's clock stands still while a laptop sleeps.
        if max(self._dialogue.gap, uptime() - self._heard_at) < lease * _LEASE_SHARE:
            message = "nothing of the run is left on the target, though its lease is not over: it was killed there"
            return TargetError("payload_killed", f"{message}, or ended from elsewhere")
        return self._silenced(lease)

    @staticmethod
    def _silenced(lease: float) -> TargetError:
        return TargetError(
            "lease_expired",
            f"nothing was heard from here for longer than the lease of {format_duration(lease)}, so the target "
            "has ended the run",
            limit=("lease", lease, "limits.lease"),
        )

    def _doubted(self, until: float, lease: float) -> TargetError:
        """Tell whether a lost connection has started anything, now that nothing of it is there."""
        if uptime() < until:
            self._dialogue.doubt = None
            return TargetError("connection_lost", "the connection was lost before anything was started")
        return TargetError(
            "lease_expired",
            f"the connection was lost while {self._job.target.id} was being started, and nothing was heard from here "
            f"for longer than the lease of {format_duration(lease)}: whether it has run is not known",
            limit=("lease", lease, "limits.lease"),
        )

    def _boot_id(self) -> str:
        return str(self._dialogue.collector.facts.get("boot_id") or "")

    async def _converse(self, pool: Pool, *, again: bool) -> Status:
        from remoterun.transports import ConnectionLost
        from remoterun.transports.openfiles import ran_out

        limits, host = self._job.limits, self._job.target.host
        self._boot_before = self._boot_id()
        self._died = ""
        self._control.enter(None)
        try:
            opening = pool.session(
                host,
                hops.enter_argv(self._job.target),
                connect_s=_least(limits.connect, self._left()),
                enter_s=_least(limits.enter, self._left()),
                on_phase=self._moved,
                again=again,
            )
            async with opening as session:
                request = Request(
                    # Where nothing is started, nobody needs a value.
                    self._vault.opened(self._job) if self._dialogue.manner.starts else self._job,
                    self._key,
                    self._packed,
                    use_cache=self._use_cache,
                    attach=self._dialogue.attach(),
                    alone=self._dialogue.manner is Manner.LEAVE,
                )
                talk = Conversation(request, session, self._tell, self._deadline(), self._dialogue)
                self._conversation = talk
                self._control.enter(talk)
                try:
                    await talk.run()
                finally:
                    self._clock.marks(talk.marks)
                    self._note_time()
                    self._died = talk.died
                    self._deaths += bool(talk.died)
        except ConnectionLost as error:
            raise TargetError("connection_lost", f"{host.key}: {error}") from error
        except (TargetError, OSError) as error:
            told = ran_out(error)
            if told is None:
                raise
            raise told from error
        finally:
            self._control.leave()
        return Status.RUNNING if talk.left and self._dialogue.collector.result is None else self._judge()

    def _note_time(self) -> None:
        """Note when the target was last heard, and when it last could hear of us, by a clock that goes on in sleep."""
        self._dialogue.tick()
        if self._dialogue.heard:
            self._heard_at = uptime() - (asyncio.get_running_loop().time() - self._dialogue.heard)

    def _judge(self) -> Status:
        return self._dialogue.collector.judge()

    async def _why_no_answer(self, pool: Pool, error: TargetError) -> TargetError:
        """Look once more, after a target gave no answer, whether its guest is frozen."""
        from remoterun.transports import SessionEnded

        argv = hops.state_argv(self._job.target)
        if error.code != "enter_timeout" or argv is None or self._control.cancelled:
            return error
        self._control.enter(None)
        try:
            async with (
                asyncio.timeout(_DIAGNOSE_S),
                pool.session(
                    self._job.target.host, argv, connect_s=_DIAGNOSE_S, enter_s=_DIAGNOSE_S, on_phase=_ignore
                ) as session,
            ):
                answer = await session.read()
        except (OSError, TargetError, SessionEnded):  # a timeout among them
            return error
        except asyncio.CancelledError:
            if not self._control.cancelled:
                raise
            return error
        finally:
            self._control.leave()
        if answer.strip() != b"FROZEN":
            return error
        return hops.frozen(self._job.target, error.message, error.limit)

    def _deadline(self) -> float | None:
        total = self._job.limits.total
        return None if total is None or self._started_at is None else self._started_at + total

    def _left(self) -> float | None:
        """Return how much is left of the limit `total`; None where there is none."""
        deadline = self._deadline()
        if deadline is None:
            return self._job.limits.total
        return max(0.0, deadline - asyncio.get_running_loop().time())

    def _by_total(self, error: TargetError) -> TargetError:
        """Name the limit `total` where it was the shorter one while the target was being reached."""
        total = self._job.limits.total
        if error.code not in {"connect_timeout", "enter_timeout"} or total is None or not error.limit:
            return error
        if error.limit[1] != total:
            return error
        return TargetError("total_timeout", error.message, limit=("total", total, "limits.total"))

    def _moved(self, phase: Phase, waiting: bool) -> None:  # noqa: FBT001  # the transports' callback
        self._phase = phase
        if not waiting and self._started_at is None:
            self._started_at = asyncio.get_running_loop().time()
        self._clock.now("queued" if waiting else phase.value)
        self._tell(TargetMoved(target=self._job.target.id, step=self._job.step, phase=phase, waiting=waiting))

    # --- the outcome ---

    def _finish(self, status: Status, error: ErrorInfo | None) -> Outcome:
        job, talk, got = self._job, self._conversation, self._dialogue.collector
        for event in got.rest():
            self._tell(event)
        blank = Outcome(
            target=job.target.id,
            name=job.target.name,
            step=job.step,
            status=status,
            phase=self._phase,
            error=error,
            payload=payload_of(job),
            timings_s=self._clock.timings(),
        )
        if talk is None:
            return blank
        phase = Phase.RUN if self._dialogue.started else talk.phase
        return replace(
            blank,
            phase=Phase.COLLECT if got.result is not None and phase is Phase.RUN else phase,
            facts=got.facts,
            connections=self._dialogue.connections,
            resumable=got.resumable,
            records=got.records,
            findings=tuple(got.findings),
            exit_status=got.exit_status,
            survivors=got.survivors,
            stdout=got.stdout,
            stderr=got.stderr,
            noise=talk.noise,
            log=tuple(got.log),
        )


def _may_pass(error: TargetError) -> bool:
    return error.code in _PASSING or CODES[error.code].status == "unreachable"


def _least(one: float | None, other: float | None) -> float | None:
    return min((value for value in (one, other) if value is not None), default=None)


def _ignore(phase: Phase, waiting: bool) -> None:  # noqa: FBT001  # the transports' callback
    """Take no note of the phases of a diagnosing look."""
