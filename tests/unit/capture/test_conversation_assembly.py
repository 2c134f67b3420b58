"""Streams as servers really send them; the right answer is the one that the same server gives unstreamed."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from typing import Any

import httpx
import openai
import pytest

from onward import Recorder, wrap_openai
from onward.capture.clients.responses import ResponseAssembly
from onward.capture.conversations.assembly import Assembly, _JsonEnd

KIEL, BREST = '{"port": "Kiel"}', '{"port": "Brest"}'


def piece(
    index: int | None = None, id: str | None = None, name: str | None = None, arguments: str | None = None
):
    """One entry of ``delta.tool_calls``; fields that are None are left out."""
    function = {k: v for k, v in (("name", name), ("arguments", arguments)) if v is not None}
    made: dict[str, Any] = {"function": function} if function else {}
    return made | {k: v for k, v in (("index", index), ("id", id)) if v is not None}


def chunk(finish: str | None = None, index: int = 0, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


def message_of(*chunks: dict[str, Any]) -> dict[str, Any]:
    assembly = Assembly()
    for one in chunks:
        assembly.add_chunk(one)
    return assembly.completion()["choices"][0]["message"]


def calls_of(*deltas: list[dict[str, Any]]) -> list[tuple[Any, str, str]]:
    made = message_of(*[chunk(tool_calls=pieces) for pieces in deltas]).get("tool_calls", [])
    return [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in made]


TWO = [("a", "tide", KIEL), ("b", "tide", BREST)]
WAYS: dict[str, list[list[dict[str, Any]]]] = {
    "as documented": [
        [piece(0, "a", "tide", "")], [piece(0, arguments='{"port": ')], [piece(0, arguments='"Kiel"}')],
        [piece(1, "b", "tide", "")], [piece(1, arguments=BREST)],
    ],
    "interleaved": [
        [piece(0, "a", "tide", "")], [piece(1, "b", "tide", "")], [piece(1, arguments=BREST[:5])],
        [piece(0, arguments=KIEL[:7])], [piece(1, arguments=BREST[5:])], [piece(0, arguments=KIEL[7:])],
    ],
    "one index, other ids, whole calls": [[piece(0, "a", "tide", KIEL)], [piece(0, "b", "tide", BREST)]],
    "one index, other ids, in pieces": [
        [piece(0, "a", "tide", "")], [piece(0, arguments=KIEL[:4])], [piece(0, arguments=KIEL[4:])],
        [piece(0, "b", "tide", "")], [piece(0, arguments=BREST[:4])], [piece(0, arguments=BREST[4:])],
    ],
    "one index, interleaved by id": [
        [piece(0, "a", "tide", KIEL[:4])], [piece(0, "b", "tide", BREST[:4])],
        [piece(0, "a", arguments=KIEL[4:])], [piece(0, "b", arguments=BREST[4:])],
    ],
    "one index, the id before the name": [
        [piece(0, "a")], [piece(0, name="tide")], [piece(0, arguments=KIEL)],
        [piece(0, "b")], [piece(0, name="tide")], [piece(0, arguments=BREST)],
    ],
    "no index, ids": [[piece(None, "a", "tide", KIEL)], [piece(None, "b", "tide", BREST)]],
    "no index, id in the first piece only": [
        [piece(None, "a", "tide", "")], [piece(arguments=KIEL[:4])], [piece(arguments=KIEL[4:])],
        [piece(None, "b", "tide", "")], [piece(arguments=BREST)],
    ],
    "index in the first piece only": [
        [piece(0, "a", "tide", "")], [piece(None, "a", arguments=KIEL)],
        [piece(1, "b", "tide", "")], [piece(None, "b", arguments=BREST)],
    ],
    "id and name in every piece": [
        [piece(0, "a", "tide", KIEL[:4])], [piece(0, "a", "tide", KIEL[4:])],
        [piece(1, "b", "tide", BREST[:4])], [piece(1, "b", "tide", BREST[4:])],
    ],
    "the name in pieces": [
        [piece(0, "a", "ti")], [piece(0, name="de")], [piece(0, arguments=KIEL)],
        [piece(1, "b", "t", "")], [piece(1, name="ide", arguments="")], [piece(1, arguments=BREST)],
    ],
    "a new id in every piece": [
        [piece(0, "a", "tide", "")],
        [piece(0, "x1", arguments=KIEL[:4])], [piece(0, "x2", arguments=KIEL[4:])],
        [piece(1, "b", "tide", "")], [piece(1, "x3", arguments=BREST)],
    ],
    "both in one chunk": [[piece(0, "a", "tide", KIEL), piece(1, "b", "tide", BREST)]],
    "both in one chunk, one index": [[piece(0, "a", "tide", KIEL), piece(0, "b", "tide", BREST)]],
    "both in one chunk, no index": [[piece(None, "a", "tide", KIEL), piece(None, "b", "tide", BREST)]],
    "the second index first": [[piece(1, "b", "tide", BREST)], [piece(0, "a", "tide", KIEL)]],
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_two_calls_are_two_calls_however_they_are_streamed(way):
    assert calls_of(*WAYS[way]) == TWO


@pytest.mark.parametrize("index", [0, None])
def test_whole_calls_without_any_id_are_told_apart(index):
    made = calls_of([piece(index, name="tide", arguments=KIEL)], [piece(index, name="tide", arguments=BREST)])
    assert made == [(None, "tide", KIEL), (None, "tide", BREST)]


class Piece(str):
    """Text that counts the letters that are copied when it is added to another text."""

    copied = 0

    def __radd__(self, other: str) -> str:
        Piece.copied += len(other)
        return Piece(str(other) + str(self))

    def __add__(self, other: str) -> str:
        Piece.copied += len(self)
        return Piece(str(self) + str(other))


LONG = json.dumps({"port": 'Kiel } \\ " { ' * 2000, "list": [{"a": []}]})
PIECES = [LONG[at : at + 4] for at in range(0, len(LONG), 4)]
GROWING: dict[str, list[dict[str, Any]]] = {
    "as documented": [piece(0, "a", "tide", ""), *[piece(0, arguments=Piece(one)) for one in PIECES]],
    "a new id in every piece": [
        piece(0, "a", "tide", ""),
        *[piece(0, f"x{n}", arguments=Piece(one)) for n, one in enumerate(PIECES)],
    ],
    "the name in every piece": [piece(0, name="tide", arguments=Piece(one)) for one in PIECES],
    "id and name in every piece": [piece(0, "a", "tide", Piece(one)) for one in PIECES],
}


@pytest.mark.parametrize("way", GROWING)
def test_the_work_for_a_piece_does_not_grow_with_the_arguments_before_it(way, monkeypatch):
    parsed = []
    monkeypatch.setattr(json, "loads", lambda text, loads=json.loads: parsed.append(len(text)) or loads(text))
    Piece.copied = 0
    ((_, name, arguments),) = calls_of(*[[one] for one in GROWING[way]])
    assert (name, arguments) == ("tide", LONG)
    assert Piece.copied == 0 and sum(parsed) <= len(LONG)


def test_the_brackets_are_examined_once_for_each_letter(monkeypatch):
    seen: list[str] = []
    examine = _JsonEnd._add
    monkeypatch.setattr(_JsonEnd, "_add", lambda end, letter: seen.append(letter) or examine(end, letter))
    calls_of(*[[one] for one in GROWING["as documented"]])
    assert seen == []
    calls_of(*[[one] for one in GROWING["a new id in every piece"]])
    assert len(seen) <= len(LONG)


@pytest.mark.parametrize("name", ["content", "refusal", "reasoning_content"])
def test_the_work_for_a_piece_does_not_grow_with_the_text_before_it(name):
    Piece.copied = 0
    deltas: list[dict[str, Any]] = [{name: Piece(one)} for one in PIECES]
    message = message_of(*[chunk(**one) for one in deltas])
    assert message[name] == LONG and Piece.copied == 0


def test_the_work_for_a_piece_of_a_response_does_not_grow():
    assembly = ResponseAssembly()
    assembly.add_chunk({"type": "response.output_item.added", "output_index": 0, "item": {"type": "message"}})
    Piece.copied = 0
    for one in PIECES:
        told = {"type": "response.output_text.delta", "output_index": 0, "delta": Piece(one)}
        assembly.add_chunk(told)
    assert assembly.completion()["choices"][0]["message"]["content"] == LONG and Piece.copied == 0


@pytest.mark.parametrize("first", ["{'port': 1}", '{"a": "}"', "[1}", "{} x", "text", "  ", '{"a": 1}}'])
def test_arguments_that_are_no_json_go_on(first):
    made = calls_of([piece(0, "a", "tide", first)], [piece(0, "x", arguments="more")])
    assert made == [("a", "tide", first + "more")]


def test_parts_of_a_chunk_that_are_no_text_lose_nothing_else():
    odd: Any = {"refusal": 5, "audio": {"transcript": 3}, "reasoning_details": [{"text": 7}, 8]}
    assert message_of(chunk(content="a"), chunk(**odd), chunk(content="b"))["content"] == "ab"


def test_one_id_at_two_indexes_is_two_calls():
    made = calls_of([piece(0, "call", "tide", KIEL)], [piece(1, "call", "tide", BREST)])
    assert [arguments for _, _, arguments in made] == [KIEL, BREST]


def test_arguments_as_an_object_become_json():
    whole: Any = {"index": 0, "id": "a", "function": {"name": "tide", "arguments": {"port": "Kiel"}}}
    assert calls_of([whole]) == [("a", "tide", KIEL)]


def test_a_legacy_function_call_is_assembled():
    message = message_of(
        chunk(role="assistant", function_call={"name": "tide", "arguments": ""}),
        chunk(function_call={"arguments": KIEL[:6]}),
        chunk(function_call={"arguments": KIEL[6:]}),
        chunk("function_call"),
    )
    assert message["function_call"] == {"name": "tide", "arguments": KIEL}


@pytest.mark.parametrize(
    "pieces",
    [
        [{"reasoning_content": "Half of "}, {"reasoning_content": "ten."}],
        [{"reasoning": "Half of "}, {"reasoning": "ten."}],
        [
            {"reasoning": "Half of ", "reasoning_content": "Half of "},
            {"reasoning": "ten.", "reasoning_content": "ten."},
        ],
        [
            {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "Half of "}]},
            {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "ten."}]},
        ],
        [
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Half of "}]}]},
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "ten."}]}]},
        ],
    ],
)
def test_a_streamed_thought_is_one_thought(pieces, tmp_path):
    chunks = [
        chunk(role="assistant"),
        *[chunk(**one) for one in pieces],
        chunk(content="Five."),
        chunk("stop"),
    ]
    (turn,) = recorded(tmp_path, chunks)[0]["turns"]
    assert turn["thought_process"] == ["Half of ten."]
    assert (turn["action"]["raw_response"], turn["result"]) == ("Five.", {"success": True})


def test_a_streamed_refusal_and_a_streamed_limit_are_no_success(tmp_path):
    (refused,) = recorded(tmp_path, [chunk(refusal="I must "), chunk(refusal="not."), chunk("stop")])[0][
        "turns"
    ]
    assert refused["action"]["refusal"] == "I must not." and refused["result"]["error"].startswith("refused")
    cut = recorded(tmp_path, [chunk(content="The three"), chunk("length")])[-1]["turns"][0]
    assert cut["action"]["finish_reason"] == "length" and cut["result"]["error"].startswith("truncated")


def test_every_choice_is_assembled_by_itself():
    assembly = Assembly()
    for one in (
        chunk(content="a"),
        chunk(index=1, content="b"),
        chunk(content="A"),
        chunk("length", index=1),
    ):
        assembly.add_chunk(one)
    first, second = assembly.completion()["choices"]
    assert (first["index"], first["message"]["content"], first["finish_reason"]) == (0, "aA", None)
    assert (second["index"], second["message"]["content"], second["finish_reason"]) == (1, "b", "length")


def test_legacy_completions_are_assembled():
    parts = [{"choices": [{"index": 0, "text": text, "finish_reason": None}]} for text in ("On", "ce")]
    assert message_of(*parts)["content"] == "Once"


def sse(chunks: list[dict[str, Any]]) -> httpx.Response:
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    lines = [f"data: {json.dumps(head | one)}\n\n" for one in chunks] + ["data: [DONE]\n\n"]
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, content="".join(lines).encode())


def recorded(
    folder: Any, chunks: list[dict[str, Any]], *, asynchronous: bool = False
) -> list[dict[str, Any]]:
    """What the recorder writes of these chunks, through the real client."""
    transport = httpx.MockTransport(lambda request: sse(chunks))
    asked: dict[str, Any] = {
        "model": "m",
        "messages": [{"role": "user", "content": "Tides?"}],
        "stream": True,
    }
    options: dict[str, Any] = {"api_key": "k", "base_url": "http://h/v1", "max_retries": 0}

    async def read(client: openai.AsyncOpenAI) -> None:
        async for _ in await client.chat.completions.create(**asked):
            pass

    with Recorder(folder / "o.db", known_secrets=[]) as recorder:
        if asynchronous:
            http: Any = httpx.AsyncClient(transport=transport)
            asyncio.run(read(wrap_openai(openai.AsyncOpenAI(http_client=http, **options), recorder)))
        else:
            http = httpx.Client(transport=transport)
            sync = openai.OpenAI(http_client=http, **options)
            list(wrap_openai(sync, recorder).chat.completions.create(**asked))
    with sqlite3.connect(folder / "o.db") as connection:
        return [json.loads(body) for (body,) in connection.execute("SELECT body FROM queue ORDER BY seq")]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    "way", ["one index, other ids, whole calls", "no index, ids", "id and name in every piece"]
)
def test_the_real_client_records_both_calls(way, asynchronous, tmp_path):
    chunks = [
        chunk(role="assistant"),
        *[chunk(tool_calls=pieces) for pieces in WAYS[way]],
        chunk("tool_calls"),
    ]
    (trajectory,) = recorded(tmp_path, chunks, asynchronous=asynchronous)
    made = [(turn["action"]["tool_name"], turn["action"]["tool_args"]) for turn in trajectory["turns"]]
    assert made == [("tide", {"port": "Kiel"}), ("tide", {"port": "Brest"})]
