"""One connection to NATS that retries forever, and a publish that returns only after the server's PubAck.

Invariants: ``nats-py`` can close a client permanently (a protocol error, a refused login after a reconnect),
so ``nc`` and ``js`` are looked up at each use and rebuilt when needed. A publish whose answer is lost is
repeated with the *same* message id; the server's dedupe window makes that safe.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import PubAck

from onward.bus.cancellation import cancellations, honour_cancellation
from onward.bus.documents import UnreadableValues
from onward.clock import Clock, SystemClock
from onward.errors import BusError, BusRefusedError, ConflictError, NotFoundError, NotServedError, hide_login
from onward.retry import Backoff
from onward.telemetry import logs

if TYPE_CHECKING:
    from onward.bus.buckets import Bucket, Entry
    from onward.bus.streams import StreamSpec

log = logs.get("bus")

ATTEMPT_SECONDS = 5.0
"""Seconds that one publish waits for its PubAck before the outcome counts as unknown."""

WRONG_SEQUENCE = (10071, 10164)
TOO_LARGE_FOR_STREAM = 10054
_DENIED = re.compile(r'permissions violation for publish to "([^"]+)"', re.IGNORECASE)


class PublishRejectedError(BusRefusedError):
    """The server will never accept this message as it is; sending it again cannot help."""


class Bus:
    """A JetStream connection, made with ``await Bus.connect(url)`` and shared between roles."""

    def __init__(self, options: dict[str, Any], clock: Clock) -> None:
        self._options = options
        self.clock = clock
        self._client: Client | None = None
        self._js: JetStreamContext | None = None
        self._reviving = asyncio.Lock()
        self._closing = False
        self._denied: set[str] = set()
        """Subjects, in lower case as the client reports them, that the login may not publish on."""
        self._attempts: set[asyncio.Timeout | None] = set()
        self.unreadable = UnreadableValues(self)
        self.consuming: set[tuple[str, str]] = set()
        """Stream and durable of each consumer that this process reads now."""
        self._reported: set[tuple[str, str]] = set()
        self.read_before: dict[tuple[str, str, bool], tuple[Any, list[Entry]]] = {}
        """Results of ``Bucket.keys`` and ``entries``, with the version of the bucket that they show."""
        self._served: dict[str, tuple[Callable[[bytes], Awaitable[bytes]], str]] = {}
        """Subject → how its requests are answered, and the queue that shares them."""
        self._answering: dict[str, Any] = {}
        """Subject → its subscription."""

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        token: str | None = None,
        user: str | None = None,
        password: str | None = None,
        name: str = "onward",
        clock: Clock | None = None,
        connect_timeout: float = 10.0,
    ) -> Bus:
        """Connects, waiting up to ``connect_timeout`` seconds for the server. Raises BusError if there is no
        answer or the login is refused. Once connected, the client reconnects forever.

        The login is a token, a user with a password, or part of the URL. Each user has an inbox prefix of its
        own (``onward.bus.logins``).
        """
        login = {"token": token, "user": user, "password": password}
        given = {key: value for key, value in login.items() if value is not None}
        inbox = _inbox_prefix(user or _user_of(url))
        bus = cls({"servers": [url], "name": name, "inbox_prefix": inbox, **given}, clock or SystemClock())
        await bus._open(connect_timeout)
        return bus

    @property
    def url(self) -> str:
        """Address that ``connect`` received."""
        return str(self._options["servers"][0])

    @property
    def nc(self) -> Client:
        if self._client is None:
            raise BusError("The bus is not connected: make it with Bus.connect.")
        return self._client

    @property
    def js(self) -> JetStreamContext:
        if self._js is None:
            raise BusError("The bus is not connected: make it with Bus.connect.")
        return self._js

    def is_news(self, stream: str, loss: str) -> bool:
        """Returns whether this is the first call with this loss of a stream. Each reader of it and the watch
        meet the loss; one of them reports it."""
        known = (stream, loss) in self._reported
        self._reported.add((stream, loss))
        return not known

    @property
    def is_connected(self) -> bool:
        return self._client is not None and self._client.is_connected

    @property
    def max_payload(self) -> int:
        """Bytes of the largest message that the server accepts, headers included."""
        return self.nc.max_payload

    @property
    def reconnects(self) -> int:
        """Number of reconnects; pull requests made before the last one are void."""
        return int(self.nc.stats["reconnects"])

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        msg_id: str,
        headers: Mapping[str, str] | None = None,
        deadline: float | None = None,
    ) -> PubAck:
        """Stores one message in its stream; returns the server's PubAck (a duplicate counts).

        Retries with jitter until acknowledged, for ``deadline`` seconds at most (None: forever). Raises
        PublishRejectedError if retrying cannot help, ConflictError if an expected sequence in ``headers`` is
        not the last one, BusError at the deadline.
        """
        full = {**(headers or {}), "Nats-Msg-Id": msg_id}
        until = None if deadline is None else self.clock.monotonic() + deadline
        backoff, away = Backoff(0.05, 2.0, jitter=0.5), Backoff(0.05, 0.25, jitter=0.5)
        tries, why, asked = 0, "no connection", cancellations()
        while True:
            left = None if until is None else until - self.clock.monotonic()
            if left is not None and left <= 0:
                raise BusError(
                    f"NATS did not acknowledge a message on {subject} within {deadline:g} s ({why}): "
                    f"it may or may not be stored; publish it again with the same id."
                )
            if await self._usable():
                attempt: asyncio.Timeout | None = None
                timeout = ATTEMPT_SECONDS if left is None else min(ATTEMPT_SECONDS, left)
                try:
                    self._denied.discard(subject.lower())
                    async with asyncio.timeout(timeout) as attempt:
                        self._attempts.add(attempt)
                        ack = await self.js.publish(subject, data, timeout=timeout + 1, headers=dict(full))
                    honour_cancellation(asked)
                    return ack
                except TimeoutError as error:  # no answer, or the connection broke: the outcome is unknown
                    if tries == 0 or timeout == ATTEMPT_SECONDS:  # one that the deadline cut says nothing new
                        why = type(error).__name__
                except nats.errors.Error as error:
                    why = self._why_again(error, subject, len(data))
                finally:
                    self._attempts.discard(attempt)
                if subject.lower() in self._denied:
                    raise BusRefusedError(
                        f"This login of NATS may not publish on {subject}: give it the right, or use another "
                        "login (docs/logins.md)."
                    )
            tries += 1
            if tries in (3, 30) or tries % 300 == 0:
                log.warning("publish is being repeated", subject=subject, tries=tries, reason=why)
            nap = (backoff if self.is_connected else away).next()
            await self.clock.sleep(nap if left is None else min(nap, left))

    @staticmethod
    def _why_again(error: nats.errors.Error, subject: str, size: int) -> str:
        """Returns the reason to retry a publish; raises if retrying cannot help."""
        if isinstance(error, nats.errors.MaxPayloadError):
            raise PublishRejectedError(
                f"A message of {size} bytes on {subject} is larger than max_payload: make it smaller."
            ) from None
        if isinstance(error, nats.errors.BadSubjectError):
            raise PublishRejectedError(
                f"{subject!r} is not a subject: expected words joined by dots."
            ) from None
        if isinstance(error, nats.errors.BadHeaderError):
            raise PublishRejectedError(
                f"A message on {subject} has a header with a wrong name: use letters, digits and '-'."
            ) from None
        if isinstance(error, nats.js.errors.KeyWrongLastSequenceError):
            raise ConflictError(f"{subject} changed since it was read: read it again.") from None
        if isinstance(error, nats.js.errors.APIError):
            if error.err_code in WRONG_SEQUENCE:
                raise ConflictError(f"{subject} changed since it was read: read it again.") from None
            if error.err_code == TOO_LARGE_FOR_STREAM:
                raise PublishRejectedError(
                    f"A message of {size} bytes on {subject} is larger than its stream takes: shorten it."
                ) from None
            if error.code is not None and 400 <= error.code < 500 and error.code not in (408, 429):
                raise PublishRejectedError(
                    f"NATS refused a message on {subject}: {error.description} (code {error.err_code})."
                ) from None
            return f"{error.description} (code {error.err_code})"
        return type(error).__name__

    async def notify(self, subject: str, data: bytes) -> None:
        """Sends a core message: no storage, no answer, lost if no one listens or the server is unreachable. A
        lost notice never breaks the sender."""
        if not self.is_connected:
            return
        try:
            await self.nc.publish(subject, data)
        except nats.errors.Error as error:
            log.debug("notice not sent", subject=subject, reason=type(error).__name__)

    async def request(self, subject: str, data: bytes, *, timeout: float = 2.0) -> bytes:
        """Sends a request on a core subject and returns the first real answer. ``timeout`` is in seconds.

        A stream that captures the subject (``agent.rl.training.>``, as published scripts create it) answers
        first, with a PubAck; such answers are skipped. Raises NotServedError if no role serves the subject,
        BusError if there is no answer.
        """
        try:
            inbox = self.nc.new_inbox()
            subscription = await self.nc.subscribe(inbox)
            try:
                await self.nc.publish(subject, data, reply=inbox)
                async with asyncio.timeout(timeout):
                    while True:
                        answer = await subscription.next_msg(timeout=timeout)
                        if answer.headers and answer.headers.get("Status") == "503":
                            raise NotServedError(
                                f"Nobody answers on {subject}: start the role that serves it."
                            )
                        if not is_pub_ack(answer.data):
                            return answer.data
            finally:
                await subscription.unsubscribe()
        except (TimeoutError, nats.errors.TimeoutError):
            raise BusError(f"No answer on {subject} within {timeout:g} s: is the role running?") from None
        except nats.errors.Error as error:
            raise BusError(f"NATS is away ({type(error).__name__}): try again later.") from None

    async def serve(
        self, subject: str, answer: Callable[[bytes], Awaitable[bytes]], *, queue: str = ""
    ) -> None:
        """Answers core requests on ``subject`` until the bus is closed. Processes with one ``queue`` share
        the requests, so that each gets one answer. A second call takes the place of the first."""
        self._served[subject] = answer, queue
        if (before := self._answering.pop(subject, None)) is not None:
            await before.unsubscribe()
        await self._serve(subject)

    async def _serve(self, subject: str) -> None:
        answer, queue = self._served[subject]

        async def on_message(message: Any) -> None:
            # A reply elsewhere would let a client write with this login's rights, for example to a bucket.
            if message.reply.startswith("_INBOX"):
                await self.nc.publish(message.reply, await answer(message.data))

        self._answering[subject] = await self.nc.subscribe(subject, queue=queue, cb=on_message)

    def bucket(self, name: str) -> Bucket:
        """Returns the declared key-value bucket ``name``. Raises NotFoundError for an undeclared one."""
        from onward.bus.buckets import BUCKETS, Bucket

        if name not in BUCKETS:
            raise NotFoundError(f"There is no bucket {name!r}: expected one of {', '.join(BUCKETS)}.")
        return Bucket(self, name)

    async def ensure_streams(
        self, migrate: bool = False, specs: Mapping[str, StreamSpec] | None = None
    ) -> None:
        """Creates missing streams (those of ``specs``, or the declared ones) and buckets; warns about
        different ones, or migrates them."""
        from onward.bus.streams import STREAMS, ensure_streams

        await ensure_streams(self, migrate=migrate, specs=STREAMS if specs is None else specs)

    async def close(self) -> None:
        """Flushes the sent data and closes. Safe to call twice."""
        self._closing = True
        if self._client is None or self._client.is_closed:
            return
        try:
            if self._client.is_connected:
                await self._client.flush(timeout=2)
        except (nats.errors.Error, OSError):
            pass  # unreachable: nothing important is in this buffer, since publishes wait for PubAcks
        await self._client.close()

    async def _usable(self) -> bool:
        if self.is_connected:
            return True
        if self._client is not None and self._client.is_closed:
            if self._closing:
                raise BusError("The bus is closed: open a new one with Bus.connect.")
            await self.revive()
        return self.is_connected

    async def revive(self) -> None:
        """Builds a new client if ``nats-py`` closed the old one permanently; does nothing otherwise."""
        async with self._reviving:
            if self._closing or self._client is None or not self._client.is_closed:
                return
            log.warning("the NATS client was closed for good, making a new one")
            try:
                await self._open(2.0)
            except BusError as error:
                log.warning("NATS cannot be reached", reason=str(error))
                return
            for subject in self._served:
                await self._serve(subject)

    def _repeat_attempts(self) -> None:
        """Ends the waits for PubAcks at once; each publish then looks at what happened and repeats."""
        for attempt in self._attempts:
            if attempt is not None:
                attempt.reschedule(asyncio.get_running_loop().time())

    async def _open(self, timeout: float) -> None:
        client, refused, last = Client(), asyncio.Event(), ["no answer"]

        async def on_error(error: Exception) -> None:
            last[0] = hide_login(f"{type(error).__name__} {error}".strip())
            if isinstance(error, nats.errors.AuthorizationError) or "authorization" in str(error).lower():
                refused.set()
            if denied := _DENIED.search(str(error)):
                log.error("NATS refuses this login a subject", reason=last[0])
                self._denied.add(denied[1].lower())
                self._repeat_attempts()
            elif isinstance(error, nats.errors.SlowConsumerError):
                log.warning("messages were dropped at the client's limits; they come again", reason=last[0])
            else:
                log.debug("nats client", reason=last[0])

        async def on_disconnect() -> None:
            self._repeat_attempts()  # their answers were lost with the connection
            if self._client is client and not self._closing:
                log.warning("the connection to NATS is lost; what is sent to it waits in this process")

        async def on_reconnect() -> None:
            log.info("NATS is back")

        connecting = asyncio.ensure_future(
            client.connect(
                **self._options,
                error_cb=on_error,
                disconnected_cb=on_disconnect,
                reconnected_cb=on_reconnect,
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.25,  # type: ignore[arg-type]  (seconds; a float works)
                connect_timeout=2,
                ping_interval=10,
                max_outstanding_pings=2,
            )
        )
        refusal = asyncio.ensure_future(refused.wait())
        await asyncio.wait({connecting, refusal}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        refusal.cancel()
        if connecting.done() and connecting.exception() is None:
            self._client, self._js = client, client.jetstream(timeout=ATTEMPT_SECONDS)
            return
        if connecting.done():
            error = connecting.exception()
            last[0] = hide_login(f"{type(error).__name__} {error}".strip())
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)
        await client.close()
        where = hide_login(str(self._options["servers"][0]))
        if refused.is_set():
            raise BusError(f"NATS at {where} refused the login: check the token or user in onward.toml.")
        raise BusError(f"NATS at {where} cannot be reached ({last[0]}): check the address and the server.")


def _user_of(url: str) -> str | None:
    """Returns the user of an address with user and password; None for a token or no login."""
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
    except ValueError:
        return None
    return parts.username if parts.password is not None else None


def _inbox_prefix(user: str | None) -> str:
    """Returns the inbox prefix of a login. A name that is no word of a subject has the service's."""
    from onward.bus.logins import SERVICE, inbox_prefix

    known = user is not None and re.fullmatch(r"[A-Za-z0-9_-]+", user) is not None
    return inbox_prefix(user if known and user else SERVICE)


def is_pub_ack(data: bytes) -> bool:
    """Returns whether an answer is a stream's PubAck (or its error form) and not an answer from a role."""
    if len(data) > 1024 or not data.startswith(b"{"):
        return False
    try:
        document = json.loads(data)
    except ValueError:
        return False
    return isinstance(document, dict) and isinstance(document.get("stream"), str) and "seq" in document
