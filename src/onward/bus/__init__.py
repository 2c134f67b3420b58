"""Everything that crosses NATS: connection, embedded server, streams, buckets, consumers, outbox, leases.

Nothing accepted is lost: a producer writes to its outbox first, the server fsyncs before it answers, and
a consumer acknowledges after its durable work.
"""

from onward.bus.buckets import BUCKETS, Bucket, Entry
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
]
