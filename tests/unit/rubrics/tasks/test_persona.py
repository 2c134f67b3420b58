"""The persona on an OpenAI-compatible endpoint: it sees no truth, and its words can carry none."""

from __future__ import annotations

import json
import re

import pytest
from chat_server import ChatServer, text

from onward.errors import EngineError
from onward.rubrics.backends.posting import TRIES
from onward.rubrics.tasks import CHECKS, TRAINING_FAMILIES, TaskStakeholder, make_task
from onward.rubrics.tasks.persona import Persona
from onward.rubrics.tasks.stakeholder import Reply


def asked_of(family: str) -> Reply:
    task = next(task for seed in range(99) if (task := make_task(family, seed)).hidden)
    return TaskStakeholder(task).ask(task.hidden[0])


async def test_an_answer_is_said_in_other_words() -> None:
    reply = asked_of("sla_report")
    with ChatServer(lambda body: text("  Oh, that one\nreally counts. ")).running() as server:
        async with Persona(server.url, "any-model", "k" * 8) as persona:
            said = await persona.rephrase(reply, seed=3)
    assert said == Reply(reply.topic, "Oh, that one really counts.", reply.level, reply.cost)
    assert server.paths == ["/v1/chat/completions"]
    assert server.headers[0]["authorization"] == "Bearer " + "k" * 8
    assert (server.requests[0]["model"], server.requests[0]["seed"]) == ("any-model", 3)


async def test_the_model_sees_nothing_of_the_truth() -> None:
    with ChatServer(lambda body: text("Fine.")).running() as server:
        async with Persona(server.url, "m") as persona:
            for family in TRAINING_FAMILIES:
                await persona.rephrase(asked_of(family))
    for request in server.requests:
        seen = json.dumps(request["messages"])
        assert not any(name in seen or name.replace("_", " ") in seen for name in CHECKS)
        assert not re.search(r"weight\W*\d|\d+\.\d", seen)
        assert len(request["messages"]) == 2


@pytest.mark.parametrize(
    "leak",
    ["Use sum_matches first.", "I want sum matches.", "Weight 5 please.", "", "so " * 41],
)
async def test_words_that_could_carry_a_rubric_are_refused(leak: str) -> None:
    reply = asked_of("sla_report")
    with ChatServer(lambda body: text(leak)).running() as server:
        async with Persona(server.url, "m") as persona:
            assert await persona.rephrase(reply) == reply
            assert persona.kept == 1


async def test_a_busy_endpoint_is_asked_again_and_a_broken_one_is_one_sentence() -> None:
    reply, answers = asked_of("sla_report"), [503, 429, "Good."]
    with ChatServer(
        lambda body: text(one) if isinstance(one := answers.pop(0), str) else one
    ).running() as server:
        async with Persona(server.url, "m", least_pause=0.01) as persona:
            assert (await persona.rephrase(reply)).text == "Good."
    with ChatServer(lambda body: 500).running() as server:
        async with Persona(server.url, "m", least_pause=0.01) as persona:
            with pytest.raises(
                EngineError, match="answered with status 500: check its address, key and model"
            ):
                await persona.rephrase(reply)
    assert len(server.requests) == TRIES
    with ChatServer(lambda body: 401).running() as server:
        async with Persona(server.url, "m") as persona:
            with pytest.raises(EngineError, match="status 401"):
                await persona.rephrase(reply)
    assert len(server.requests) == 1
