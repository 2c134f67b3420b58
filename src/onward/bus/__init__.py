"""Everything that uses NATS: connection, embedded server, streams, buckets, consumers, outbox, leases.

No accepted message is lost: a producer writes to its outbox first, the server fsyncs before it answers, and a
consumer acknowledges after its durable work. Agents embed the outbox, so each name is loaded on first access.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onward.lazy import attributes

if TYPE_CHECKING:
    from onward.bus.buckets import BUCKETS, Bucket, Entry, read_document
    from onward.bus.connection import Bus, PublishRejectedError
    from onward.bus.consumer import Ack, DeadLetter, Disposition, Message, Retry, consume
    from onward.bus.leases import Lease
    from onward.bus.outbox import Outbox, Receipt
    from onward.bus.server import NatsServer
    from onward.bus.streams import STREAMS, Difference

__all__ = [
    "BUCKETS",
    "STREAMS",
    "Ack",
    "Bucket",
    "Bus",
    "DeadLetter",
    "Difference",
    "Disposition",
    "Entry",
    "Lease",
    "Message",
    "NatsServer",
    "Outbox",
    "PublishRejectedError",
    "Receipt",
    "Retry",
    "consume",
    "read_document",
]
__getattr__ = attributes(
    __name__,
    {
        "Ack": "onward.bus.consumer",
        "BUCKETS": "onward.bus.buckets",
        "Bucket": "onward.bus.buckets",
        "Bus": "onward.bus.connection",
        "DeadLetter": "onward.bus.consumer",
        "Difference": "onward.bus.streams",
        "Disposition": "onward.bus.consumer",
        "Entry": "onward.bus.buckets",
        "Lease": "onward.bus.leases",
        "Message": "onward.bus.consumer",
        "NatsServer": "onward.bus.server",
        "Outbox": "onward.bus.outbox",
        "PublishRejectedError": "onward.bus.connection",
        "Receipt": "onward.bus.outbox",
        "Retry": "onward.bus.consumer",
        "STREAMS": "onward.bus.streams",
        "consume": "onward.bus.consumer",
        "read_document": "onward.bus.buckets",
    },
)
