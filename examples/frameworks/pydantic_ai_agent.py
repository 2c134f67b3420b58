"""A PydanticAI agent with a tool.

Each question is a task: one session, one trajectory, one outcome. A program checks
the answer: no exception is no success. Start the service, then:

    pip install "pydantic-ai-slim[openai]"
    export OPENAI_BASE_URL=http://127.0.0.1:3000/v1 OPENAI_API_KEY=$(cat onward-data/run/api.key)
    python examples/frameworks/pydantic_ai_agent.py "What is 6 times 7?" "What is 6 times 9?"
"""

import argparse
import asyncio
import math
import re
import uuid

import openai
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


def multiply(x: float, y: float) -> float:
    """Multiplies two numbers."""
    return x * y


async def work(question: str) -> str:
    session = {"Onward-Session": str(uuid.uuid4())}
    provider = OpenAIProvider(openai_client=openai.AsyncOpenAI(default_headers=session))
    agent = Agent(OpenAIChatModel("onward", provider=provider), tools=[multiply])
    status = "failed"
    try:
        result = await agent.run(question)
        answer = str(result.output)
        status = "completed_successfully" if right(question, answer) else "failed"
        return answer
    finally:
        await outcome(session["Onward-Session"], status)


def right(question: str, answer: str) -> bool:
    """Checks an answer: the product of the question's numbers. Replace it by the check of your own tasks."""
    product = math.prod(map(int, re.findall(r"\d+", question)))
    return str(product) in re.findall(r"\d+", answer.replace(",", ""))


async def outcome(session: str, status: str) -> None:
    """Closes the task: says how it ended."""
    async with openai.AsyncOpenAI() as client:
        await client.post(f"/sessions/{session}/close", body={"status": status}, cast_to=object)


async def main(questions: list[str]) -> None:
    for answer in await asyncio.gather(*map(work, questions)):
        print(answer)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "questions", nargs="+", metavar="QUESTION", help="a multiplication in words, in quotes"
    )
    asyncio.run(main(parser.parse_args().questions))
