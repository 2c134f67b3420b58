"""Publish one trajectory to NATS without the recorder, and wait for its reward.

For agents in other languages: this is all that a publisher must do. Start the service first:

    onward up
    python examples/publish_by_hand.py

Mind what the recorder would do for you: nothing is redacted before it leaves this process (the collector
redacts, and erases the raw message), and nothing is kept when NATS is away.
"""

import argparse
import asyncio
import json
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import nats


def trajectory() -> dict:
    """One task with one tool call and one answer, as agent.rl.trajectory.v1 wants it."""
    end = datetime.now(UTC)
    start = end - timedelta(seconds=3)
    return {
        "trajectory_id": str(uuid.uuid4()),
        "session_id": f"by-hand-{uuid.uuid4().hex[:8]}",
        "agent_id": "by-hand",
        "start_timestamp": start.isoformat(),
        "end_timestamp": end.isoformat(),
        "turns": [
            {
                "turn_id": 1,
                "timestamp": start.isoformat(),
                "observation": {"type": "user_message", "content": "What is 17 times 23?"},
                "action": {
                    "type": "tool_call",
                    "tool_name": "calculator",
                    "tool_args": {"expression": "17 * 23"},
                },
                "result": {"success": True, "output": "391"},
            },
            {
                "turn_id": 2,
                "timestamp": end.isoformat(),
                "observation": {"type": "tool_result", "content": "391"},
                "action": {"type": "response", "raw_response": "17 times 23 is 391."},
                "result": {"success": True},
            },
        ],
        "task_context": {"task_id": "product-1", "instructions": "What is 17 times 23?"},
        "metadata": {"model": "my-model", "outcome": {"status": "completed_successfully"}},
    }


async def main() -> None:
    parser = argparse.ArgumentParser(description="Publish one trajectory and wait for its reward.")
    parser.add_argument("--dir", type=Path, default=Path("onward-data"))
    run = parser.parse_args().dir / "run"
    at = json.loads((run / "endpoints.json").read_text())
    # The agents' login may publish and hear its acknowledgements, under this inbox prefix and no other.
    bus = await nats.connect((run / "agent.url").read_text(), inbox_prefix="_INBOX_agent")
    document = trajectory()
    ack = await bus.jetstream().publish(
        "agent.rl.trajectory.v1",
        json.dumps(document).encode(),
        headers={"Nats-Msg-Id": document["trajectory_id"]},  # sent twice, it is stored once
    )
    print(f"stored in {ack.stream} as number {ack.seq}")
    await bus.close()
    key = {"Authorization": f"Bearer {(run / 'api.key').read_text().strip()}"}
    found = {"status": "waiting"}
    async with httpx.AsyncClient(base_url=at["api_url"], headers=key) as api:
        while found.get("status", "waiting") == "waiting":  # an id that is not stored yet has no status
            await asyncio.sleep(0.2)
            found = (await api.get(f"/rewards/{document['trajectory_id']}")).json()
    for name, component in found["components"].items():
        print(f"{name}: {component['score']:.2f} x {component['weight']:.2f}  {component['reasoning']}")
    print(f"raw_total {found['raw_total']:.3f}, total_reward {found['total_reward']:.3f}")


if __name__ == "__main__":
    asyncio.run(main())
