"""A ten-line agent on plain HTTP: it asks the gateway and records what it did.

Start the service in one terminal and the agent in another, in the same folder:

    onward up
    python examples/agent_http.py "What is 6 times 7?" 42

The second argument is the text that a right answer contains. With ``--dir`` the data folder is another
one than ./onward-data. The answer of a small base model will rarely be right: that is what is learned from.
"""

import argparse
import json
import time
from pathlib import Path

import httpx

from onward import Recorder


def ask(gateway: httpx.Client, session: str, messages: list[dict[str, str]]) -> dict:
    """One model call. 429 says that traffic is paused: wait as told, then send the same call again."""
    while True:
        answer = gateway.post(
            "/v1/chat/completions",
            json={"model": "onward", "messages": messages, "max_tokens": 64},
            headers={"Onward-Session": session, "Onward-Capture": "off"},  # the recorder does that
        )
        if answer.status_code != 429:
            return answer.raise_for_status().json()
        time.sleep(float(answer.headers["Retry-After"]))


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask one question through the gateway and record it.")
    parser.add_argument("question")
    parser.add_argument("right", help="text that a right answer contains")
    parser.add_argument("--dir", type=Path, default=Path("onward-data"))
    options = parser.parse_args()

    run = options.dir / "run"
    at = json.loads((run / "endpoints.json").read_text())  # new at every start of the service
    gateway = httpx.Client(
        base_url=at["gateway_url"],
        headers={"Authorization": f"Bearer {(run / 'api.key').read_text().strip()}"},
        timeout=120,
    )
    recorder = Recorder(
        options.dir / "outbox" / "agent.db",
        nats_url=(run / "agent.url").read_text(),
        agent_id="agent-http",
    )
    with gateway, recorder:
        # The agent itself.
        with recorder.task(options.question, domain="general", task_type="question") as task:
            messages = [{"role": "user", "content": options.question}]
            answer = ask(gateway, task.session_id, messages)
            text = answer["choices"][0]["message"]["content"]
            task.turn(observation=options.question, action=task.from_completion(answer))
            right = options.right in text
            task.outcome("completed_successfully" if right else "failed")
        print(f"{answer['model']} said: {text}")
        print(f"right: {right}; recorded as {task.trajectory_id}; delivered: {recorder.flush(30)}")


if __name__ == "__main__":
    main()
