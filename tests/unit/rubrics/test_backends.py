"""Structured answers of servers with a chat API, against a server that says what a script tells it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
from chat_server import ChatServer, Reply, completion, text
from pydantic import BaseModel

from onward.errors import ConfigError, EngineError
from onward.lm.tiny import build_tiny
from onward.rubrics.backend_player import BackendPlayer, rubric_type
from onward.rubrics.backends import (
    ChatBackend,
    ModelAnswerError,
    RefusedAnswerError,
    TruncatedAnswerError,
    open_backend,
)
from onward.rubrics.tasks import make_task


class Colour(BaseModel):
    colour: Literal["red", "blue"]


def backend(kind: str, server: ChatServer, **more: Any) -> ChatBackend:
    return ChatBackend(kind, "m1", server.url, least_pause=0.001, most_pause=0.002, **more)


def ended(content: str | None, reason: str, **more: Any) -> Reply:
    document = completion(text("") | {"content": content, **more})
    document["choices"][0]["finish_reason"] = reason
    return Reply((document,))


@pytest.mark.parametrize(
    ("kind", "limit", "strict"),
    [("openai", "max_completion_tokens", True), ("vllm", "max_tokens", None), ("sglang", "max_tokens", None)],
)
async def test_the_request_has_the_schema_in_the_words_of_each_server(
    kind: str, limit: str, strict: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{kind.upper()}_API_KEY", "k" * 9)
    with ChatServer(lambda body: text('{"colour": "red"}')).running() as server:
        one = backend(kind, server, max_tokens=77)
        answer = await one.generate_structured("be brief", "which?", Colour, 0.5, 11)
    assert answer.colour == "red"
    (body,) = server.requests
    assert body[limit] == 77 and body["temperature"] == 0.5 and body["seed"] == 11
    assert [message["content"] for message in body["messages"]] == ["be brief", "which?"]
    form = body["response_format"]
    assert form["type"] == "json_schema" and form["json_schema"].get("strict") is strict
    assert form["json_schema"]["schema"]["properties"]["colour"]["enum"] == ["red", "blue"]
    assert server.headers[0]["authorization"] == f"Bearer {'k' * 9}"
    assert (one.usage.requests, one.usage.prompt_tokens, one.usage.completion_tokens) == (1, 5, 5)
    assert one.usage.dollars((2.0, 8.0)) == pytest.approx(50e-6)


async def test_an_invalid_answer_is_asked_for_once_more_with_the_problem_and_the_next_seed() -> None:
    said = iter(['{"colour": "green"}', 'Here: {"colour": "blue"}'])
    with ChatServer(lambda body: text(next(said))).running() as server:
        assert (await backend("vllm", server).generate_structured("s", "u", Colour, 1.0, 4)).colour == "blue"
    assert [body["seed"] for body in server.requests] == [4, 5]
    first, second = (body["messages"] for body in server.requests)
    assert [one["role"] for one in second] == ["system", "user", "assistant", "user"]
    assert second[:2] == first and second[2]["content"] == '{"colour": "green"}'
    assert "Colour: colour: Input should be 'red' or 'blue'" in second[3]["content"]
    with (
        ChatServer(lambda body: text('{"colour": "green"}')).running() as server,
        pytest.raises(ModelAnswerError, match="no Colour"),
    ):
        await backend("vllm", server).generate_structured("s", "u", Colour)
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("reply", "error", "words"),
    [
        (
            ended(None, "stop", refusal="I cannot help"),
            RefusedAnswerError,
            "refused to answer .I cannot help",
        ),
        (ended("", "content_filter"), RefusedAnswerError, "content filter"),
        (ended('{"colour": "re', "length"), TruncatedAnswerError, "cut off after 1024 tokens"),
    ],
)
async def test_a_refusal_and_a_truncated_answer_are_errors_at_once(
    reply: Reply, error: type[Exception], words: str
) -> None:
    with ChatServer(lambda body: reply).running() as server, pytest.raises(error, match=words):
        await backend("openai", server).generate_structured("s", "u", Colour)
    assert len(server.requests) == 1


async def test_outages_are_tried_again_and_a_wrong_key_is_not() -> None:
    said = iter([503, 429, text('{"colour": "red"}')])
    with ChatServer(lambda body: next(said)).running() as server:
        assert (await backend("sglang", server).generate_structured("s", "u", Colour)).colour == "red"
    assert len(server.requests) == 3
    with (
        ChatServer(lambda body: 401).running() as server,
        pytest.raises(EngineError, match=r"status 401: no.*OPENAI_API_KEY"),
    ):
        await backend("openai", server).generate_structured("s", "u", Colour)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("openia:gpt", "did you mean openai:"),
        ("gpt", "give openai:NAME"),
        ("vllm:", "give openai:NAME"),
        ("vllm:m@host:80", "such as http://host:8000/v1"),
    ],
)
def test_a_name_of_no_model_is_refused(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        open_backend(name)


def test_a_language_model_plays_an_episode() -> None:
    """It asks one question, hears the stakeholder's words, and weighs three checks."""
    task = make_task("expense_audit", 3)
    chosen = [{"check": one.name, "arg": one.arg, "weight": 5} for one in task.active[:3]]

    def script(body: dict[str, Any]) -> dict[str, Any]:
        wanted = body["response_format"]["json_schema"]["name"]
        if wanted == "Rubric":
            return text(json.dumps({"criteria": chosen}))
        heard = "The stakeholder: MUCH" in body["messages"][1]["content"]
        return text(json.dumps({"ask": "nothing" if heard else "accuracy"}))

    with ChatServer(script).running() as server:
        player = BackendPlayer(backend("vllm", server))
        (one,) = player.play([task], stakeholder=lambda task: lambda topic: "MUCH")
        (other,) = player.play([task], stakeholder=lambda task: lambda topic: "MUCH")
    assert one.questions == ("accuracy",) and one.problem == ""
    assert one.rubric is not None and one.rubric.checks == tuple(sorted(task.active[:3]))
    assert other.rubric == one.rubric and len(server.requests) == 6


def test_the_type_of_a_rubric_has_the_checks_of_the_task_alone() -> None:
    task = make_task("expense_audit", 3)
    good = {"check": task.active[0].name, "arg": task.active[0].arg, "weight": 1}
    kind = rubric_type(task)
    kind.model_validate({"criteria": [good] * 3})
    for wrong in (
        [good] * 2,
        [good] * 8,
        [good, good, {**good, "weight": 6}],
        [good, good, {**good, "arg": "?"}],
    ):
        with pytest.raises(ValueError, match="criteria"):
            kind.model_validate({"criteria": wrong})


def test_a_model_in_this_process_plays_by_the_same_types(tmp_path: Path) -> None:
    """A network of random weights: what it writes is valid by the grammar alone, at any temperature."""
    corpus = ["check arg weight criteria ask accuracy completeness brevity nothing other 1 2 3 4 5"]
    folder = build_tiny(
        tmp_path / "tiny", corpus, vocab=320, hidden=16, layers=1, heads=2, kv_heads=1, max_positions=8192
    )
    local = open_backend(f"local:{folder}")
    (one,) = BackendPlayer(local, questions=1).play([make_task("release_notes", 3)], temperature=1.0, seed=1)
    assert one.rubric is not None, one.problem
    assert local.usage.requests == 2 and local.usage.completion_tokens > 20
    # Episodes that are played together are those that are played alone: no answer goes to another one.
    tasks = [make_task("release_notes", seed) for seed in range(6)]
    together = BackendPlayer(local, questions=1).play(tasks, temperature=1.0, seed=1)
    for number, (task, found) in enumerate(zip(tasks, together, strict=True)):
        (alone,) = BackendPlayer(local, questions=1).play([task], temperature=1.0, seed=1 + number)
        assert (found.text, found.questions, found.problem) == (alone.text, alone.questions, "")
