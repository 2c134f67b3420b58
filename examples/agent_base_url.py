"""An agent that knows nothing of Onward: an OpenAI client, one tool, a loop. The gateway records it.

Start the service in one terminal and the agent in another, in the same folder:

    onward up
    export OPENAI_BASE_URL=http://127.0.0.1:3000/v1 OPENAI_API_KEY=$(cat onward-data/run/api.key)
    python examples/agent_base_url.py "What is 6 times 7?"

A minute after the last answer the task counts as over. To say how it ended, close it before:
`curl -H "Authorization: Bearer $OPENAI_API_KEY" $OPENAI_BASE_URL/sessions/ID/close -d '{"status": "failed"}'`
"""

import argparse
import json

import openai

PARAMETERS = {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}}
TOOL = {"type": "function", "function": {"name": "multiply", "parameters": PARAMETERS}}


def work(question: str) -> str:
    try:
        client = openai.OpenAI()
    except openai.OpenAIError as error:
        raise SystemExit(f"{error} The top of this file shows how.") from None
    messages = [{"role": "user", "content": question}]
    while True:
        completion = client.chat.completions.create(
            model="onward", messages=messages, tools=[TOOL], max_tokens=200
        )
        answer = completion.choices[0].message
        messages.append(answer)
        for call in answer.tool_calls or []:
            given = json.loads(call.function.arguments)
            product = str(given.get("x", 0) * given.get("y", 0))
            print(f"multiply({call.function.arguments}) = {product}", flush=True)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": product})
        if not answer.tool_calls:
            return answer.content


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Ask one question of whatever OPENAI_BASE_URL points at.")
    parser.add_argument("question")
    print(work(parser.parse_args().question))
