"""The operator's part of the releaser: commands, answers to a release that waits, the routes of a pin."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from onward.context import Context
from onward.contracts.buckets import SHARE
from onward.release import approval, moves, overriding
from onward.release.commands import ANSWERS, OperatorRequests
from onward.release.effects import Effects
from onward.release.in_hand import InHand
from onward.release.plan import Choice, State
from onward.release.record import Model, ReleaseRecord
from onward.release.routes import shares, single_arm
from onward.telemetry import audit, logs

log = logs.get("releaser")

OPERATOR = "an operator asked for it"
PERSIST_SECONDS = 5.0
"""Maximum seconds of a step that a crash may lose. The step then lasts longer, nothing else changes."""


class Operating:
    """Carries out what people ask for, on the release in hand."""

    def __init__(
        self,
        ctx: Context,
        hand: InHand,
        effects: Effects,
        requests: OperatorRequests,
        *,
        current: Callable[[], Awaitable[Model]],
        abort: Callable[[str], Awaitable[None]],
        choose: Callable[[ReleaseRecord], Choice],
        start: Callable[[ReleaseRecord, Choice], Awaitable[None]],
    ) -> None:
        """``current`` returns the model that serves by the releases, ``abort`` ends the release for a reason,
        ``choose`` returns the strategy of a validated one, and ``start`` gives it its first traffic."""
        self._ctx = ctx
        self._hand, self._effects = hand, effects
        self._requests, self._current = requests, current
        self._abort, self._choose, self._start = abort, choose, start

    async def idle_routes(self, pinned: Model | None, is_pinned: bool) -> None:
        """Sets the routes while no release is under way: the pinned model serves, else the current one.
        Without a desired state nothing is written."""
        stored = await self._effects.desired.read()
        if stored.revision == 0 or (is_pinned and pinned is None):
            return
        now, wanted = stored.document, single_arm(pinned or await self._current(), None)
        if not stored.readable or now is None or shares(now.arms) != shares(wanted.arms):
            await self._effects.set_routes(wanted)

    async def obey(self) -> None:
        """Applies one command of the operator. A command that does not fit the state changes nothing."""
        hand = self._hand
        asked = await self._requests.next_command(hand.open)
        if asked is None:
            return
        command, revision, order = asked
        hand.record = record = hand.open.model_copy(update={"command_revision": revision})
        if not command:
            log.warning("command ignored: not for this release", release_id=record.release_id)
            await hand.write(record)
        elif command == "abort" and not record.closed:
            await self._abort(OPERATOR)
        elif command in ANSWERS and record.state is State.WAITING:
            await self.answer(command, str(order.by), str(order.reason))
        elif command == "hold" and record.serving and record.state is not State.HELD:
            await hand.hold("operator")
        elif command == "resume" and record.state is State.HELD:
            if record.held_why in ("hold", "ask", "deadline"):
                await hand.go_on(OPERATOR)
            else:
                await hand.resume(OPERATOR)
        elif command == "promote" and record.serving and moves.phase(record) is State.RAMPING:
            await hand.enter(record.schedule.bake, OPERATOR)
        elif command == "promote" and record.state is State.HELD:
            await hand.go_on(OPERATOR)
        elif command == SHARE and overriding.is_open_to(record):
            await hand.move(overriding.set_share(record, order, hand.inputs))
        else:
            log.info("command has nothing to do", command=command, state=str(record.state))
            await hand.write(record)

    async def wait(self, record: ReleaseRecord) -> None:
        """Counts the time for an answer; when it is over, the policy answers."""
        hand, settings = self._hand, self._ctx.settings.release
        now = self._ctx.clock.monotonic()
        total = record.step_total + now - hand.ticked_at
        hand.record = record = record.model_copy(update={"step_total": total})
        if approval.timed_out(record, settings):
            words = f"no answer in {settings.approval_hours:g} hours (release.on_approval_timeout)"
            answer = "refuse" if record.needs_approval else settings.on_approval_timeout
            await self.answer(answer, approval.TIME_LIMIT, words)
        elif now - hand.written_at >= PERSIST_SECONDS:
            await hand.write(record)

    async def answer(self, answer: str, by: str, reason: str) -> None:
        """Starts or closes the release that waits. The audit stream gets the answer first."""
        hand = self._hand
        record = hand.open
        await audit.record(
            self._ctx.bus, self._ctx.clock, f"release_{answer}", release_id=record.release_id,
            model_id=record.candidate.model_id, answered_by=by, reason=reason,
        )  # fmt: skip
        if answer == "approve":
            noted = approval.approved(record, by, reason, hand.inputs)
            choice = self._choose(noted)
            if words := approval.why_not_started(choice, self._ctx.settings.release):
                await hand.move(moves.reject(noted, "settings_changed", words, hand.inputs))
            else:
                await self._start(noted, choice)
        else:
            await hand.move(approval.refused(record, by, reason, hand.inputs))
