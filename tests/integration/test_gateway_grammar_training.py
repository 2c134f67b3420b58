"""Answers under a client's schema, from the gateway's record to the rows of a job, with a real engine."""

from __future__ import annotations

import copy
import json
from typing import Any

import llguidance.hf
import numpy as np
import openai
import pytest
import pytest_asyncio
import torch
from capture_world import client, messages_of, records
from serving_world import World, eventually

from onward.capture import provenance
from onward.contracts import Trajectory, decode, to_document
from onward.lm.chat import Chat
from onward.lm.masks import AllowedTokens
from onward.lm.policy import Policy
from onward.lm.tokens import TokenRow, rows_from_calls
from onward.training.data import admission, conversations
from onward.training.data.admission import AdmissionRules, ScoredTrajectory
from onward.training.data.report import DataReport
from onward.training.job.replayed import MaskReplay

pytestmark = pytest.mark.asyncio(loop_scope="session")
ARGUMENTS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 30},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": ARGUMENTS, "strict": True}}
BY_HAND = r"""
start: "{\"tool_name\": \"weather\", \"tool_args\": " arguments "}"
arguments: "{\"city\": \"" ("Oslo" | "Rome") "\", \"days\": " DAYS "}"
DAYS: /[1-9]|[12][0-9]|30/
"""
ASK = [{"role": "user", "content": "How is the weather?"}]
REWARD = {"metadata": {"raw_total": 1.0, "outcome": {"completion": 1.0, "success": True}}}


@pytest.fixture(scope="module")
def world(engine_gateway: World) -> World:
    return engine_gateway


@pytest.fixture(scope="module")
def policy(world: World) -> Policy:
    torch.set_num_threads(1)
    return Policy.load(world.folder / "model")


@pytest_asyncio.fixture(loop_scope="session")
async def agent(world: World):
    async with client(world) as agent:
        yield agent


async def recorded(world: World, session: str) -> dict[str, Any]:
    """Closes a session; its trajectory on the stream."""
    closed = await world.client.post(f"/v1/sessions/{session}/close", json={"status": "failed"})
    assert closed.status_code == 200, closed.text

    async def there() -> dict[str, Any] | None:
        found = [to_document(decode(one, Trajectory)) for one in await messages_of(world, "RL_TRAJECTORIES")]
        return next((one for one in found if one["session_id"] == session), None)

    return await eventually(there)


def admitted(world: World, document: dict[str, Any], policy: Policy) -> dict[str, Any] | str:
    """The line that a job of ``policy`` freezes of a trajectory, checked with the gateway's own key."""
    key = provenance.load_key(world.settings.run_dir)
    rules = AdmissionRules({policy.base_digest: 0}, key)
    return admission.line(ScoredTrajectory(document, REWARD), rules)


def rows_of(line: Any, policy: Policy) -> list[TokenRow]:
    report = DataReport()
    (line,) = MaskReplay.of_model(policy).lines([json.loads(json.dumps(line))], report)
    assert not report
    return rows_from_calls(conversations.calls_of(line))


async def ask(agent: openai.AsyncOpenAI, session: str, messages: Any = ASK, **more: Any) -> Any:
    header = {"Onward-Session": session}
    return await agent.chat.completions.create(
        model="onward", messages=messages, extra_headers=header, **{"seed": 5, **more}
    )


def masks_by_hand(policy: Policy, chat: Chat, answer: list[int]) -> dict[int, AllowedTokens]:
    """The masks of an answer by a matcher of the grammar that a person would write for this tool."""
    vocab = policy.shape.vocab
    about: Any = policy.tokenizer
    names = llguidance.hf.from_tokenizer(about, n_vocab=vocab, eos_token=list(chat.stop_ids))
    matcher = llguidance.LLMatcher(names, llguidance.LLMatcher.grammar_from_lark(BY_HAND))
    assert not matcher.is_error(), matcher.get_error()
    found = {}
    for place, token in enumerate(answer):
        certain = matcher.compute_ff_tokens()
        if certain:
            found[place] = AllowedTokens.of_ids([certain[0]], vocab)
        else:
            bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
            allowed = np.flatnonzero(np.unpackbits(bits, bitorder="little")[:vocab])
            found[place] = AllowedTokens.of_ids(allowed.tolist(), vocab)
        assert matcher.consume_token(token)
    return found


async def test_an_episode_with_a_strict_tool_is_the_row_that_a_person_would_write(world, agent, policy):
    answer = await ask(agent, "strict-1", tools=[TOOL], tool_choice="required", parallel_tool_calls=False,
                       temperature=1.3, max_tokens=200)  # fmt: skip
    (call,) = answer.choices[0].message.tool_calls
    document = await recorded(world, "strict-1")
    (record,) = records(document)
    chat = Chat(policy.tokenizer)
    prompt, drawn = chat.render(ASK, [TOOL]), record["token_ids"]
    assert json.loads(chat.text(drawn))["tool_args"] == json.loads(call.function.arguments)
    masks = masks_by_hand(policy, chat, drawn)
    by_hand = TokenRow(
        [*prompt, *drawn],
        [False] * len(prompt) + [True] * len(drawn),
        [0.0] * len(prompt) + record["logprobs"],
        temperature=1.3,
        turns=[(0, len(prompt) + len(drawn))],
        allowed={len(prompt) + place: mask for place, mask in masks.items()},
    )
    (row,) = rows_of(admitted(world, document, policy), policy)
    assert row == by_hand
    assert {len(mask.ids) for mask in masks.values()} > {1}
    learners = policy.logprobs([row])[0][len(prompt) :].tolist()
    assert learners == pytest.approx(record["logprobs"], abs=1e-4)


async def test_turns_with_a_schema_without_one_and_with_it_again_are_one_row_of_the_learners_log_probs(
    world, agent, policy
):
    """The source of the grammar is recorded once, the text between is free, and every log-prob agrees."""
    form = {"type": "json_schema", "json_schema": {"name": "plan", "schema": ARGUMENTS, "strict": True}}
    messages: list[Any] = list(ASK)
    for turn, more in enumerate(({"response_format": form}, {}, {"response_format": form})):
        answer = await ask(agent, "schema-1", messages, max_tokens=60, **more)
        messages += [answer.choices[0].message, {"role": "user", "content": f"Again, {turn}."}]
    document = await recorded(world, "schema-1")
    first, free, again = records(document)
    assert json.loads(first["constraint"]["source"])["properties"] == ARGUMENTS["properties"]
    assert "constraint" not in free and "source" not in again["constraint"]
    assert again["constraint"]["hash"] == first["constraint"]["hash"]
    line = admitted(world, document, policy)
    assert isinstance(line, dict) and len(line["grammars"]) == 1
    (row,) = rows_of(line, policy)
    counts = [count for _, count in row.stretches()]
    assert counts[1] == len(free["token_ids"]) and 0 < counts[0] < len(first["token_ids"])
    learners = policy.logprobs([row])[0]
    sampled = [t for t, is_one in enumerate(row.sampled) if is_one]
    told = [value for record in (first, free, again) for value in record["logprobs"]]
    assert [float(learners[t]) for t in sampled] == pytest.approx(told, abs=1e-4)
    without = TokenRow(row.ids, row.sampled, row.logprobs)
    assert float(policy.logprobs([without])[0].sum()) < sum(told) - 5


async def test_a_strict_tool_that_may_be_called_or_not_trains_as_it_was_sampled(world, agent, policy):
    await ask(agent, "auto-1", tools=[TOOL], max_tokens=40)
    document = await recorded(world, "auto-1")
    (record,) = records(document)
    (row,) = rows_of(admitted(world, document, policy), policy)
    learners = policy.logprobs([row])[0][-len(record["token_ids"]) :].tolist()
    assert learners == pytest.approx(record["logprobs"], abs=1e-4)


async def test_a_record_that_was_changed_on_its_way_is_refused(world, agent, policy):
    await ask(agent, "changed-1", tools=[TOOL], tool_choice="required", max_tokens=200)
    document = await recorded(world, "changed-1")
    assert isinstance(admitted(world, document, policy), dict)
    changed = copy.deepcopy(document)
    stated = records(changed)[0]["constraint"]
    stated["source"] = stated["source"].replace("Rome", "Bonn")
    assert admitted(world, changed, policy) == "bad_signature"


async def test_a_penalty_leaves_an_answer_under_a_grammar_untrained(world, agent, policy):
    await ask(agent, "penalty-1", tools=[TOOL], tool_choice="required", max_tokens=200, presence_penalty=0.5)
    assert admitted(world, await recorded(world, "penalty-1"), policy) == "shaped_logits"
