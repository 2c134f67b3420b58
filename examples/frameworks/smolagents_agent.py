"""A smolagents agent with a tool.

smolagents writes tool calls and their results anew as plain text before each request, so the gateway cannot
see that a request continues the one before. A recorder's block says which requests are one task. A program
checks the answer: no exception is no success. Start the service, then:

    pip install "smolagents[openai]"      # in the Python that has onward
    export OPENAI_BASE_URL=http://127.0.0.1:3000/v1 OPENAI_API_KEY=$(cat onward-data/run/api.key)
    export NATS_URL=$(cat onward-data/run/agent.url)
    python examples/frameworks/smolagents_agent.py "What is 6 times 7?" "What is 6 times 9?"
"""

import argparse
import asyncio
import math
import os
import re

from smolagents import OpenAIModel, ToolCallingAgent, tool

from onward import Recorder, wrap_openai


@tool
def multiply(x: float, y: float) -> float:
    """Multiplies two numbers.

    Args:
        x: The first number.
        y: The second number.
    """
    return x * y


class RecordedModel(OpenAIModel):
    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        super().__init__("onward")

    def create_client(self):
        return wrap_openai(super().create_client(), self.recorder)


def work(question: str, recorder: Recorder) -> str:
    agent = ToolCallingAgent(tools=[multiply], model=RecordedModel(recorder), verbosity_level=0)
    with recorder.task(question) as task:
        answer = str(agent.run(question))
        task.outcome("completed_successfully" if right(question, answer) else "failed")
    return answer


def right(question: str, answer: str) -> bool:
    """Checks an answer: the product of the question's numbers. Replace it by the check of your own tasks."""
    product = math.prod(map(int, re.findall(r"\d+", question)))
    return str(product) in re.findall(r"\d+", answer.replace(",", ""))


async def main(questions: list[str]) -> None:
    with Recorder("smolagents.db", nats_url=os.environ["NATS_URL"], agent_id="smolagents") as recorder:
        for answer in await asyncio.gather(*(asyncio.to_thread(work, one, recorder) for one in questions)):
            print(answer)
        recorder.flush(30)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "questions", nargs="+", metavar="QUESTION", help="a multiplication in words, in quotes"
    )
    asyncio.run(main(parser.parse_args().questions))
