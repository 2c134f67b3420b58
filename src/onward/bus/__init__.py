"""Everything that uses NATS: connection, embedded server, streams, buckets, consumers, outbox, leases.

No accepted message is lost: a producer writes to its outbox first, the server fsyncs before it answers, and a
consumer acknowledges after its durable work. Agents embed the outbox, so each name is loaded on first access.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onward.lazy import attributes

if TYPE_CHECKING:
    from onward.bus.buckets import BUCKETS, Bucket, Entry
    from onward.bus.connection import Bus, PublishRejectedError
    from onward.bus.consumer import Ack, DeadLetter, Disposition, Message, Retry, consume
    from onward.bus.documents import Stored, load_entry, read_all, read_document, read_stored
    from onward.bus.leases import Lease
    from onward.bus.outbox import Outbox
    from onward.bus.server import NatsServer
    from onward.bus.streams import STREAMS

__all__ = [
    "BUCKETS",
    "STREAMS",
    "Ack",
    "Bucket",
    "Bus",
    "DeadLetter",
    "Disposition",
    "Entry",
    "Lease",
    "Message",
    "NatsServer",
    "Outbox",
    "PublishRejectedError",
    "Retry",
    "Stored",
    "consume",
    "load_entry",
    "read_all",
    "read_document",
    "read_stored",
]
__getattr__ = attributes(
    __name__,
    {
        "onward.bus.buckets": "BUCKETS Bucket Entry",
        "onward.bus.connection": "Bus PublishRejectedError",
        "onward.bus.consumer": "Ack DeadLetter Disposition Message Retry consume",
        "onward.bus.documents": "Stored load_entry read_all read_document read_stored",
        "onward.bus.leases": "Lease",
        "onward.bus.outbox": "Outbox",
        "onward.bus.server": "NatsServer",
        "onward.bus.streams": "STREAMS",
    },
)
