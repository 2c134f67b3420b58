"""A CrewAI crew of one agent with a tool.

Each question is a task: one session, one trajectory, one outcome. A program checks
the answer: no exception is no success. Start the service, then:

    pip install crewai
    export OPENAI_BASE_URL=http://127.0.0.1:3000/v1 OPENAI_API_KEY=$(cat onward-data/run/api.key)
    python examples/frameworks/crewai_agent.py "What is 6 times 7?" "What is 6 times 9?"
"""

import argparse
import asyncio
import math
import os
import re
import uuid

import openai
from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool


@tool("multiply")
def multiply(x: float, y: float) -> float:
    """Multiplies two numbers."""
    return x * y


async def work(question: str) -> str:
    session = {"Onward-Session": str(uuid.uuid4())}
    model = LLM(model="openai/onward", base_url=os.environ["OPENAI_BASE_URL"], extra_headers=session)
    clerk = Agent(role="Clerk", goal="Answer questions.", backstory="Careful.", llm=model, tools=[multiply])
    task = Task(description=question, expected_output="The answer.", agent=clerk)
    status = "failed"
    try:
        result = await Crew(agents=[clerk], tasks=[task]).kickoff_async()
        answer = str(result)
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
