"""An OpenAI agent with a tool and one changed line: its client is wrapped, so its tasks are recorded.

Start the service in one terminal and the agent in another, in the same folder:

    onward up
    python examples/agent_wrapped.py "What is 6 times 7?"

Each task becomes one trajectory: from the question over every tool call to the answer that calls no tool. The
agent needs neither the gateway nor NATS for that: without them the trajectories wait in the outbox.
"""

import argparse
import json
from pathlib import Path

import openai

from onward import Recorder, wrap_openai

PARAMETERS = {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}}
TOOL = {"type": "function", "function": {"name": "multiply", "parameters": PARAMETERS}}


def work(client: openai.OpenAI, question: str) -> str:
    messages = [{"role": "user", "content": question}]
    while True:
        answer = client.chat.completions.create(
            model="onward", messages=messages, tools=[TOOL], max_tokens=200
        )
        message = answer.choices[0].message
        messages.append(message)
        for call in message.tool_calls or []:
            given = json.loads(call.function.arguments)
            product = str(given.get("x", 0) * given.get("y", 0))
            print(f"multiply({call.function.arguments}) = {product}", flush=True)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": product})
        if not message.tool_calls:
            return message.content


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask one question; the whole task is recorded.")
    parser.add_argument("question")
    parser.add_argument("--dir", type=Path, default=Path("onward-data"))
    options = parser.parse_args()

    run = options.dir / "run"
    at = json.loads((run / "endpoints.json").read_text())  # new at every start of the service
    recorder = Recorder(
        options.dir / "outbox" / "wrapped.db",
        nats_url=(run / "agent.url").read_text(),
        agent_id="agent-wrapped",
        objects=options.dir / "objects",
    )
    client = openai.OpenAI(base_url=at["gateway_url"] + "/v1", api_key=(run / "api.key").read_text().strip())
    with recorder, wrap_openai(client, recorder) as client:
        print(work(client, options.question))
        print(f"recorded: {recorder.stats().recorded}; delivered: {recorder.flush(30)}")


if __name__ == "__main__":
    main()
