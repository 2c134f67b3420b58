"""Who continues what, and what stays apart."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from onward.capture.conversations.answers import ToolCall
from onward.serving.recording.conversations import Conversation, Conversations, Exchange, links_of, seed_of
from onward.serving.recording.trajectory import trajectory

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SEED = seed_of("key", None)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str, *calls: tuple[str, str]) -> dict[str, Any]:
    functions = [
        {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": text} | ({"tool_calls": functions} if calls else {})


def exchange(new: list[dict[str, Any]], text: str, *calls: ToolCall) -> Exchange:
    return Exchange(NOW, new, text, {"type": "response"}, calls, {"generation_id": text}, None)


class Table(Conversations):
    """Conversations, with the steps of a gateway in one."""

    def ask(self, messages: list[dict[str, Any]], answer: str, at: float = 0.0) -> Conversation:
        links = links_of(SEED, messages)
        found = self.find(links) or self.begin("s", "key", is_named=False, recorded=True)
        found.touched = at
        new = messages[found.length :]
        self.add_exchange(found, exchange(new, answer), links, said(answer))
        return found


def test_a_request_goes_on_where_it_repeats_everything_up_to_the_latest_answer():
    table = Table()
    first = table.ask([user("q")], "a")
    assert table.ask([user("q"), said("a"), user("r")], "b") is first
    assert table.ask([user("q"), said("a"), user("r"), said("b"), user("s")], "c") is first
    assert [each.new for each in first.exchanges] == [[user("q")], [user("r")], [user("s")]]
    assert table.ask([user("q")], "a") is not first
    assert len(table) == 2


@pytest.mark.parametrize(
    "changed",
    [
        [user("other"), said("a"), user("r")],
        [user("q"), said("A"), user("r")],
        [{"role": "system", "content": "x"}, user("q"), said("a"), user("r")],
        [user("q"), user("r")],
    ],
)
def test_another_history_is_another_conversation(changed):
    table = Table()
    first = table.ask([user("q")], "a")
    assert table.ask(changed, "b") is not first


def test_of_two_alike_each_request_takes_the_one_that_waits_longest():
    table = Table()
    one, two = table.ask([user("q")], "a", at=1.0), table.ask([user("q")], "a", at=2.0)
    assert table.ask([user("q"), said("a"), user("left")], "l", at=3.0) is one
    assert table.ask([user("q"), said("a"), user("right")], "r", at=4.0) is two
    third = table.ask([user("q"), said("a"), user("left")], "l", at=5.0)
    assert third not in (one, two)
    assert third.exchanges[0].new == [user("q"), said("a"), user("left")]


def test_one_with_a_call_under_way_is_passed_over():
    table = Table()
    first = table.ask([user("q")], "a")
    first.busy = True
    assert table.ask([user("q"), said("a"), user("r")], "b") is not first


def test_spaces_ids_and_the_order_of_arguments_do_not_count_but_values_do():
    one = said("Let me see.", ("add", '{"x": 1, "y": [2]}'))
    two = {**said("  Let me\nsee. ", ("add", '{"y":[2],"x":1}'))}
    two["tool_calls"][0]["id"] = "other"
    assert links_of(SEED, [one]) == links_of(SEED, [two])
    assert links_of(SEED, [one]) != links_of(SEED, [said("Let me see.", ("add", '{"x": 2, "y": [2]}'))])
    assert links_of(SEED, [one]) != links_of(SEED, [said("Let me see.", ("sub", '{"x": 1, "y": [2]}'))])
    assert links_of(SEED, [said("", ("add", "not json"))]) == links_of(
        SEED, [said("", ("add", " not json "))]
    )
    assert len({seed_of("key", None), seed_of("key", "s"), seed_of("other", None)}) == 3


def test_a_client_may_drop_the_words_beside_a_call():
    table = Table()
    conversation = table.begin("s", "key", is_named=False, recorded=True)
    words = said("Let me see.", ("add", "{}"))
    table.add_exchange(conversation, exchange([user("q")], "x"), links_of(SEED, [user("q")]), words)
    for answer in (words, said("", ("add", "{}"))):
        messages = [user("q"), answer, {"role": "tool", "content": "3"}]
        assert table.find(links_of(SEED, messages)) is conversation
    other = [user("q"), said("Wait.", ("add", "{}")), {"role": "tool", "content": "3"}]
    assert table.find(links_of(SEED, other)) is None
    table.remove(conversation)
    assert not table._heads


def test_the_engine_sees_our_answers_as_they_were_sampled_and_arguments_as_objects():
    table = Table()
    conversation = table.ask([user("q")], " a\n")
    messages = [user("q"), said("a"), user("r"), said("", ("add", '{"x": 1}')), user("s")]
    assert conversation.engine_messages(messages)[1] == {"role": "assistant", "content": " a\n"}
    shown = conversation.engine_messages(messages)[3]["tool_calls"][0]["function"]
    assert shown == {"name": "add", "arguments": {"x": 1}}
    assert messages[3]["tool_calls"][0]["function"]["arguments"] == '{"x": 1}'


def test_results_are_matched_by_id_and_the_rest_by_order():
    conversation = Conversation("t", "s", "key", True, True)
    calls = tuple(ToolCall(f"c{n}", "add", {}) for n in range(3))
    conversation.exchanges.append(exchange([user("q")], "x", *calls))
    results = [
        {"role": "tool", "content": "third", "tool_call_id": "c2"},
        {"role": "tool", "content": "first", "tool_call_id": "unknown"},
    ]
    conversation.take_results(results)
    assert conversation.exchanges[0].results == {2: "third", 0: "first"}
    conversation.take_results([{"role": "tool", "content": "second", "tool_call_id": "c1"}])
    assert conversation.exchanges[0].results == {1: "second"}  # a repeated request counts as it is


def test_a_call_that_was_written_as_text_gets_the_next_message_as_its_result():
    conversation = Conversation("t", "s", "key", True, True, ended_at=NOW)
    conversation.metadata["model"] = "m"
    written = exchange([user("q")], '{"tool_name": "add", "tool_args": {}}')
    written.action = {"type": "tool_call", "tool_name": "add", "tool_args": {}}
    conversation.exchanges.append(written)
    assert not conversation.is_final
    conversation.take_results([user("3")])
    (turn,) = trajectory(conversation, "idle")["turns"]
    assert turn["result"] == {"success": True, "output": "3"}


def test_the_source_of_a_grammar_counts_in_the_size_of_its_conversation():
    sizes = []
    for constraint in (
        {},
        {"constraint": {"hash": "h"}},
        {"constraint": {"hash": "h", "source": "s" * 5000}},
    ):
        table, messages = Conversations(), [user("q")]
        one = exchange(messages, "a")
        one.sampling = {"generation_id": "g", **constraint}
        begun = table.begin("s", "key", is_named=False, recorded=True)
        table.add_exchange(begun, one, links_of(SEED, messages), said("a"))
        sizes.append(table.size)
    assert sizes[0] == sizes[1] == sizes[2] - 5000


def test_sizes_add_up_and_go_with_the_conversation():
    table = Table()
    first = table.ask([user("q" * 1000)], "a" * 500)
    table.ask([user("other")], "b")
    assert first.size >= 2000 and table.size > first.size
    table.remove(first)
    assert 0 < table.size < 1000 and len(table) == 1
    table.remove(first)
    assert len(table) == 1
