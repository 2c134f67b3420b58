"""Requests of OpenAI's API against the gateway with a real engine: answered exactly, or refused by name."""

from __future__ import annotations

import json
import math

import jsonschema
import openai
import pytest
import pytest_asyncio

from onward.capture import provenance
from onward.contracts import Sampling, validate
from onward.lm.policy import Policy
from onward.lm.tokens import TokenRow

pytestmark = pytest.mark.asyncio(loop_scope="session")
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"$ref": "#/$defs/Kind"},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
    "$defs": {"Kind": {"enum": ["cat", "dog"]}},
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
ASK = [{"role": "user", "content": "Who?"}]


def tool(name, parameters=PERSON, **more):
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


@pytest.fixture(scope="module")
def world(engine_gateway):
    return engine_gateway


@pytest.fixture(scope="module")
def policy(world):
    return Policy.load(world.folder / "model")


@pytest_asyncio.fixture(loop_scope="session")
async def client(world):
    key = (world.settings.run_dir / "api.key").read_text()
    client = openai.AsyncOpenAI(base_url=f"{world.gateway.server.url}/v1", api_key=key, max_retries=0)
    yield client
    await client.close()


async def ask(client, **more):
    return await client.chat.completions.create(**({"model": "onward", "messages": ASK} | more))


def record_of(world, answer):
    record = answer.onward["sampling"]
    assert provenance.verify(record, provenance.load_key(world.settings.run_dir))
    validate(record, Sampling)
    return record


async def test_an_answer_has_the_schema_of_its_response_format_and_its_record_names_the_mask(
    world, client, policy
):
    answer = await ask(client, response_format=FORMAT, temperature=1.5, seed=7, max_tokens=400)
    assert answer.choices[0].finish_reason == "stop"
    jsonschema.validate(json.loads(answer.choices[0].message.content), PERSON)
    record = record_of(world, answer)
    assert record["constraint"]["kind"] == "json_schema" and len(record["constraint"]["hash"]) == 16
    # The policy itself gives the drawn tokens less, since it also gives other tokens something.
    ids = [*record["prompt_ids"], *record["token_ids"]]
    n, m = len(record["prompt_ids"]), len(record["token_ids"])
    free = policy.logprobs([TokenRow(ids, [False] * n + [True] * m, [0.0] * (n + m), 1.5)])[0][n:]
    assert all(a >= float(b) - 1e-4 for a, b in zip(record["logprobs"], free, strict=True))
    assert sum(record["logprobs"]) > float(free.sum()) + 1


async def test_any_json_object_is_one_and_a_cut_one_is_reported(world, client):
    cut = await ask(client, response_format={"type": "json_object"}, max_tokens=2)
    assert cut.choices[0].finish_reason == "length" and cut.choices[0].message.content.startswith("{")
    answers = [
        await ask(client, response_format={"type": "json_object"}, seed=seed, max_tokens=600)
        for seed in range(3)
    ]
    for answer in answers:
        if answer.choices[0].finish_reason == "stop":
            assert isinstance(json.loads(answer.choices[0].message.content), dict)
    assert record_of(world, answers[0])["constraint"]["kind"] == "json_object"


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "object", "not": {"required": ["a"]}}, "not"),
        ({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}, "uniqueItems"),
        ({"type": "object", "properties": {"a": {"type": "string", "format": "of-my-own"}}}, "of-my-own"),
        ({"type": "object", "x-guidance": {"lenient": True}, "if": {}}, "x-guidance"),
    ],
)
async def test_a_keyword_that_cannot_be_enforced_is_refused_by_name(client, schema, named):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(openai.BadRequestError) as refused:
        await ask(client, response_format=form)
    assert named in refused.value.message and refused.value.param == "response_format"
    with pytest.raises(openai.BadRequestError) as refused:
        await ask(client, tools=[tool("f", schema, strict=True)])
    assert named in refused.value.message and refused.value.param == "tools"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "g"}}])
async def test_a_forced_call_is_one_of_the_right_tool_with_valid_arguments(world, client, choice):
    tools = [tool("f"), tool("g", {"type": "object", "properties": {"x": {"enum": [1, 2]}},
                                   "required": ["x"], "additionalProperties": False})]  # fmt: skip
    for parallel in (True, False):
        answer = await ask(client, tools=tools, tool_choice=choice, parallel_tool_calls=parallel,
                           temperature=1.5, max_tokens=3000, seed=3)  # fmt: skip
        calls = answer.choices[0].message.tool_calls
        assert calls and answer.choices[0].finish_reason == "tool_calls"
        if not parallel or choice != "required":
            assert len(calls) == 1
        if choice != "required":
            assert calls[0].function.name == "g"
        for call in calls:
            schema = {one["function"]["name"]: one["function"]["parameters"] for one in tools}
            jsonschema.validate(json.loads(call.function.arguments), schema[call.function.name])
    assert record_of(world, answer)["constraint"]["kind"] == "tool_calls"


async def test_no_call_is_made_where_none_is_allowed_and_a_schema_that_is_a_wish_refuses_nothing(client):
    odd = tool("f", {"type": "object", "not": {"required": ["a"]}})
    answer = await ask(client, tools=[odd], tool_choice="none", max_tokens=5)
    assert answer.choices[0].message.tool_calls is None
    answer = await ask(client, tools=[odd], tool_choice="required", max_tokens=3000, seed=1)
    message = answer.choices[0].message
    assert message.tool_calls or answer.choices[0].finish_reason == "length"


async def test_a_stop_text_is_never_shown_and_the_record_keeps_what_was_sampled(world, client, policy):
    free = await ask(client, max_tokens=60, seed=5)
    text = free.choices[0].message.content
    stop = text[20:22]  # somewhere inside, whole tokens or not
    whole = await ask(client, max_tokens=60, seed=5, stop=[stop, "never there"])
    assert whole.choices[0].message.content == text[: text.find(stop)]
    assert whole.choices[0].finish_reason == "stop"
    record, before = record_of(world, whole), record_of(world, free)
    n = len(record["token_ids"])
    assert record["token_ids"] == before["token_ids"][:n] and record["logprobs"] == before["logprobs"][:n]
    sampled = policy.tokenizer.decode(record["token_ids"], skip_special_tokens=True)
    assert stop in sampled and stop not in policy.tokenizer.decode(record["token_ids"][:-1])
    pieces = []
    async for chunk in await ask(client, max_tokens=60, seed=5, stop=stop, stream=True):
        pieces += [choice.delta.content or "" for choice in chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content


async def test_a_conversation_after_a_stop_text_goes_on_with_the_exact_tokens(world, client):
    free = await ask(client, max_tokens=40, seed=9)
    stop = free.choices[0].message.content[10:12]
    first = await ask(client, max_tokens=40, seed=9, stop=stop)
    talk = [*ASK, {"role": "assistant", "content": first.choices[0].message.content},
            {"role": "user", "content": "And?"}]  # fmt: skip
    second = await ask(client, messages=talk, max_tokens=4)
    assert record_of(world, second)["continues"] == first.onward["generation_id"]


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
async def test_log_probs_are_those_of_the_drawn_distribution(world, client, temperature):
    answer = await ask(client, max_tokens=12, seed=2, logprobs=True, top_logprobs=3, temperature=temperature)
    content = answer.choices[0].logprobs.content
    assert "".join(one.token for one in content).startswith(answer.choices[0].message.content[:3])
    assert b"".join(bytes(one.bytes) for one in content).decode("utf-8", "replace") == (
        answer.choices[0].message.content
    )
    record = record_of(world, answer)
    assert [one.logprob for one in content] == pytest.approx(record["logprobs"][: len(content)])
    for one in content:
        best = [other.logprob for other in one.top_logprobs]
        assert best == sorted(best, reverse=True) and sum(map(math.exp, best)) <= 1.001
        if temperature == 0:
            assert best == [0.0] and one.logprob == 0.0
    streamed = []
    async for chunk in await ask(client, max_tokens=12, seed=2, logprobs=True, top_logprobs=3,
                                 temperature=temperature, stream=True):  # fmt: skip
        for choice in chunk.choices:
            streamed += choice.logprobs.content if choice.logprobs else []
    assert [one.token for one in streamed] == [one.token for one in content]


async def test_choices_are_generations_of_their_own_and_each_can_be_continued(world, client):
    answer = await ask(client, n=3, max_tokens=6, seed=4, user="choices")
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    parts = [answer.onward, *answer.onward["choices"]]
    assert len({part["generation_id"] for part in parts}) == 3
    assert len({part["trajectory_id"] for part in parts}) == 3
    assert {part["session_id"] for part in parts} == {"choices"}
    alone = await ask(client, max_tokens=6, seed=5)
    assert alone.onward["sampling"]["token_ids"] == parts[1]["sampling"]["token_ids"]
    assert answer.usage.completion_tokens == sum(len(part["sampling"]["token_ids"]) for part in parts)
    talk = [*ASK, {"role": "assistant", "content": answer.choices[2].message.content},
            {"role": "user", "content": "And?"}]  # fmt: skip
    second = await ask(client, messages=talk, max_tokens=4, user="choices")
    assert second.onward["trajectory_id"] == parts[2]["trajectory_id"]
    assert second.onward["sampling"]["continues"] == parts[2]["generation_id"]


async def test_a_bias_forces_a_token_and_the_record_says_so(world, client):
    answer = await ask(client, max_tokens=3, logit_bias={"50": 100}, presence_penalty=0.5)
    record = record_of(world, answer)
    assert record["token_ids"] == [50, 50, 50] and record["logit_bias"] == {"50": 100.0}
    assert record["presence_penalty"] == 0.5 and "frequency_penalty" not in record
    with pytest.raises(openai.BadRequestError) as refused:
        await ask(client, logit_bias={"100000": 1})
    assert refused.value.param == "logit_bias"


async def test_an_alias_serves_and_is_listed(client):
    assert "gpt-4o" in [model.id async for model in client.models.list()]
    assert (await ask(client, model="gpt-4o", max_tokens=2)).model == "tiny"
    with pytest.raises(openai.NotFoundError) as refused:
        await ask(client, model="gpt-5")
    assert "gpt-4o" in refused.value.message


async def test_a_raw_prompt_is_completed_from_text_and_from_ids(world, client, policy):
    text = await client.completions.create(
        model="gpt-4o", prompt="Add 2", seed=1, max_tokens=6, logprobs=2, n=2
    )
    ids = policy.tokenizer.encode("Add 2", add_special_tokens=False)
    assert record_of(world, text)["prompt_ids"] == ids and "trajectory_id" not in text.onward
    assert len(text.choices) == 2 and len(text.choices[0].logprobs.tokens) == len(
        text.choices[0].logprobs.token_logprobs
    )
    same = await client.completions.create(model="onward", prompt=ids, seed=1, max_tokens=6)
    assert same.choices[0].text == text.choices[0].text and same.object == "text_completion"
    pieces = [chunk.choices[0].text async for chunk in await client.completions.create(
        model="onward", prompt=ids, seed=1, max_tokens=6, stream=True)]  # fmt: skip
    assert "".join(pieces) == same.choices[0].text
    with pytest.raises(openai.BadRequestError) as refused:
        await client.completions.create(model="onward", prompt=[99999])
    assert refused.value.param == "prompt"


async def test_text_offsets_are_places_in_the_whole_text_also_in_a_stream(client):
    asked = {"model": "onward", "prompt": "Add 2", "seed": 1, "max_tokens": 300, "logprobs": 1}
    whole = (await client.completions.create(**asked)).choices[0]
    found = whole.logprobs
    for place, token in zip(found.text_offset, found.tokens, strict=True):
        if "\ufffd" not in token:
            assert whole.text[place:].startswith(token)
    for _ in range(20):  # on a busy machine a short answer may be whole before its first piece is sent
        pieces = [chunk.choices[0].logprobs async for chunk in await client.completions.create(
            **asked, stream=True)]  # fmt: skip
        parts = [piece for piece in pieces if piece is not None]
        if len(parts) > 1:
            break
    assert len(parts) > 1 and [at for part in parts for at in part.text_offset] == found.text_offset


async def test_a_response_is_the_same_chat_and_its_calls_continue_it(world, client):
    add = {"type": "function", "name": "add", "strict": True, "parameters": PERSON}
    first = await client.responses.create(
        model="gpt-4o", input="Who?", instructions="Be brief.", tools=[add], tool_choice="required",
        parallel_tool_calls=False, max_output_tokens=400,
    )  # fmt: skip
    (call,) = first.output
    assert call.type == "function_call" and first.status == "completed"
    jsonschema.validate(json.loads(call.arguments), PERSON)
    items = [{"role": "user", "content": "Who?"}, call.model_dump(),
             {"type": "function_call_output", "call_id": call.call_id, "output": "done"}]  # fmt: skip
    second = await client.responses.create(
        model="gpt-4o", input=items, instructions="Be brief.", tools=[add], tool_choice="none",
        max_output_tokens=5, temperature=1.0,
    )  # fmt: skip
    assert second.onward["sampling"]["continues"] == first.onward["generation_id"]
    assert second.output_text == second.output[0].content[0].text
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model="onward", input="And?", previous_response_id=first.id)
    assert refused.value.param == "previous_response_id"


async def test_a_streamed_response_builds_the_same_document(client):
    form = {"format": {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}}
    async with client.responses.stream(
        model="onward", input="Who?", text=form, max_output_tokens=400
    ) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    jsonschema.validate(json.loads(final.output_text), PERSON)
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    add = {"type": "function", "name": "add", "parameters": PERSON, "strict": True}
    async with client.responses.stream(
        model="onward", input="Who?", tools=[add], tool_choice="required", max_output_tokens=3000
    ) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert "response.function_call_arguments.done" in kinds and final.output[0].name == "add"


async def test_another_api_is_refused_in_openais_form(client):
    with pytest.raises(openai.NotFoundError) as refused:
        await client.embeddings.create(model="onward", input="a")
    assert "embeddings" in refused.value.message
