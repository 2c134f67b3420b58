"""``wrap_openai`` with the real client against a scripted server: what is recorded, and that nothing else
changes."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from datetime import UTC, datetime
from typing import Any

import openai
import pytest
from chat_server import ChatServer, calls, completion, text

from onward import Recorder, wrap_openai
from onward.capture.clients.matching import Chats
from onward.capture.conversations.dialogue import INTERRUPTED
from onward.capture.opt_out import user_hash
from onward.clock import ManualClock
from onward.contracts import Trajectory, decode
from onward.errors import ConfigError, ContractError, OutboxFullError
from onward.ids import is_id

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("weather", "time")
]
ASK = {"role": "user", "content": "Weather and time in Rome?"}
BOTH = calls(("call_1", "weather", {"city": "Rome"}), ("call_2", "time", {"city": "Rome"}))
RESULTS = [
    {"role": "tool", "tool_call_id": "call_2", "content": "12:30"},
    {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
]


def agent_script(body: dict[str, Any]) -> dict[str, Any]:
    return text("Sunny, 12:30.") if body["messages"][-1]["role"] == "tool" else BOTH


def stored(recorder: Recorder) -> list[Trajectory]:
    with sqlite3.connect(recorder._outbox.path) as connection:
        rows = connection.execute("SELECT body FROM queue ORDER BY seq").fetchall()
    return [decode(body, Trajectory) for (body,) in rows]


@pytest.fixture
def recorder(tmp_path):
    with Recorder(tmp_path / "outbox.db", agent_id="a1", known_secrets=[]) as recorder:
        yield recorder


@pytest.fixture
def server():
    with ChatServer(agent_script).running() as server:
        yield server


def client_of(server: ChatServer, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url, api_key="none-needed", max_retries=0, **options)


def async_client_of(server: ChatServer) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=server.url, api_key="none-needed", max_retries=0)


def run_agent(client: openai.OpenAI, **given: Any) -> str:
    """A plain agent: ask, run the tools, ask again. It knows nothing of recording."""
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, ASK]
    while True:
        answer = client.chat.completions.create(model="m", messages=messages, tools=TOOLS, **given)  # type: ignore
        message = answer.choices[0].message
        if not message.tool_calls:
            return message.content
        messages += [message, *RESULTS]


def check_the_task(trajectory: Trajectory) -> None:
    weather, time, answer = trajectory.turns
    assert trajectory.task_context.instructions == ASK["content"]
    assert [turn.turn_id for turn in trajectory.turns] == [1, 2, 3]
    assert weather.observation.content == {"messages": [{"role": "system", "content": "Be brief."}, ASK]}
    context = weather.observation.context
    assert context is not None and context.available_tools == ["weather", "time"]
    assert (weather.action.type, weather.action.tool_name) == ("tool_call", "weather")
    assert weather.action.tool_args == {"city": "Rome"}
    assert (weather.result.success, weather.result.output) == (True, "sunny")
    assert (time.action.tool_name, time.action.tool_args, time.result.output) == (
        "time",
        {"city": "Rome"},
        "12:30",
    )
    assert time.observation.content == {"same_as_turn": 1}
    assert answer.observation.type == "tool_result"
    assert answer.observation.content == {"messages": RESULTS}
    assert (answer.action.type, answer.action.raw_response) == ("response", "Sunny, 12:30.")
    assert answer.result.success is True
    metadata = trajectory.metadata.model_dump()
    assert (metadata["model"], metadata["total_tokens"]) == ("scripted-1", 20)
    assert metadata["capture"] == {"source": "openai_client", "closed": "answer"}


def test_a_whole_task_with_parallel_tool_calls_is_one_trajectory(recorder, server):
    assert run_agent(wrap_openai(client_of(server), recorder)) == "Sunny, 12:30."
    (trajectory,) = stored(recorder)
    check_the_task(trajectory)


def test_the_wrapped_client_sends_and_gives_what_a_plain_one_does(recorder, server):
    plain = client_of(server).chat.completions.create(model="m", messages=[ASK], tools=TOOLS)
    wrapped = wrap_openai(client_of(server), recorder).chat.completions.create(
        model="m", messages=[ASK], tools=TOOLS
    )
    assert type(wrapped) is type(plain) and wrapped == plain
    assert server.requests[0] == server.requests[1]
    # but for two headers: our gateway must not record what is recorded here, and counts by session
    more = server.headers[1].keys() - server.headers[0].keys()
    assert (more, server.headers[1]["onward-capture"]) == ({"onward-capture", "onward-session"}, "off")


def test_the_gateway_is_told_the_session_that_is_recorded(recorder, server):
    client = wrap_openai(client_of(server), recorder)
    run_agent(client)
    run_agent(client, user="by-user")
    with recorder.task("x", session_id="mine"):
        run_agent(client)
    told = [headers.get("onward-session") for headers in server.headers]
    assert told == [t.session_id for t in stored(recorder) for _ in range(2)]
    assert stored(recorder)[2].session_id == "mine"


USERS = ["anna." + "meier@siemens.com", "Alice Smith", "by-user"]


@pytest.mark.parametrize("user", USERS)
def test_a_user_is_recorded_nowhere_and_the_gateway_is_told_the_session_that_is(tmp_path, server, user):
    path = tmp_path / "o.db"
    with Recorder(path, known_secrets=[], user_key="k" * 32) as recorder:
        client = wrap_openai(client_of(server), recorder)
        for _ in range(2):
            run_agent(client, user=user)
        run_agent(client, user="somebody else")
        with recorder.task("x", session_id="mine"):
            run_agent(client, user=user)
        with recorder.task("x", user="told by the task"):
            run_agent(client, user=user, extra_headers={"Onward-Session": "by-header"})
        first, second, other, within, described = stored(recorder)
    told = [headers["onward-session"] for headers in server.headers]
    assert told == [t.session_id for t in (first, second, other, within, described) for _ in range(2)]
    assert first.session_id == second.session_id != other.session_id
    assert all(is_id(session) for session in told)
    assert (within.session_id, described.session_id) == ("mine", "by-header")
    hashes = [t.metadata.model_dump()["user_hash"] for t in (first, second, within)]
    assert hashes == [user_hash(user, "k" * 32)] * 3
    assert described.metadata.model_dump()["user_hash"] == user_hash("told by the task", "k" * 32)
    assert not any(user.encode() in file.read_bytes() for file in tmp_path.glob("o.db*"))
    with Recorder(tmp_path / "later.db", known_secrets=[], user_key="k" * 32) as later:
        run_agent(wrap_openai(client_of(server), later), user=user)
        assert stored(later)[0].session_id == first.session_id


@pytest.mark.parametrize("user", USERS)
def test_without_a_key_a_user_has_one_session_for_each_recorder_and_no_hash(recorder, server, user):
    client = wrap_openai(client_of(server), recorder)
    for _ in range(2):
        run_agent(client, user=user)
    first, second = stored(recorder)
    assert first.session_id == second.session_id == server.headers[0]["onward-session"]
    assert user not in first.model_dump_json() and "user_hash" not in first.metadata.model_dump()


def test_a_user_whom_a_pattern_names_is_dropped(tmp_path, server):
    with Recorder(tmp_path / "o.db", known_secrets=[], opt_out="session:by-*, Alice*") as recorder:
        client = wrap_openai(client_of(server), recorder)
        for user in USERS:
            run_agent(client, user=user)
        assert (recorder.stats().opted_out, recorder.stats().recorded) == (2, 1)


def test_a_session_that_no_header_can_carry_is_refused(recorder, server):
    with pytest.raises(ContractError, match="session_id 'Alice Smith'"):
        wrap_openai(client_of(server), recorder, session_id="Alice Smith")


@pytest.mark.parametrize("how", ["for", "with", "next"])
def test_streams_are_put_together_and_reach_the_caller_unchanged(recorder, server, how):
    client, seen = wrap_openai(client_of(server), recorder), []
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, ASK]
    for number in range(2):
        stream = client.chat.completions.create(model="m", messages=messages, tools=TOOLS, stream=True)
        assert type(stream) is openai.Stream
        if how == "for":
            chunks = list(stream)
        elif how == "with":
            with stream as inside:
                chunks = list(inside)
        else:
            chunks = []
            while (chunk := next(stream, None)) is not None:
                chunks.append(chunk)
        seen.append("".join(c.choices[0].delta.content or "" for c in chunks))
        if number == 0:
            messages += [BOTH, *RESULTS]
    assert seen == ["", "Sunny, 12:30."]
    (trajectory,) = stored(recorder)
    check_the_task(trajectory)


async def test_the_async_client_streaming_or_not(recorder, server):
    client = wrap_openai(async_client_of(server), recorder)
    for streaming in (False, True):
        messages: list[Any] = [{"role": "system", "content": "Be brief."}, ASK]
        for number in range(2):
            answer: Any = await client.chat.completions.create(
                model="m", messages=messages, tools=TOOLS, stream=streaming
            )
            if streaming:
                assert type(answer) is openai.AsyncStream
                assert [chunk async for chunk in answer]
            if number == 0:
                messages += [BOTH, *RESULTS]
    await client.close()
    first, second = stored(recorder)
    check_the_task(first)
    check_the_task(second)


def test_one_answer_without_tools_is_a_task_of_one_turn(recorder, server):
    server.script = lambda body: text("Paris.")
    client = wrap_openai(client_of(server), recorder)
    client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Capital of France?"}])
    (trajectory,) = stored(recorder)
    (turn,) = trajectory.turns
    assert (turn.observation.type, turn.observation.content) == ("user_message", "Capital of France?")
    assert turn.action.raw_response == "Paris."


def test_a_conversation_that_goes_on_is_a_new_task_in_the_same_session(recorder, server):
    server.script = lambda body: text(f"answer {len(body['messages'])}")
    client = wrap_openai(client_of(server), recorder)
    messages: list[Any] = [{"role": "user", "content": "one"}]
    for word in ("two", "three"):
        said = client.chat.completions.create(model="m", messages=messages).choices[0].message
        messages += [{"role": "assistant", "content": said.content}, {"role": "user", "content": word}]
    client.chat.completions.create(model="m", messages=[{"role": "user", "content": "other"}])
    first, second, other = stored(recorder)
    assert (first.task_context.instructions, second.task_context.instructions) == ("one", "two")
    assert first.session_id == second.session_id != other.session_id


@pytest.mark.parametrize(
    "given,expected",
    [
        ({"extra_headers": {"Onward-Session": "by-header"}, "user": "u"}, "by-header"),
        ({"user": "by-user"}, None),
        ({}, "by-default"),
    ],
)
def test_the_session_is_that_of_header_then_user_then_own(recorder, server, given, expected):
    run_agent(wrap_openai(client_of(server), recorder, session_id="by-default"), **given)
    assert stored(recorder)[0].session_id == (expected or recorder.session_of("by-user"))


def test_a_default_header_of_the_client_names_the_session(recorder, server):
    run_agent(wrap_openai(client_of(server, default_headers={"Onward-Session": "all"}), recorder))
    assert stored(recorder)[0].session_id == "all"


def test_a_shortened_history_is_recognised_by_the_ids_of_its_calls(recorder, server):
    client = wrap_openai(client_of(server), recorder)
    long: list[Any] = [{"role": "system", "content": "old words"}, ASK]
    client.chat.completions.create(model="m", messages=long, tools=TOOLS)
    client.chat.completions.create(model="m", messages=[ASK, BOTH, *RESULTS], tools=TOOLS)
    (trajectory,) = stored(recorder)
    assert [turn.result.output for turn in trajectory.turns] == ["sunny", "12:30", None]


def test_an_error_reaches_the_caller_and_the_repeated_call_goes_on_with_the_task(recorder, server):
    answers: list[Any] = [500, text("now it works")]
    server.script = lambda body: answers.pop(0)
    client = wrap_openai(client_of(server), recorder)
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="m", messages=[ASK])
    client.chat.completions.create(model="m", messages=[ASK])
    (trajectory,) = stored(recorder)
    failed, worked = trajectory.turns
    assert failed.result.success is False and str(failed.result.error).startswith("InternalServerError")
    assert worked.action.raw_response == "now it works"


def test_a_task_whose_last_call_failed_is_closed_as_failed(recorder, server):
    server.script = lambda body: 500
    client = wrap_openai(client_of(server), recorder)
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="m", messages=[ASK])
    client.close()
    (trajectory,) = stored(recorder)
    assert trajectory.metadata.outcome is not None and trajectory.metadata.outcome.status == "failed"


def test_a_stream_that_the_caller_leaves_keeps_what_came(recorder, server):
    server.script = lambda body: text("abcdefghi")
    client = wrap_openai(client_of(server), recorder)
    stream = client.chat.completions.create(model="m", messages=[ASK], stream=True)
    for chunk in stream:
        if chunk.choices[0].delta.content == "def":
            break
    del stream, chunk
    client.close()
    (trajectory,) = stored(recorder)
    (turn,) = trajectory.turns
    assert turn.action.raw_response == "abcdef"
    assert (turn.result.success, turn.result.error) == (False, INTERRUPTED)


def test_calls_without_a_result_say_so_when_the_client_is_closed(recorder, server):
    with wrap_openai(client_of(server), recorder) as client:
        client.chat.completions.create(model="m", messages=[ASK], tools=TOOLS)
        assert recorder.pending() == 0
    (trajectory,) = stored(recorder)
    assert [turn.result.error for turn in trajectory.turns] == [
        "no result was reported before the task was closed"
    ] * 2
    assert trajectory.metadata.outcome is not None and trajectory.metadata.outcome.status == "abandoned"


def test_the_end_of_the_recorder_records_what_is_open(tmp_path, server):
    recorder = Recorder(tmp_path / "o.db", known_secrets=[])
    client = wrap_openai(client_of(server), recorder)
    client.chat.completions.create(model="m", messages=[ASK], tools=TOOLS)
    recorder.close()
    assert len(stored(recorder)) == 1


def test_an_answer_that_comes_while_its_task_is_closed_is_no_interruption(recorder):
    chats = Chats(recorder, source="test")
    call = chats.begin([ASK], None, None)
    answer = {"choices": [{"message": {"role": "assistant", "content": "High at six."}}]}
    call.so_far = lambda: call.add_answer(answer)
    chats.close()
    (trajectory,) = stored(recorder)
    assert [turn.action.raw_response for turn in trajectory.turns] == ["High at six."]
    assert trajectory.turns[0].result.success


def test_a_task_is_recorded_when_its_stream_cannot_be_read_at_its_end(recorder):
    chats = Chats(recorder, source="test")
    first = chats.begin([ASK], None, None)
    call = {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    first.add_answer({"choices": [{"message": message}]})
    second = chats.begin([ASK, message, {**RESULTS[1], "tool_call_id": "t1"}], None, None)

    def broken() -> None:
        raise ValueError("no chunk")

    second.so_far = broken
    chats.close()
    (trajectory,) = stored(recorder)
    assert [turn.action.tool_name for turn in trajectory.turns] == ["weather"]


def test_a_silent_task_is_closed_after_the_idle_limit(tmp_path, server):
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    with Recorder(tmp_path / "o.db", known_secrets=[], clock=clock) as recorder:
        client: Any = wrap_openai(client_of(server), recorder, idle_seconds=60)
        client.chat.completions.create(model="m", messages=[ASK], tools=TOOLS)
        asyncio.run(clock.advance(59))
        client.onward.sweep()
        assert recorder.pending() == 0
        asyncio.run(clock.advance(2))
        client.onward.sweep()
        (trajectory,) = stored(recorder)
    assert trajectory.metadata.model_dump()["capture"]["closed"] == "idle"


def test_within_a_task_the_calls_are_its_turns(recorder, server):
    client = wrap_openai(client_of(server), recorder)
    with recorder.task("Tell me about Rome", task_id="t9", task_type="chat") as task:
        run_agent(client)
        run_agent(client)
        task.outcome("completed_successfully")
    run_agent(client)
    own, other = stored(recorder)
    assert (own.task_context.task_id, own.task_context.instructions) == ("t9", "Tell me about Rome")
    assert [turn.action.type for turn in own.turns] == ["tool_call", "tool_call", "response"] * 2
    assert own.turns[4].observation.content == {"same_as_turn": 4}
    assert own.metadata.outcome is not None and own.metadata.outcome.status == "completed_successfully"
    check_the_task(other)


def test_a_copy_of_the_client_records_and_wrapping_twice_changes_nothing(recorder, server):
    client = wrap_openai(wrap_openai(client_of(server), recorder), recorder)
    run_agent(client.with_options(timeout=5))
    assert len(stored(recorder)) == 1


def test_raw_responses_and_parsed_ones_are_recorded(recorder, server):
    server.script = lambda body: text('{"a": 1}')
    client = wrap_openai(client_of(server), recorder)
    raw = client.chat.completions.with_raw_response.create(model="m", messages=[ASK])
    assert raw.parse().choices[0].message.content == '{"a": 1}'
    parsed = client.chat.completions.parse(model="m", messages=[ASK])
    assert parsed.choices[0].message.content == '{"a": 1}'
    with client.chat.completions.stream(model="m", messages=[ASK]) as stream:
        assert stream.get_final_completion().choices[0].message.content == '{"a": 1}'
    assert [t.turns[0].action.raw_response for t in stored(recorder)] == ['{"a": 1}'] * 3


def test_messages_from_a_generator_are_sent_and_recorded(recorder, server):
    client = wrap_openai(client_of(server), recorder)
    client.chat.completions.create(model="m", messages=(m for m in [ASK]), tools=TOOLS)  # type: ignore[arg-type]
    assert server.requests[0]["messages"] == [ASK]


def test_a_broken_recorder_is_logged_and_does_not_reach_the_agent(tmp_path, server, caplog):
    with Recorder(tmp_path / "o.db", known_secrets=[], max_bytes=1) as recorder:
        client = wrap_openai(client_of(server), recorder)
        assert run_agent(client) == "Sunny, 12:30."
        assert recorder.stats().failed == 1
    assert "was not recorded" in caplog.text


def test_a_broken_recorder_is_heard_where_that_is_asked_for(tmp_path, server):
    with Recorder(tmp_path / "o.db", known_secrets=[], max_bytes=1) as recorder:
        client = wrap_openai(client_of(server), recorder, errors="raise")
        with pytest.raises(OutboxFullError):
            run_agent(client)


def test_secrets_in_tool_results_are_gone(recorder, server):
    secret = "ghp_" + "aB3dE5fG7hJ9" * 3
    client = wrap_openai(client_of(server), recorder)
    client.chat.completions.create(model="m", messages=[ASK], tools=TOOLS)
    leaked = [{**RESULTS[0], "content": f"key {secret}"}, RESULTS[1]]
    client.chat.completions.create(model="m", messages=[ASK, BOTH, *leaked], tools=TOOLS)  # type: ignore[list-item]
    (trajectory,) = stored(recorder)
    assert secret not in trajectory.model_dump_json()
    assert trajectory.turns[1].result.output == "key <GITHUB_TOKEN:1>"


def test_a_tool_call_written_as_text_gets_the_next_message_as_its_result(recorder, server):
    written = json.dumps({"tool_name": "weather", "tool_args": {"city": "Rome"}})
    server.script = lambda body: text("done" if len(body["messages"]) > 1 else written)
    client = wrap_openai(client_of(server), recorder)
    client.chat.completions.create(model="m", messages=[ASK])
    told = {"role": "user", "content": "tool says sunny"}
    client.chat.completions.create(model="m", messages=[ASK, text(written), told])  # type: ignore[list-item]
    (trajectory,) = stored(recorder)
    first, last = trajectory.turns
    assert (first.action.tool_name, first.result.output) == ("weather", "tool says sunny")
    assert last.action.raw_response == "done"


def test_the_gateways_record_is_taken_from_answers_and_streams(recorder, server):
    sampling = {
        "generation_id": "g1", "continues": None, "prompt_ids": [1], "token_ids": [2], "logprobs": [-0.5],
        "temperature": 1.0, "top_p": 1.0, "top_k": None, "finish_reason": "stop", "model_digest": "d",
    }  # fmt: skip
    ours = {"session_id": "gw", "release": None, "sampling": sampling}
    document = {**completion(text("hi")), "onward": ours}
    from onward.capture.conversations.assembly import Assembly

    assembly = Assembly()
    for delta, more in (({"content": "h"}, {}), ({"content": "i"}, {"onward": ours})):
        assembly.add_chunk({"model": "m", "choices": [{"index": 0, "delta": delta}], **more})
    chats: Any = wrap_openai(client_of(server), recorder)
    for whole in (document, assembly.completion()):
        chats.onward.begin([ASK], None, None).add_answer(whole)
    for trajectory in stored(recorder):
        taken = trajectory.turns[0].action.sampling
        assert taken is not None and taken.token_ids == [2]
        assert trajectory.session_id == "gw", "of a gateway that was told none"


def test_many_threads_share_a_client_and_get_their_own_trajectories(recorder, server):
    def script(body: dict[str, Any]) -> dict[str, Any]:
        name = body["messages"][0]["content"]
        if body["messages"][-1]["role"] == "tool":
            return text(f"done {name}")
        return calls((f"id-{name}", "weather", {"name": name}))

    server.script = script
    client = wrap_openai(client_of(server), recorder)

    def work(thread: int) -> None:
        for number in range(5):
            name = f"{thread}-{number}"
            ask = {"role": "user", "content": name}
            said: Any = (
                client.chat.completions.create(model="m", messages=[ask], tools=TOOLS).choices[0].message
            )  # type: ignore
            told = {"role": "tool", "tool_call_id": f"id-{name}", "content": f"result {name}"}
            client.chat.completions.create(model="m", messages=[ask, said, told], tools=TOOLS)  # type: ignore

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {t.task_context.instructions: t for t in stored(recorder)}
    assert len(found) == 40
    for name, trajectory in found.items():
        assert trajectory.turns[0].result.output == f"result {name}"
        assert trajectory.turns[1].action.raw_response == f"done {name}"


def test_what_is_no_client_is_refused_in_one_sentence(recorder):
    with pytest.raises(ConfigError, match="give an OpenAI or AsyncOpenAI client"):
        wrap_openai(object(), recorder)
