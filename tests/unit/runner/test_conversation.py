"""A conversation against a session in memory, under a clock that jumps: every limit and every end, without waiting."""

from __future__ import annotations

import asyncio
import hashlib
import json
import struct
from collections.abc import Awaitable, Callable

import pytest

from remoterun.errors import TargetError
from remoterun.events import RecordArrived, TargetMoved
from remoterun.model import Captured, Limits, Manner, OtherWork, Phase, Status
from remoterun.remote import wire
from remoterun.transports import ConnectionLost, Exit, SessionEnded
from tests.support.memory import BIG, Scene, make_scene, run, without_memory


async def _drip(every: float, times: int, drop: Callable[[], None]) -> None:
    for _ in range(times):
        await asyncio.sleep(every)
        drop()


def _now() -> float:
    return asyncio.get_running_loop().time()


def _attached(scene: Scene, limits: str, payload: str = "null") -> None:
    """Let a target tell of a run that somebody else has planned: of its limits and its payload, as JSON has them."""
    about = f'{{"payload": {payload}, "streams": true, "fail_on": "suspect", "limits": {limits}}}'
    scene.say(wire.HELLO)
    scene.say(wire.ATTACHED, {"first": 0, "count": 0, "about": about})


# --- the way it should go ---


def test_it_talks_to_the_end() -> None:
    async def work() -> None:
        scene = make_scene()
        assert scene.talk.phase is Phase.ENTER
        scene.start()
        scene.say(wire.RECORD, {"n": 1})
        scene.session.send(b"a banner in between\n")
        scene.say(wire.DONE)
        asyncio.get_running_loop().call_later(1, scene.result)
        await scene.talk.run()
        assert scene.talk.dialogue.collector.facts == {"hostname": "guest"}
        assert scene.talk.noise == Captured(head=b"a banner in between\n", total=20)
        assert scene.session.was_entered
        moves = [event.phase for event in scene.events if isinstance(event, TargetMoved)]
        assert moves == [Phase.UPLOAD, Phase.RUN]
        assert [event.record for event in scene.events if isinstance(event, RecordArrived)] == [{"n": 1}]
        assert list(scene.talk.marks) == ["enter", "upload", "run", "collect"]
        assert scene.session.written.startswith(b"python3\n")

    run(work())


def test_nothing_is_left_running_behind_it() -> None:
    async def work() -> None:
        scene = make_scene()
        scene.start()
        scene.result()
        await scene.talk.run()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(work())


def test_the_code_is_sent_along_when_small_and_once_when_asked_for() -> None:
    async def small() -> None:
        scene = make_scene()
        scene.start()
        asyncio.get_running_loop().call_later(1, scene.result)
        await scene.talk.run()
        assert scene.heard() == [wire.PACK, wire.ACK]

    async def big() -> None:
        scene = make_scene(data=BIG)
        scene.say(wire.HELLO)
        # Each copy takes memory until it is written: a target that asks again gets no more.
        for _ in range(100):
            scene.say(wire.NEED)
        scene.say(wire.STARTED)
        asyncio.get_running_loop().call_later(1, scene.result)
        await scene.talk.run()
        assert scene.heard() == [wire.PACK, wire.ACK]

    run(small())
    run(big())


def test_a_target_that_runs_is_pinged() -> None:
    async def work() -> None:
        scene = make_scene()
        scene.start()
        drip = asyncio.create_task(_drip(7, 3, lambda: scene.say(wire.HEARTBEAT)))
        asyncio.get_running_loop().call_later(22, scene.result)
        await scene.talk.run()
        await drip
        # An acknowledgement is a sign of life as well.
        assert scene.heard() == [wire.PACK, wire.ACK, *[wire.PING] * 3, wire.ACK]

    run(work())


def test_whoever_follows_the_run_of_another_machine_goes_by_its_limits() -> None:
    async def work() -> None:
        scene = make_scene(manner=Manner.ATTACH, work=OtherWork())
        _attached(scene, '{"run": null, "stall": null, "lease": 3.0}')
        hours = 8 * 3600
        drip = asyncio.create_task(_drip(20, hours // 20, lambda: scene.say(wire.HEARTBEAT)))
        asyncio.get_running_loop().call_later(hours, scene.result)
        begun = _now()
        await scene.talk.run()
        await drip
        assert _now() - begun == pytest.approx(hours)
        assert scene.talk.dialogue.collector.judge() is Status.OK
        # Several times within its lease.
        assert scene.heard().count(wire.PING) == pytest.approx(hours, rel=0.01)

    run(work())


@pytest.mark.parametrize("lease", ["0", "-1", "1e-9", "1e999", "NaN", "true", '"5"', "1" + "0" * 400])
def test_no_lease_that_a_target_makes_up_costs_more_than_its_own_outcome(lease: str) -> None:
    async def work() -> None:
        scene = make_scene(manner=Manner.ATTACH, work=OtherWork())
        _attached(scene, f'{{"run": null, "stall": null, "lease": {lease}}}')
        asyncio.get_running_loop().call_later(10, scene.result)
        error = await scene.refusal()
        assert error.code == "result_damaged"
        assert scene.heard() == []

    run(work())


def test_a_target_can_not_make_up_a_payload_that_no_document_may_name() -> None:
    async def work() -> None:
        scene = make_scene(manner=Manner.ATTACH, work=OtherWork())
        limits = '{"run": null, "stall": null, "lease": 5}'
        _attached(scene, limits, '{"name": "look", "version": "1.0.0", "sha256": "no hash"}')
        assert (await scene.refusal()).code == "result_damaged"

    run(work())


def test_many_tiny_messages_are_acknowledged_before_there_is_no_room_for_more() -> None:
    async def work() -> None:
        scene = make_scene()
        scene.start()
        for _ in range(6_000):
            scene.say(wire.RECORD)
        # Before the first ping, and before what is kept of them on the target takes its 4 MiB.
        asyncio.get_running_loop().call_later(1, scene.result)
        seen: list[int] = []
        asyncio.get_running_loop().call_later(0.5, lambda: seen.append(scene.acknowledged()))
        await scene.talk.run()
        assert seen[0] > 4_000

    run(work())


def test_a_target_that_is_held_is_not_read_and_not_given_up() -> None:
    async def work() -> None:
        scene = make_scene(Limits(idle=20.0, run=30.0, stall=30.0))
        scene.start()
        scene.say(wire.RECORD, {"n": 1})
        loop = asyncio.get_running_loop()
        loop.call_later(1, scene.talk.hold)
        loop.call_later(2, scene.say, wire.RECORD, {"n": 2})
        # One read was under way when it was held, and takes what comes next; nothing more is taken.
        loop.call_later(3, scene.say, wire.RECORD, {"n": 3})
        loop.call_later(500, lambda: seen.append(len(scene.talk.dialogue.collector.records)))
        loop.call_later(501, scene.talk.go_on)
        whole = _hash_of({"n": 1}, {"n": 2}, {"n": 3})
        loop.call_later(515, lambda: scene.result(records=3, hash=whole))
        seen: list[int] = []
        begun = _now()
        await scene.talk.run()
        assert seen == [2]
        assert _now() - begun == pytest.approx(515)
        assert scene.talk.dialogue.collector.judge() is Status.OK
        assert scene.heard().count(wire.PING) > 70

    run(work())


def _hash_of(*records: dict[str, int]) -> str:
    digest = hashlib.sha256()
    for record in records:
        body = json.dumps(record).encode()
        digest.update(struct.pack(">BI", wire.RECORD, len(body)) + body)
    return digest.hexdigest()


@pytest.mark.parametrize(
    ("limits", "beats", "code", "after"),
    [
        (Limits(idle=20.0), 1, "idle_timeout", 100 + 20),
        # The limit, the time it was held, the backstop, and the time to confirm.
        (Limits(run=10.0), 100, "run_timeout", 10 + 98 + 30 + 15),
        (Limits(run=None, stall=10.0), 100, "stall_timeout", 100 + 10 + 30 + 15),
    ],
)
def test_limits_go_on_for_a_target_that_was_held(limits: Limits, beats: int, code: str, after: float) -> None:
    async def work() -> None:
        scene = make_scene(limits)
        scene.start()
        loop = asyncio.get_running_loop()
        loop.call_later(1, scene.talk.hold)
        drip = asyncio.create_task(_drip(2, beats, lambda: scene.say(wire.HEARTBEAT)))
        loop.call_later(100, scene.talk.go_on)
        begun = _now()
        assert (await scene.refusal()).code == code
        drip.cancel()
        assert _now() - begun == pytest.approx(after)

    run(work())


def test_cancelling_what_has_ended_changes_nothing() -> None:
    async def work() -> None:
        scene = make_scene()
        scene.start()
        scene.result()
        await scene.talk.run()
        scene.talk.cancel(CANCELLED)
        assert scene.talk.dialogue.collector.judge() is Status.OK

    run(work())


@pytest.mark.parametrize("how", ["cancel", "total"])
def test_a_target_that_is_held_can_be_ended(how: str) -> None:
    async def work() -> None:
        scene = make_scene(Limits(total=50.0), total_at=_now() + 50 if how == "total" else None)
        scene.start()
        loop = asyncio.get_running_loop()
        loop.call_later(1, scene.talk.hold)
        loop.call_later(2, scene.say, wire.HEARTBEAT)
        if how == "cancel":
            loop.call_later(50, scene.talk.cancel, CANCELLED)
        loop.call_later(51, scene.talk.hold)  # of no effect any more
        loop.call_later(52, lambda: scene.result(cause="cancel"))
        begun = _now()
        error = await scene.refusal()
        assert error.code == ("cancelled" if how == "cancel" else "total_timeout")
        assert _now() - begun == pytest.approx(52)
        assert wire.CANCEL in scene.heard()

    run(work())


# --- limits ---


def _silent(scene: Scene) -> None:
    """Say nothing."""


def _hello(scene: Scene) -> None:
    scene.say(wire.HELLO)


@pytest.mark.parametrize(
    ("told", "limits", "code", "name", "seconds", "phase"),
    [
        (_silent, Limits(), "enter_timeout", "enter", 30.0, Phase.ENTER),
        (_silent, Limits(enter=0.5, upload=0.1), "enter_timeout", "enter", 0.5, Phase.ENTER),
        (_hello, Limits(enter=None), "upload_timeout", "upload", 60.0, Phase.UPLOAD),
        (_hello, Limits(upload=3.0), "upload_timeout", "upload", 3.0, Phase.UPLOAD),
        (Scene.start, Limits(), "idle_timeout", "idle", 45.0, Phase.RUN),
        (Scene.start, Limits(upload=None, idle=7.0, run=7.0), "idle_timeout", "idle", 7.0, Phase.RUN),
    ],
)
def test_each_silence_has_its_limit(
    told: Callable[[Scene], None], limits: Limits, code: str, name: str, seconds: float, phase: Phase
) -> None:
    async def work() -> None:
        scene = make_scene(limits)
        told(scene)
        begun = _now()
        error = await scene.refusal()
        assert error.code == code
        assert error.limit == (name, seconds, f"limits.{name}")
        assert _now() - begun == pytest.approx(seconds)
        assert scene.talk.phase is phase
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(work())


def test_a_far_end_that_takes_nothing_meets_the_limit_enter() -> None:
    async def work() -> None:
        scene = make_scene()
        scene.session.accepts.clear()
        assert (await scene.refusal()).code == "enter_timeout"
        assert scene.session.written == b""

    run(work())


def test_frames_put_the_limit_idle_off_and_noise_does_not() -> None:
    async def drips(drop: Callable[[Scene], None]) -> TargetError:
        scene = make_scene()
        scene.start()
        begun = _now()
        drip = asyncio.create_task(_drip(40, 5, lambda: drop(scene)))
        error = await scene.refusal()
        drip.cancel()
        error.add_note(str(_now() - begun))
        return error

    async def work() -> None:
        error = await drips(lambda scene: scene.say(wire.HEARTBEAT))
        assert (error.code, error.__notes__) == ("idle_timeout", ["245.0"])
        error = await drips(lambda scene: scene.session.send(b"a job in the background prints\n"))
        assert (error.code, error.__notes__) == ("idle_timeout", ["45.0"])

    run(work())


def test_a_target_that_forgets_its_limit_run_is_left() -> None:
    async def work() -> None:
        scene = make_scene(Limits(run=10.0))
        scene.start()
        begun = _now()
        drip = asyncio.create_task(_drip(5, 100, lambda: scene.say(wire.HEARTBEAT)))
        error = await scene.refusal()
        drip.cancel()
        assert (error.code, error.limit) == ("run_timeout", ("run", 10.0, "limits.run"))
        # Its limit, the backstop, and the time it is given to confirm the kill.
        assert _now() - begun == pytest.approx(10 + 30 + 15)

    run(work())


@pytest.mark.parametrize("told", [_silent, _hello, Scene.start])
def test_the_limit_total_ends_every_phase(told: Callable[[Scene], None]) -> None:
    async def work() -> None:
        scene = make_scene(Limits(total=20.0), total_at=_now() + 20)
        told(scene)
        error = await scene.refusal()
        assert (error.code, error.limit) == ("total_timeout", ("total", 20.0, "limits.total"))

    run(work())


def test_no_limit_is_no_limit() -> None:
    async def work() -> None:
        scene = make_scene(Limits(enter=None, upload=None, idle=None, run=None))
        later = asyncio.get_running_loop().call_later
        later(1e6, scene.say, wire.HELLO)
        later(2e6, scene.say, wire.STARTED)
        # Pings go on for as long as the target runs.
        later(2e6 + 500, scene.result)
        await scene.talk.run()
        assert scene.talk.dialogue.collector.judge() is Status.OK

    run(work())


# --- cancelling ---

CANCELLED = TargetError("cancelled", "the run was cancelled")


def _cancel_at(scene: Scene, seconds: float) -> None:
    asyncio.get_running_loop().call_later(seconds, scene.talk.cancel, CANCELLED)


def test_a_cancelled_target_is_asked_and_its_confirmation_awaited() -> None:
    async def work() -> None:
        scene = make_scene()
        scene.start()
        _cancel_at(scene, 1)
        asyncio.get_running_loop().call_later(9, lambda: scene.result(cause="cancel", exit_status=-15))
        begun = _now()
        assert await scene.refusal() is CANCELLED
        assert _now() - begun == pytest.approx(9)
        assert wire.CANCEL in scene.heard()
        assert (scene.talk.dialogue.collector.survivors, scene.talk.dialogue.collector.exit_status) == (0, -15)

    run(work())


@pytest.mark.parametrize(
    ("kind", "times", "after"),
    # What it had to say puts it off, from the last word on and at most in all; signs of life do not.
    [(wire.HEARTBEAT, 100, 1 + 15), (wire.LOG, 5, 5 * 7 + 15), (wire.LOG, 100, 1 + 60)],
)
def test_no_confirmation_is_waited_for_only_so_long(kind: int, times: int, after: float) -> None:
    async def work() -> None:
        scene = make_scene()
        scene.start()
        _cancel_at(scene, 1)
        # No second request puts it off either, and no noise.
        _cancel_at(scene, 14)
        asyncio.get_running_loop().call_later(13, scene.session.send, b"a job in the background prints\n")
        drip = asyncio.create_task(_drip(7, times, lambda: scene.say(kind)))
        begun = _now()
        assert await scene.refusal() is CANCELLED
        drip.cancel()
        assert _now() - begun == pytest.approx(after)
        assert scene.talk.dialogue.collector.survivors is None
        assert scene.heard().count(wire.CANCEL) == 1

    run(work())


def test_a_target_that_says_more_than_it_can_have_kept_is_not_heard_out() -> None:
    async def work() -> None:
        scene = make_scene()
        scene.start()
        _cancel_at(scene, 1)
        large = {"text": "x" * (5 << 20)}
        drip = asyncio.create_task(_drip(7, 100, lambda: scene.say(wire.LOG, large)))
        begun = _now()
        assert await scene.refusal() is CANCELLED
        drip.cancel()
        assert _now() - begun == pytest.approx(3 * 7 + 15)

    run(work())


def test_a_target_that_has_started_nothing_confirms_nothing() -> None:
    async def work() -> None:
        scene = make_scene()
        scene.say(wire.HELLO)
        _cancel_at(scene, 1)
        begun = _now()
        assert await scene.refusal() is CANCELLED
        assert _now() - begun == pytest.approx(16)

    run(work())


def test_what_a_slow_link_still_carries_comes_before_the_confirmation() -> None:
    async def work() -> None:
        scene = make_scene()
        scene.start()
        _cancel_at(scene, 1)
        loop = asyncio.get_running_loop()
        for n in range(5):
            loop.call_later(2 + 10 * n, scene.say, wire.RECORD, {"n": n})
        loop.call_later(55, lambda: scene.result(cause="cancel", records=5))
        assert await scene.refusal() is CANCELLED
        assert scene.talk.dialogue.collector.survivors == 0
        assert [record["n"] for record in scene.talk.dialogue.collector.records] == list(range(5))

    run(work())


async def _ends(scene: Scene) -> None:
    scene.session.send(b"")


async def _loses(scene: Scene) -> None:
    scene.session.send(ConnectionLost("keepalive unanswered"))


async def _damages(scene: Scene) -> None:
    scene._supervisor.seq += 1
    scene.say(wire.HEARTBEAT)


async def _problem(scene: Scene) -> None:
    scene.say(wire.PROBLEM, {"code": "payload_killed", "message": "m"})


@pytest.mark.parametrize("end", [_ends, _loses, _damages, _problem])
def test_a_cancelled_run_stays_cancelled_however_it_ends(end: Callable[[Scene], Awaitable[None]]) -> None:
    async def work() -> None:
        scene = make_scene()
        scene.start()
        _cancel_at(scene, 1)
        asyncio.get_running_loop().call_later(2, lambda: asyncio.ensure_future(end(scene)))
        assert await scene.refusal() is CANCELLED

    run(work())


def test_what_is_refused_is_acknowledged_all_the_same() -> None:
    """A target that kept it for us would have no room for what comes behind: its result, in the end."""

    async def work() -> None:
        scene = make_scene()
        scene.start()
        for _ in range(5):
            scene.say(wire.RECORD, {"x": "y" * (16 << 20)})
        asyncio.get_running_loop().call_later(3, lambda: scene.result(cause="cancel", survivors=0))
        assert (await scene.refusal()).code == "output_limit"
        assert scene.talk.dialogue.collector.survivors == 0
        assert scene.heard().count(wire.ACK) >= 5 + 1
        assert scene.acknowledged() == 7

    run(work())


@pytest.mark.parametrize(("manner", "ended"), [(Manner.FOLLOW, True), (Manner.ATTACH, True), (Manner.COLLECT, False)])
def test_a_lack_of_room_here_ends_no_payload_that_is_only_looked_at(manner: Manner, ended: bool) -> None:
    async def work() -> None:
        scene = make_scene(manner=manner, keep=without_memory())
        scene.say(wire.HELLO)
        scene.say(wire.ATTACHED, {"count": 9, "about": "{}"})
        for _ in range(4):
            scene.say(wire.RECORD, {"x": "y" * 30_000})
        asyncio.get_running_loop().call_later(3, lambda: scene.result(cause="cancel", survivors=0))
        error = await scene.refusal()
        assert "no room on this machine" in error.message
        assert (wire.CANCEL in scene.heard()) is ended
        assert len(scene.talk.dialogue.collector.records) == 2

    run(work())


def test_a_payload_that_says_too_much_is_ended_and_its_end_awaited() -> None:
    async def work() -> None:
        scene = make_scene()
        scene.start()
        record = {"x": "y" * (16 << 20)}
        for _ in range(6):
            scene.say(wire.RECORD, record)
        asyncio.get_running_loop().call_later(3, lambda: scene.result(cause="cancel", survivors=2))
        begun = _now()
        assert (await scene.refusal()).code == "output_limit"
        assert _now() - begun == pytest.approx(3)
        assert wire.CANCEL in scene.heard()
        assert scene.talk.dialogue.collector.survivors == 2
        assert len(scene.talk.dialogue.collector.records) == 3

    run(work())


# --- ends ---


def test_an_end_before_any_answer_is_diagnosed() -> None:
    async def work() -> None:
        scene = make_scene()
        scene.session.stderr = Captured(head=b"CT 200 not running\ncontainer '200' not running!\n", total=48)
        scene.session.end = Exit(status=255)
        scene.session.send(b"welcome\n")
        scene.session.send(b"")
        assert (await scene.refusal()).code == "guest_stopped"
        assert scene.talk.noise.data == b"welcome\n"

    run(work())


@pytest.mark.parametrize(
    ("told", "sent", "end", "words"),
    [
        (_silent, b"", Exit(lost=True), "while the target was being entered"),
        (_silent, ConnectionLost("reset"), Exit(lost=True), "reset"),
        (_hello, b"", Exit(status=0), "ended with status 0 and said nothing while the payload's code was being sent"),
        (_hello, ConnectionLost("reset"), Exit(lost=True), "reset while the payload's code was being sent"),
        (Scene.start, b"", Exit(status=0), "the session ended before the result was complete"),
        (Scene.start, b"", Exit(lost=True), "the connection ended before the result was complete"),
        (Scene.start, ConnectionLost("reset"), Exit(lost=True), "reset before the result was complete"),
    ],
)
def test_an_end_before_the_result_is_a_lost_connection(
    told: Callable[[Scene], None], sent: bytes | Exception, end: Exit, words: str
) -> None:
    async def work() -> None:
        scene = make_scene()
        told(scene)
        scene.session.end = end
        scene.session.send(sent)
        error = await scene.refusal()
        assert error.code == "connection_lost"
        assert words in error.message

    run(work())


def test_exit_status_zero_without_a_result_is_no_success() -> None:
    async def work() -> None:
        scene = make_scene()
        scene.start()
        scene.say(wire.RECORD, {"n": 1})
        scene.session.send(b"")
        assert (await scene.refusal()).code == "connection_lost"
        assert scene.talk.dialogue.collector.records == ({"n": 1},)
        assert scene.session.end == Exit(status=0)

    run(work())


def test_writing_to_a_far_end_that_is_gone_is_left_to_the_reader() -> None:
    async def work() -> None:
        scene = make_scene()
        scene.session.broken = SessionEnded("the program takes no more input")
        scene.session.stderr = Captured(head=b"sh: 1: pct: not found\n", total=22)
        scene.session.end = Exit(status=127)
        asyncio.get_running_loop().call_later(1, scene.session.send, b"")
        assert (await scene.refusal()).code == "pct_missing"

    run(work())


def test_a_gap_in_the_frames_is_damage() -> None:
    async def work() -> None:
        scene = make_scene()
        scene.start()
        await _damages(scene)
        error = await scene.refusal()
        assert error.code == "result_damaged"
        assert "came where" in error.message

    run(work())


def test_a_frame_on_a_stream_of_nobody_is_damage() -> None:
    async def work() -> None:
        scene = make_scene()
        scene.start()
        # Were it taken, each of as many streams could hold half a message.
        scene.session.send(wire.Encoder(scene.request.nonce, 7).frames(wire.RECORD, bytes(9000))[0])
        assert (await scene.refusal()).code == "result_damaged"

    run(work())


def test_a_message_larger_than_any_honest_one_is_damage() -> None:
    async def work() -> None:
        scene = make_scene()
        scene.start()
        scene.say(wire.RECORD, {"x": "y" * (18 << 20)})
        assert (await scene.refusal()).code == "result_damaged"

    run(work())


@pytest.mark.parametrize(
    ("code", "phase"), [("start_failed", Phase.RUN), ("no_space", Phase.UPLOAD), ("upload_damaged", Phase.UPLOAD)]
)
def test_a_problem_on_the_target_ends_it_in_its_phase(code: str, phase: Phase) -> None:
    async def work() -> None:
        scene = make_scene()
        scene.say(wire.HELLO)
        scene.say(wire.PROBLEM, {"code": code, "message": "m"})
        assert (await scene.refusal()).code == code
        assert scene.talk.phase is phase

    run(work())
