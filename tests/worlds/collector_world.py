"""What the tests of the collector share: a document, publishing, collecting, and what is left."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from onward.capture.collecting import collector
from onward.clock import utc_text
from onward.contracts import subjects


def document(number: int = 1, text: str = "hello", **changes) -> dict:
    now = datetime.now(UTC)
    return {
        "trajectory_id": f"00000000-0000-4000-8000-{number:012d}",
        "session_id": f"s{number}",
        "agent_id": "agent",
        "start_timestamp": utc_text(now - timedelta(minutes=1)),
        "end_timestamp": utc_text(now),
        "turns": [
            {
                "turn_id": 1,
                "timestamp": utc_text(now),
                "observation": {"type": "user_message", "content": text},
                "action": {
                    "type": "response",
                    "raw_response": "done",
                    "sampling": {
                        "generation_id": f"g{number}",
                        "prompt_ids": [1, 2],
                        "token_ids": [3],
                        "logprobs": [-0.5],
                        "temperature": 1.0,
                        "top_p": 1.0,
                        "finish_reason": "stop",
                        "model_digest": "d",
                    },
                },
                "result": {"success": True},
            }
        ],
        "task_context": {"task_id": "t", "instructions": "Say hello", "domain": "general"},
        "metadata": {"model": "m"},
    } | changes


async def publish(ctx, body: dict | bytes, msg_id: str | None = None, headers: dict | None = None) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    name = msg_id or (body["trajectory_id"] if isinstance(body, dict) else f"raw-{hash(data)}")
    await ctx.bus.publish(subjects.TRAJECTORY, data, msg_id=name, headers=headers)


async def collect(ctx) -> None:
    """Run the collector until nothing waits."""
    task = asyncio.create_task(collector.run(ctx))
    try:
        await idle(ctx)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def idle(ctx, timeout: float = 30.0) -> None:
    """Quiet in three looks on end: the server knows of a new message before its consumers do."""
    quiet = 0
    async with asyncio.timeout(timeout):
        while quiet < 3:
            await asyncio.sleep(0.05)
            try:
                info = await ctx.bus.js.consumer_info(collector.STREAM, collector.DURABLE)
                quiet = 0 if info.num_pending or info.num_ack_pending else quiet + 1
            except Exception:  # not made yet
                quiet = 0


async def bodies(ctx) -> list[bytes]:
    info = await ctx.bus.js.stream_info(collector.STREAM)
    found = []
    for sequence in range(1, info.state.last_seq + 1):
        try:
            found.append((await ctx.bus.js.get_msg(collector.STREAM, seq=sequence)).data or b"")
        except Exception:
            continue  # erased
    return found


def on_disk(folder: Path, needle: bytes) -> list[str]:
    return [str(f) for f in folder.rglob("*") if f.is_file() and needle in f.read_bytes()]


async def rows(ctx) -> list[dict]:
    return await ctx.warehouse.query("SELECT * FROM trajectories_v ORDER BY trajectory_id")


def count(ctx, name: str, **labels) -> float:
    return ctx.metrics.registry.get_sample_value(name, labels) or 0.0
