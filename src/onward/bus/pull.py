"""Pull requests to a JetStream consumer, with every status message handled.

``nats-py``'s own ``fetch`` reports a deleted consumer as "no messages" and can stall on a request left over
from before a reconnect. Here a request ends by its own status message, by its count, or by ``PullBroken``
(the inbox is then useless: open a new Puller).
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import api

from onward.bus.cancellation import cancellations, honour_cancellation

if TYPE_CHECKING:
    from onward.bus.connection import Bus

_SLICE_SECONDS = 0.5
_GRACE_SECONDS = 2.0


class PullBroken(Exception):
    """The request can deliver nothing more. ``gone``: the server reports that the consumer does not exist."""

    def __init__(self, why: str, *, gone: bool, received: list[Msg]) -> None:
        super().__init__(why)
        self.gone = gone
        self.received = received
        """Messages that arrived before the break; they must still be answered."""


class Puller:
    """One inbox for one consumer; one request at a time."""

    def __init__(self, bus: Bus, stream: str, consumer: str, inbox: str, subscription: Subscription) -> None:
        self._bus = bus
        self._client = bus.nc
        self._stream = stream
        self._consumer = consumer
        self._inbox = inbox
        self._subscription = subscription
        self._generation = bus.reconnects

    @classmethod
    async def open(cls, bus: Bus, stream: str, consumer: str) -> Puller:
        inbox = bus.nc.new_inbox()
        subscription = await bus.nc.subscribe(inbox, pending_msgs_limit=-1, pending_bytes_limit=-1)
        return cls(bus, stream, consumer, inbox, subscription)

    @classmethod
    async def after(cls, bus: Bus, stream: str, subject: str, sequence: int, *, prefix: str) -> Puller:
        """Opens a window on ``stream``: an ephemeral consumer without acks, for messages after ``sequence``.
        Its name begins with ``prefix``."""
        config = api.ConsumerConfig(
            name=f"{prefix}-{uuid.uuid4().hex}",
            deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=max(1, sequence + 1),
            ack_policy=api.AckPolicy.NONE,
            filter_subject=subject,
            inactive_threshold=60.0,
            mem_storage=True,
            num_replicas=1,
        )
        info = await bus.js.add_consumer(stream, config)
        return await cls.open(bus, stream, info.name)

    async def pull(self, count: int, *, linger: float = 0.0) -> list[Msg]:
        """Returns up to ``count`` messages that are available now.

        If there is none it waits up to ``linger`` seconds for a first one, then takes whatever else has
        arrived. Raises PullBroken if the connection or the consumer is gone. A cancellation that the client
        swallows ends the wait within half a second.
        """
        asked = cancellations()
        received = await self._request({"batch": count, "no_wait": True}, count, _GRACE_SECONDS, asked)
        if received or linger <= 0:
            return received
        wait = {"batch": 1, "expires": int(linger * 1e9)}
        first = await self._request(wait, 1, linger + _GRACE_SECONDS, asked)
        if not first or count == 1:
            return first
        try:
            return first + await self._request(
                {"batch": count - 1, "no_wait": True}, count - 1, _GRACE_SECONDS, asked
            )
        except PullBroken as error:
            error.received = first + error.received
            raise

    async def _request(self, body: dict[str, Any], count: int, patience: float, asked: int) -> list[Msg]:
        """``asked``: cancellations before the pull; a later one that was swallowed is raised."""
        if self._bus.nc is not self._client or self._bus.reconnects != self._generation:
            raise PullBroken("the connection was renewed", gone=False, received=[])
        received: list[Msg] = []
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
        try:
            await self._client.publish(subject, json.dumps(body).encode(), reply=self._inbox)
        except nats.errors.Error as error:
            raise PullBroken(type(error).__name__, gone=False, received=received) from None
        while len(received) < count:
            try:
                message = await self._subscription.next_msg(timeout=min(_SLICE_SECONDS, max(patience, 0.01)))
            except nats.errors.TimeoutError:
                honour_cancellation(asked)
                patience -= _SLICE_SECONDS
                if self._client.is_closed or self._bus.reconnects != self._generation:
                    raise PullBroken("the connection was renewed", gone=False, received=received) from None
                if patience <= 0:
                    raise PullBroken("no answer to a pull request", gone=False, received=received) from None
                continue
            except nats.errors.Error as error:
                raise PullBroken(type(error).__name__, gone=False, received=received) from None
            if message.reply:
                received.append(message)
            elif self._ends(message, received):
                break
        return received

    @staticmethod
    def _ends(message: Msg, received: list[Msg]) -> bool:
        headers = message.headers or {}
        status, text = headers.get("Status"), headers.get("Description", "")
        if status == "100":
            return False
        if status in ("404", "408"):
            return True
        if status == "503":
            raise PullBroken("no such consumer, or JetStream is starting", gone=True, received=received)
        if status == "409" and "Deleted" in text:
            raise PullBroken("the consumer was deleted", gone=True, received=received)
        if status == "409":
            return True
        raise PullBroken(f"status {status} {text}", gone=False, received=received)

    async def close(self, *, delete: bool = False) -> None:
        """Closes the inbox; ``delete`` removes the consumer too (for temporary ones)."""
        try:
            await self._subscription.unsubscribe()
            if delete and self._client.is_connected:
                await self._client.publish(f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._consumer}", b"")
        except nats.errors.Error:
            pass  # the connection is gone, and the inbox with it
