"""Ends the open tasks of a session when its client asks for it, here and on the other gateways.

Invariants: a close waits for a running call of its session, and is answered only after what it ended is
durable. An error on the way never makes a repeated close forget what the first one ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from onward.capture.opt_out import OptOut
from onward.clock import Clock
from onward.contracts.buckets import AnsweredClose, AskedClose, ClosedTask
from onward.http.app import HttpError
from onward.serving.recording.closing import Closing, Closings, GivenFeedback
from onward.serving.recording.conversations import Conversation, Conversations
from onward.serving.recording.trajectory import Closed
from onward.serving.recording.write_behind import WriteBehind

CLOSE_PATIENCE_SECONDS = 5.0
CLOSE_WAITS = "close of a session"  # name of the tasks in which a close waits
AskOthers = Callable[[str, str | None, dict[str, Any] | None], Awaitable[list[ClosedTask]]]
"""Name, owner and outcome of a close → what other gateways closed and recorded."""
EndConversation = Callable[[Conversation, Closed], dict[str, Any]]
"""Ends a conversation, queues its document for the outbox and returns it."""


async def _no_others(name: str, owner: str | None, outcome: dict[str, Any] | None) -> list[ClosedTask]:
    return []


class SessionCloser:
    """Closes sessions among ``conversations``."""

    def __init__(
        self,
        conversations: Conversations,
        end: EndConversation,
        writer: WriteBehind,
        *,
        opt_out: OptOut,
        clock: Clock,
    ) -> None:
        self._open, self._end, self._writer = conversations, end, writer
        self._opt_out, self._clock = opt_out, clock
        self._closings = Closings()
        self._freed = asyncio.Event()
        self.ask_others: AskOthers = _no_others
        """Closes the tasks of a session that other gateways hold."""

    def conversation_freed(self) -> None:
        """Lets waiting closes look again: the call of a conversation has ended."""
        self._freed.set()

    def conversation_continued(self, conversation: Conversation) -> None:
        """Forgets the closes of a session that has a new task."""
        self._closings.forget(conversation.session_id, conversation.owner)

    async def close(
        self,
        name: str,
        owner: str | None,
        outcome: dict[str, Any] | None,
        feedback: GivenFeedback | None = None,
    ) -> list[dict[str, Any]]:
        """Ends the open tasks of a session, or the one task with this trajectory id, and records them; other
        gateways do the same with theirs.

        A repeated close ends nothing and is answered as before; new feedback in it is accepted too. ``owner``
        None may close tasks of any owner. Returns the recorded tasks: trajectory id and number of turns.

        Raises HttpError: 404 if nothing is open, 409 for a running call or several possible tasks, 503 if the
        tasks are not stored yet.
        """
        closing = await self._close_here(name, owner, outcome)
        if closing.tasks:  # an error from here on must not make a repeated close forget them
            self._closings.put(name, owner, closing)
        closing.add_tasks(await self.ask_others(name, owner, outcome))
        if not closing.tasks:
            raise HttpError(
                404,
                "No task of this session is open: it is recorded already, or was never recorded here.",
                type="not_found_error",
            )
        self._closings.put(name, owner, closing)
        for message in closing.add_feedback(feedback, self._clock.now()):
            self._writer.put_feedback(message)
        await self._until_recorded(closing)
        return closing.tasks

    async def close_for_other(self, asked: AskedClose) -> AnsweredClose:
        """Ends this gateway's tasks of a session whose close reached another one. Returns after they are
        recorded; a client's error is returned, not raised."""
        try:
            closing = await self._close_here(asked.name, asked.owner, asked.outcome)
            if closing.tasks:  # an error from here on must not make a repeated close forget them
                self._closings.put(asked.name, asked.owner, closing)
            await self._until_recorded(closing)
        except HttpError as error:
            return AnsweredClose(status=error.status, error=error.message)
        return AnsweredClose(closed=closing.closed_tasks())

    async def _close_here(self, name: str, owner: str | None, outcome: dict[str, Any] | None) -> Closing:
        """Ends the open tasks of this gateway; without any, returns the remembered close, or an empty one."""
        is_open = self._open.get(name) is not None or self._open.of_session(name, owner)
        closing = None if is_open else self._closings.find(name, owner, outcome)
        if closing is None:
            closing = Closing(outcome)
            for conversation in await self._at_rest(name, owner):
                self._close_one(
                    conversation, closing, is_meant=conversation.is_used or name == conversation.id
                )
        return closing

    async def _until_recorded(self, closing: Closing) -> None:
        """Writes what was closed. Raises HttpError 503 if it is not durable then."""
        await self._writer.write()
        if not self._writer.are_recorded(closing.ids):
            raise HttpError(
                503,
                "The outbox takes nothing at the moment: what was closed is kept and tried again.",
                type="service_unavailable",
            )

    def _close_one(self, conversation: Conversation, closing: Closing, *, is_meant: bool) -> None:
        """Ends a conversation. ``is_meant``: False for a choice that was not used, which gets no outcome."""
        conversation.outcome = closing.outcome if is_meant else None
        document = self._end(conversation, "close")
        if not is_meant or self._opt_out.matches_document(document):
            closing.silent.add(conversation.id)
        facts = {"trajectory_id": conversation.id, "session_id": conversation.session_id}
        closing.tasks.append({**facts, "turns": len(document["turns"])})

    async def _at_rest(self, name: str, owner: str | None) -> list[Conversation]:
        """Returns the conversations of this name once none of them has a running call. Raises HttpError."""
        until = self._clock.monotonic() + CLOSE_PATIENCE_SECONDS
        while any(conversation.busy for conversation in self._named(name, owner)):
            if self._clock.monotonic() >= until:
                raise HttpError(
                    409,
                    "A call of this session is under way: close it after its answer.",
                    type="conflict_error",
                )
            self._freed.clear()
            timer = asyncio.create_task(self._clock.sleep(0.1), name=f"{CLOSE_WAITS}: timer")
            waiter = asyncio.create_task(self._freed.wait(), name=f"{CLOSE_WAITS}: freed")
            try:
                await asyncio.wait({timer, waiter}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                timer.cancel()
                waiter.cancel()
        return self._named(name, owner)

    def _named(self, name: str, owner: str | None) -> list[Conversation]:
        one = self._open.get(name)
        if one is not None and one.recorded and owner in (None, one.owner):
            return [one]
        found = self._open.of_session(name, owner)
        if len(found) > 1 and not found[0].is_named:
            raise HttpError(
                409,
                f"{len(found)} tasks that named no session are open under this id: give the trajectory id "
                "from 'onward' in the answer.",
                type="conflict_error",
            )
        return found
