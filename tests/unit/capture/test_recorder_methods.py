"""``wrap_openai``: every method of the real client that gets an answer from a model, in each form in which it
hands the answer out, and calls that the caller cancels."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from chat_server import ChatServer, Reply, calls, completion, text
from pydantic import BaseModel

from onward import Recorder, wrap_openai
from onward.capture.conversations.dialogue import INTERRUPTED, NOT_CHOSEN
from onward.contracts import Trajectory, decode

ASK: Any = [{"role": "user", "content": "A tree?"}]
FORMS = ["plain", "raw", "streaming"]


class Tree(BaseModel):
    name: str


def stored(recorder: Recorder) -> list[Trajectory]:
    with sqlite3.connect(recorder._outbox.path) as connection:
        rows = connection.execute("SELECT body FROM queue ORDER BY seq").fetchall()
    return [decode(body, Trajectory) for (body,) in rows]


@pytest.fixture
def recorder(tmp_path) -> Iterator[Recorder]:
    with Recorder(tmp_path / "outbox.db", known_secrets=[]) as recorder:
        yield recorder


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer(lambda body: text("An oak.")).running() as server:
        yield server


@pytest.fixture
def client(server, recorder) -> Iterator[Any]:
    with openai.OpenAI(base_url=server.url, api_key="k", max_retries=0) as client:
        yield wrap_openai(client, recorder)


@pytest.fixture
def async_client(server, recorder) -> Any:
    return wrap_openai(openai.AsyncOpenAI(base_url=server.url, api_key="k", max_retries=0), recorder)


def the_turn(recorder: Recorder) -> Any:
    ((turn,),) = [trajectory.turns for trajectory in stored(recorder)]
    return turn


def chunk(finish: str | None = None, index: int = 0, **delta: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    return {**head, "choices": [choice]}


def item(said: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": said, "annotations": []}]
    return {"id": "m1", "type": "message", "role": "assistant", "status": "completed", "content": content}


def function_call(city: str) -> dict[str, Any]:
    arguments = f'{{"city": "{city}"}}'
    return {
        "id": "f1",
        "type": "function_call",
        "call_id": "call_1",
        "name": "weather",
        "arguments": arguments,
    }


def response(*output: dict[str, Any], **more: Any) -> dict[str, Any]:
    usage = {
        "input_tokens": 4, "output_tokens": 2, "total_tokens": 6,
        "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip
    return {
        "id": "resp_1", "object": "response", "created_at": 0, "model": "m", "status": "completed",
        "output": list(output), "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
        "usage": usage, **more,
    }  # fmt: skip


def response_events(said: str) -> tuple[dict[str, Any], ...]:
    started = {**item(""), "status": "in_progress", "content": []}
    place = {"output_index": 0, "item_id": "m1", "content_index": 0}
    part = {"type": "output_text", "text": "", "annotations": []}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": response(status="in_progress")},
        {"type": "response.output_item.added", "output_index": 0, "item": started},
        {"type": "response.content_part.added", **place, "part": part},
    ]
    events += [
        {"type": "response.output_text.delta", **place, "delta": piece, "logprobs": []}
        for piece in (said[:3], said[3:])
    ]
    events += [
        {"type": "response.output_item.done", "output_index": 0, "item": item(said)},
        {"type": "response.completed", "response": response(item(said))},
    ]
    return tuple({**event, "sequence_number": number} for number, event in enumerate(events))


# Raw responses


def test_a_raw_response_is_recorded_however_the_caller_reads_it(recorder, client):
    ways = list(itertools.product(("parse", "lines", "bytes", "nothing"), (False, True)))
    for way, streams in ways:
        raw = client.chat.completions.with_raw_response.create(model="m", messages=ASK, stream=streams)
        assert raw.headers["content-type"]
        if way == "parse":
            answer = raw.parse()
            heard = list(answer) if streams else [answer]
            assert heard[0].model == "scripted-1" and raw.parse() is answer
        elif way == "lines":
            list(raw.http_response.iter_lines())
        elif way == "bytes":
            raw.http_response.read()
        else:
            raw.http_response.close()
        client.onward.close()
    check_ways(recorder, [way == "nothing" and streams for way, streams in ways])


def test_a_streaming_response_is_recorded_however_the_caller_reads_it(recorder, client):
    ways = list(itertools.product(("parse", "lines", "json", "nothing"), (False, True)))
    for way, streams in ways:
        create = client.chat.completions.with_streaming_response.create
        with create(model="m", messages=ASK, stream=streams) as raw:
            if way == "parse":
                answer = raw.parse()
                assert (list(answer)[-1] if streams else answer).choices[0].finish_reason == "stop"
            elif way == "lines":
                assert any("stop" in line for line in raw.iter_lines())
            elif way == "json":
                raw.read()
        client.onward.close()
    check_ways(recorder, [way == "nothing" for way, _ in ways])


async def test_raw_responses_of_the_async_client(recorder, async_client):
    ways = list(itertools.product(("parse", "lines"), (False, True)))
    for way, streams in ways:
        await read_raw(async_client.chat.completions, way, streams)
        await read_streaming(async_client.chat.completions, way, streams)
    check_ways(recorder, [False] * 2 * len(ways))


async def read_raw(completions: Any, way: str, streams: bool) -> None:
    raw = await completions.with_raw_response.create(model="m", messages=ASK, stream=streams)
    if way == "lines":
        assert [line async for line in raw.http_response.aiter_lines()]
    elif streams:
        assert [one async for one in raw.parse()]


async def read_streaming(completions: Any, way: str, streams: bool) -> None:
    create = completions.with_streaming_response.create
    async with create(model="m", messages=ASK, stream=streams) as raw:
        if way == "lines":
            assert [line async for line in raw.iter_lines()]
        else:
            answer = await raw.parse()
            assert not streams or [one async for one in answer]


def check_ways(recorder: Recorder, left: list[bool]) -> None:
    """Checks one trajectory for each way; ``left`` says which the caller did not read."""
    turns = [trajectory.turns[0] for trajectory in stored(recorder)]
    assert [turn.action.raw_response or "" for turn in turns] == ["" if one else "An oak." for one in left]
    assert [turn.result.error for turn in turns] == [INTERRUPTED if one else None for one in left]


def test_a_raw_response_of_the_whole_client_is_recorded(recorder, client):
    client.with_raw_response.chat.completions.create(model="m", messages=ASK)
    assert the_turn(recorder).action.raw_response == "An oak."


def test_methods_that_were_looked_up_before_wrapping_are_recorded(recorder, server):
    plain = openai.OpenAI(base_url=server.url, api_key="k", max_retries=0)
    create, raw = plain.chat.completions.create, plain.chat.completions.with_raw_response.create
    wrap_openai(plain, recorder)
    create(model="m", messages=ASK)
    raw(model="m", messages=ASK)
    assert len(stored(recorder)) == 2


def test_a_request_that_is_posted_by_hand_is_recorded(recorder, client):
    answer = client.post("/chat/completions", body={"model": "m", "messages": ASK}, cast_to=object)
    assert answer["choices"][0]["message"]["content"] == "An oak."
    assert the_turn(recorder).action.raw_response == "An oak."


# Further choices


@pytest.mark.parametrize("streams", [False, True])
def test_all_choices_are_recorded(recorder, server, client, streams):
    both = {**completion(text("oak")), "choices": []}
    for index, word in enumerate(("oak", "elm", "ash")):
        both["choices"].append({"index": index, "message": text(word), "finish_reason": "stop"})
    pieces = [chunk(index=i, content=w) for w, i in (("o", 0), ("el", 1), ("ak", 0), ("m", 1), ("ash", 2))]
    ends = [chunk("stop", index=index) for index in range(3)]
    server.script = lambda body: Reply((*pieces, *ends) if streams else (both,))
    answer = client.chat.completions.create(model="m", messages=ASK, n=3, stream=streams)
    if streams:
        list(answer)
    action = the_turn(recorder).action
    others = action.model_dump()["other_choices"]
    assert [action.raw_response, *(one["raw_response"] for one in others)] == ["oak", "elm", "ash"]


def test_choices_of_a_completion_that_is_recorded_by_hand_are_kept(recorder):
    document = completion(text("oak"))
    document["choices"].append({"index": 1, "message": text("elm"), "finish_reason": "stop"})
    with recorder.task("A tree?") as task:
        task.turn(observation="A tree?", action=document)
    assert the_turn(recorder).action.model_dump()["other_choices"][0]["raw_response"] == "elm"


def test_results_of_another_choices_calls_are_not_given_to_the_first_choices_calls(recorder, server, client):
    first, second = (calls((f"id-{city}", "weather", {"city": city})) for city in ("Rome", "Oslo"))
    document = completion(first)
    document["choices"].append({"index": 1, "message": second, "finish_reason": "tool_calls"})
    server.script = lambda body: Reply((document,)) if len(body["messages"]) == 1 else text("Cold.")
    client.chat.completions.create(model="m", messages=ASK, n=2)
    told = {"role": "tool", "tool_call_id": "id-Oslo", "content": "snow"}
    client.chat.completions.create(model="m", messages=[*ASK, second, told])
    (trajectory,) = stored(recorder)
    rome, answer = trajectory.turns
    assert (rome.action.tool_args, rome.result.output, rome.result.error) == (
        {"city": "Rome"},
        None,
        NOT_CHOSEN,
    )
    assert rome.action.model_dump()["other_choices"][0]["tool_args"] == {"city": "Oslo"}
    assert "snow" in str(answer.observation.content) and answer.action.raw_response == "Cold."


# Other methods


def test_beta_and_parsing_methods_are_recorded(recorder, server, client):
    server.script = lambda body: text('{"name": "oak"}')
    for completions in (client.chat.completions, client.beta.chat.completions):
        parsed = completions.parse(model="m", messages=ASK, response_format=Tree)
        assert parsed.choices[0].message.parsed == Tree(name="oak")
        with completions.stream(model="m", messages=ASK, response_format=Tree) as stream:
            assert stream.get_final_completion().choices[0].message.parsed == Tree(name="oak")
    assert [one.turns[0].action.raw_response for one in stored(recorder)] == ['{"name": "oak"}'] * 4


def test_an_answer_that_the_client_cannot_parse_is_kept_with_its_error(recorder, server, client):
    document = completion(text('{"name": "o'))
    document["choices"][0]["finish_reason"] = "length"
    server.script = lambda body: Reply((document,))
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model="m", messages=ASK, response_format=Tree)
    client.close()
    turn = the_turn(recorder)
    assert turn.action.raw_response == '{"name": "o'
    assert not turn.result.success and turn.result.error.startswith("LengthFinishReasonError")


def test_legacy_completions_are_recorded(recorder, server, client):
    def document(said: str, finish: str | None) -> dict[str, Any]:
        choice = {"index": 0, "text": said, "finish_reason": finish, "logprobs": None}
        return {"id": "c", "object": "text_completion", "created": 0, "model": "m", "choices": [choice]}

    pieces = (document("An ", None), document("oak.", None), document("", "stop"))
    whole = (document("An oak.", "stop"),)
    server.script = lambda body: Reply(pieces if body["stream"] else whole)
    for form, streams in itertools.product(FORMS, (False, True)):
        read(client.completions, form, {"model": "m", "prompt": "A tree:", "stream": streams})
    turns = [trajectory.turns[0] for trajectory in stored(recorder)]
    told = [(turn.observation.content, turn.action.raw_response) for turn in turns]
    assert told == [("A tree:", "An oak.")] * 6


def test_a_prompt_of_token_ids_is_not_recorded_as_numbers(recorder, server, client):
    choice = {"index": 0, "text": "oak", "finish_reason": "stop", "logprobs": None}
    head = {"id": "c", "object": "text_completion", "created": 0, "model": "m"}
    server.script = lambda body: Reply(({**head, "choices": [choice]},))
    client.completions.create(model="m", prompt=[[464, 3797]])
    assert "464" not in stored(recorder)[0].model_dump_json(include={"turns"})


def read(resource: Any, form: str, given: dict[str, Any]) -> None:
    """Calls ``create`` in one of the client's three forms and reads the whole answer."""
    if form == "plain":
        answer = resource.create(**given)
    elif form == "raw":
        answer = resource.with_raw_response.create(**given).parse()
    else:
        with resource.with_streaming_response.create(**given) as raw:
            for _ in raw.iter_lines():
                pass
        return
    if given["stream"]:
        list(answer)


def test_responses_are_recorded(recorder, server, client):
    whole = (response(item("An oak.")),)
    server.script = lambda body: Reply(response_events("An oak.") if body["stream"] else whole)
    for form, streams in itertools.product(FORMS, (False, True)):
        given = {"model": "m", "input": "A tree?", "instructions": "Be brief.", "stream": streams}
        read(client.responses, form, given)
    found = stored(recorder)
    assert len(found) == 6
    for trajectory in found:
        (turn,) = trajectory.turns
        assert turn.observation.content == {"messages": [{"role": "system", "content": "Be brief."}, *ASK]}
        assert (turn.action.raw_response, turn.result.success) == ("An oak.", True)
        metadata = trajectory.metadata.model_dump()
        assert (metadata["model"], metadata["total_tokens"]) == ("m", 6)


def test_parsed_and_streamed_responses_are_recorded_once(recorder, server, client):
    said = '{"name": "oak"}'
    server.script = lambda body: Reply(
        response_events(said) if body.get("stream") else (response(item(said)),)
    )
    parsed = client.responses.parse(model="m", input="A tree?", text_format=Tree)
    assert parsed.output_parsed == Tree(name="oak")
    with client.responses.stream(model="m", input="A tree?", text_format=Tree) as stream:
        assert stream.get_final_response().output_parsed == Tree(name="oak")
    assert [one.turns[0].action.raw_response for one in stored(recorder)] == [said] * 2


@pytest.mark.parametrize("how", ["by id", "by conversation", "repeated"])
def test_a_task_of_several_responses_is_one_trajectory(recorder, server, client, how):
    tools = [{"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}]
    reasoning = {"id": "r1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "Look."}]}
    first = response(reasoning, function_call("Rome"), conversation={"id": "conv_1"})
    told = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}

    def script(body: dict[str, Any]) -> Reply:
        is_second = any(one.get("type") == "function_call_output" for one in body["input"])
        return Reply((response(item("Sunny."), id="resp_2") if is_second else first,))

    server.script = script
    common: dict[str, Any] = {"model": "m", "tools": tools, "instructions": "Be brief."}
    begun: dict[str, Any] = {"conversation": "conv_1"} if how == "by conversation" else {}
    question = {"role": "user", "content": "Weather in Rome?"}
    answer = client.responses.create(input=[question], **begun, **common)
    given: list[Any] = [told] if how != "repeated" else [question, *answer.output, told]
    more = {"previous_response_id": answer.id} if how == "by id" else begun
    client.responses.create(input=given, **more, **common)
    (trajectory,) = stored(recorder)
    call, final = trajectory.turns
    assert (call.action.tool_name, call.action.tool_args) == ("weather", {"city": "Rome"})
    context = call.observation.context
    assert context is not None and context.available_tools == ["weather"]
    assert call.result.output == "sunny"
    assert (final.observation.type, final.observation.content) == ("tool_result", "sunny")
    assert final.action.raw_response == "Sunny."


def test_a_next_question_by_response_id_is_a_new_task_in_the_same_session(recorder, server, client):
    server.script = lambda body: Reply((response(item("Yes."), id=f"resp_{len(server.requests)}"),))
    first = client.responses.create(model="m", input="One?")
    client.responses.create(model="m", input="Two?", previous_response_id=first.id)
    client.responses.create(model="m", input="Other?")
    one, two, other = stored(recorder)
    assert one.session_id == two.session_id != other.session_id
    assert two.turns[0].observation.content == "Two?"


def test_a_response_that_failed_is_recorded_as_failed(recorder, server, client):
    error = {"code": "server_error", "message": "overloaded"}
    server.script = lambda body: Reply((response(status="failed", error=error),))
    client.responses.create(model="m", input="A tree?")
    client.close()
    (trajectory,) = stored(recorder)
    result = trajectory.turns[0].result
    assert not result.success and str(result.error).endswith("server_error: overloaded")
    assert trajectory.metadata.outcome is not None and trajectory.metadata.outcome.status == "failed"


def test_a_response_in_the_background_is_recorded_when_it_is_fetched(recorder, server, client):
    server.script = lambda body: Reply((response(status="queued"),))
    pending = client.responses.create(model="m", input="A tree?", background=True)
    server.fetched = [response(status="in_progress"), 503, response(item("An oak."))]
    assert client.responses.retrieve(pending.id).status == "in_progress"
    with pytest.raises(openai.InternalServerError):
        client.responses.retrieve(pending.id)
    assert stored(recorder) == []
    assert client.responses.retrieve(pending.id).output_text == "An oak."
    assert the_turn(recorder).action.raw_response == "An oak."


def test_work_of_the_server_beside_an_answer_is_kept(recorder, server, client):
    search = {"id": "ws_1", "type": "web_search_call", "status": "completed"}
    search |= {"action": {"type": "search", "query": "trees"}}
    server.script = lambda body: Reply((response(search, item("An oak.")),))
    client.responses.create(model="m", input="A tree?", tools=[{"type": "web_search"}])
    turn = the_turn(recorder)
    assert turn.action.raw_response == "An oak."
    assert turn.action.model_dump()["other_parts"][0]["action"]["query"] == "trees"


def test_a_method_that_is_not_recorded_is_reported_once(recorder, server, client, caplog):
    server.script = lambda body: Reply(({"object": "list", "model": "m", "data": [], "usage": {}},))
    for _ in range(2):
        client.embeddings.create(model="m", input="oak", encoding_format="float")
    lines = [record.getMessage() for record in caplog.records if "not recorded" in record.getMessage()]
    assert len(lines) == 1 and "/embeddings" in lines[0]
    assert stored(recorder) == []


# Calls that the caller cancels


def held(*words: str) -> tuple[Reply, threading.Event]:
    """A stream whose end is held back."""
    release = threading.Event()
    return Reply((*(chunk(content=word) for word in words), chunk("stop")), release), release


async def test_a_cancelled_call_is_recorded_as_cancelled_and_the_cancellation_goes_on(
    recorder, server, async_client
):
    release, arrived = threading.Event(), threading.Event()

    def script(body: dict[str, Any]) -> Reply:
        arrived.set()
        return Reply((completion(text("late")),), release)

    server.script = script
    call = asyncio.create_task(async_client.chat.completions.create(model="m", messages=ASK))
    assert await asyncio.to_thread(arrived.wait, 10)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    release.set()
    await async_client.close()
    (trajectory,) = stored(recorder)
    result = trajectory.turns[0].result
    assert (result.success, result.error) == (False, INTERRUPTED)
    assert trajectory.metadata.outcome is not None and trajectory.metadata.outcome.status == "abandoned"


@pytest.mark.parametrize("form", ["create", "raw", "helper"])
async def test_a_cancelled_stream_keeps_what_had_arrived(recorder, server, async_client, form):
    reply, release = held("An ", "oak")
    server.script = lambda body: reply
    heard = asyncio.Event()
    completions = async_client.chat.completions

    async def listen() -> None:
        stream: Any = None
        if form == "create":
            stream = await completions.create(model="m", messages=ASK, stream=True)
        elif form == "raw":
            stream = (
                await completions.with_raw_response.create(model="m", messages=ASK, stream=True)
            ).parse()
        if form == "helper":
            async with completions.stream(model="m", messages=ASK) as events:
                async for event in events:
                    if event.type == "content.delta" and event.snapshot == "An oak":
                        heard.set()
            return
        async for one in stream:
            if one.choices[0].delta.content == "oak":
                heard.set()

    listening = asyncio.create_task(listen())
    await asyncio.wait_for(heard.wait(), 10)
    listening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await listening
    release.set()
    await async_client.close()
    turn = the_turn(recorder)
    assert (turn.action.raw_response, turn.result.error) == ("An oak", INTERRUPTED)


@pytest.mark.parametrize("form", ["create", "raw", "helper", "responses"])
def test_a_stream_that_is_closed_half_way_is_recorded_at_once(recorder, server, client, form):
    reply, release = held("An ", "oak")
    if form == "responses":
        reply = Reply((*response_events("An oak")[:5], {"type": "response.completed"}), release)
    server.script = lambda body: reply
    completions = client.chat.completions
    if form == "responses":
        stream = client.responses.create(model="m", input="A tree?", stream=True)
        [next(stream) for _ in range(5)]
    elif form == "helper":
        manager = completions.stream(model="m", messages=ASK)
        stream = manager.__enter__()
        while getattr(next(stream), "snapshot", None) != "An oak":
            pass
    else:
        create = completions.create if form == "create" else completions.with_raw_response.create
        stream = create(model="m", messages=ASK, stream=True)
        stream = stream if form == "create" else stream.parse()
        [next(stream) for _ in range(2)]
    stream.close()
    assert not client.onward._open[0].busy, "while the caller still holds the stream"
    release.set()
    client.close()
    turn = the_turn(recorder)
    assert (turn.action.raw_response, turn.result.error) == ("An oak", INTERRUPTED)


async def test_a_stream_that_is_left_within_a_block_is_a_turn_of_its_task(
    recorder, server, client, async_client
):
    server.script = lambda body: text("An oak and an elm.")
    with recorder.task("Trees"):
        stream = client.chat.completions.create(model="m", messages=ASK, stream=True)
        [next(stream) for _ in range(3)]
        later = await async_client.chat.completions.create(model="m", messages=ASK, stream=True)
        async for one in later:
            if one.choices[0].delta.content:
                break
    del stream, later, one
    (trajectory,) = stored(recorder)
    told = [(turn.action.raw_response, turn.result.error) for turn in trajectory.turns]
    assert told == [("An oak", INTERRUPTED), ("An ", INTERRUPTED)]


def test_a_stream_that_is_left_after_its_last_word_is_a_whole_answer(recorder, server, client):
    stream = client.chat.completions.create(model="m", messages=ASK, stream=True)
    for one in stream:
        if one.choices[0].finish_reason:
            break
    stream.close()
    turn = the_turn(recorder)
    assert (turn.action.raw_response, turn.result.success) == ("An oak.", True)


def test_a_call_that_is_interrupted_from_the_keyboard_is_recorded_as_cancelled(recorder, server, client):
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    client._client.send = interrupted
    with pytest.raises(KeyboardInterrupt):
        client.chat.completions.create(model="m", messages=ASK)
    client.close()
    assert the_turn(recorder).result.error == INTERRUPTED


# The agent notices nothing


def test_an_answer_of_an_unknown_form_reaches_the_agent_and_is_reported(recorder, server, client, caplog):
    bodies: list[Any] = [{"choices": []}, {"choices": None}, {"object": "x"}, {"choices": [{"index": 0}]}]
    for body in bodies:
        caplog.clear()
        server.script = lambda _, body=body: Reply((body,))
        answer = client.chat.completions.create(model="m", messages=ASK)
        assert type(answer).__name__ == "ChatCompletion"
        assert "not recorded" in caplog.text
        client.onward.close()
    turns = [trajectory.turns[0] for trajectory in stored(recorder)]
    assert [turn.result.success for turn in turns] == [False] * 4, "requests without an answer"


def test_an_answer_that_is_no_document_is_reported_and_recorded_as_failed(recorder, server, client, caplog):
    server.script = lambda _: Reply(("<html>",))  # type: ignore[arg-type]
    assert "html" in client.chat.completions.create(model="m", messages=ASK)
    client.chat.completions.with_raw_response.create(model="m", messages=ASK)
    with client.chat.completions.with_streaming_response.create(model="m", messages=ASK) as raw:
        raw.read()
    client.close()
    assert caplog.text.count("a call or task was not recorded") == 3
    outcomes = [trajectory.metadata.outcome for trajectory in stored(recorder)]
    assert outcomes and all(outcome is not None and outcome.status == "failed" for outcome in outcomes)


def test_a_recorder_that_fails_inside_a_stream_does_not_reach_the_agent(client, monkeypatch):
    from onward.capture.conversations.assembly import Assembly

    def broken(*_: Any) -> Any:
        raise RuntimeError("bug")

    monkeypatch.setattr(Assembly, "add_chunk", broken)
    monkeypatch.setattr(Assembly, "completion", broken)
    stream = client.chat.completions.create(model="m", messages=ASK, stream=True)
    assert "".join(one.choices[0].delta.content or "" for one in stream) == "An oak."
