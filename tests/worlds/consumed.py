"""How far a durable consumer has read its stream."""

from nats.js.errors import NotFoundError

from onward.bus import Bus


async def acknowledged(bus: Bus, stream: str, durable: str) -> int:
    """Sequence up to which everything is acknowledged; 0 while the consumer is not made yet."""
    try:
        info = await bus.js.consumer_info(stream, durable)
    except NotFoundError:  # a role makes its consumer in the background
        return 0
    return info.ack_floor.stream_seq if info.ack_floor else 0


async def is_consumed(bus: Bus, stream: str, durable: str) -> bool:
    """Whether every message is acknowledged. The floor is asked, not what is pending: the server knows of a
    new message before its consumers do."""
    last = (await bus.js.stream_info(stream)).state.last_seq
    return not last or await acknowledged(bus, stream, durable) >= last
