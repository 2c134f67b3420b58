import pytest

from onward.http.app import HttpError
from onward.serving.protocol import openai

MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def test_defaults_are_those_of_the_api():
    chat = openai.parse_chat({"messages": MESSAGES})
    assert (chat.model, chat.temperature, chat.top_p, chat.top_k) == ("onward", 1.0, 1.0, None)
    assert (chat.max_tokens, chat.seed, chat.stream, chat.user) == (None, None, False, None)


def test_text_parts_are_joined_and_developer_is_system():
    chat = openai.parse_chat(
        {
            "messages": [
                {"role": "developer", "content": "rules"},
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            ],
            "max_completion_tokens": 5,
        }
    )
    assert chat.messages == [{"role": "system", "content": "rules"}, {"role": "user", "content": "ab"}]
    assert chat.max_tokens == 5 and chat.first_user_message == "ab"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"stop": [""]}, "stop"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": 5}, "stop"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": [5]}, "logit_bias"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": "1"}, "frequency_penalty"),
        ({"logprobs": 2}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"n": 17}, "n"),
        ({"n": 2, "stream": True}, "n"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "grammar"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "f"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": 1}}]}, "tools[0]"),
        ({"min_tokens": 5}, "min_tokens"),
        ({"repetition_penalty": 1.3}, "repetition_penalty"),
        ({"guided_json": {"type": "object"}}, "guided_json"),
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs"),
        ({"stop_token_ids": [2]}, "stop_token_ids"),
        ({"ignore_eos": True}, "ignore_eos"),
        ({"best_of": 3}, "best_of"),
        ({"n": True}, "n"),
        ({"min_p": 0.1}, "min_p"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"verbosity": "low"}, "verbosity"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs"),
        ({"skip_special_tokens": False}, "skip_special_tokens"),
        ({"temprature": 0}, "temprature"),
        ({"anything_else": "x"}, "anything_else"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options"),
        (
            {"messages": [{"role": "assistant", "content": "", "function_call": {"name": "f"}}]},
            "messages[0].function_call",
        ),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0]"),
        ({"tools": [TOOL, TOOL]}, "tools[1]"),
        ({"tools": "f"}, "tools"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": [1]}, "stream_options"),
        ({"stream_options": {"include_usage": 1}}, "include_usage"),
        ({"temperature": 3}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"seed": -1}, "seed"),
        ({"model": 5}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": {}, "content": "x"}]}, "messages[0]"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(change, param):
    with pytest.raises(HttpError) as caught:
        openai.parse_chat({"messages": MESSAGES, **change})
    assert caught.value.status == 400 and caught.value.param == param


@pytest.mark.parametrize(
    "given",
    [
        dict.fromkeys(("stop", "logit_bias", "min_p", "seed", "temprature", "guided_json", "top_k")),
        {
            "n": 1,
            "best_of": 1,
            "frequency_penalty": 0,
            "presence_penalty": 0.0,
            "logprobs": False,
            "stop": [],
        },
        {"min_p": 0.0, "min_tokens": 0, "repetition_penalty": 1.0, "ignore_eos": False, "top_k": -1},
        {
            "response_format": {"type": "text"},
            "modalities": ["text"],
            "logit_bias": {},
            "verbosity": "medium",
        },
        {"metadata": {"a": "b"}, "store": True, "service_tier": "auto", "prompt_cache_key": "k"},
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
        {"reasoning_effort": "none", "function_call": "auto", "skip_special_tokens": True},
    ],
)
def test_a_default_value_passes_and_so_does_what_changes_no_answer(given):
    chat = openai.parse_chat({"messages": MESSAGES, **given})
    assert (chat.temperature, chat.top_p, chat.top_k, chat.seed) == (1.0, 1.0, None, None)


def test_a_refusal_says_what_is_supported_and_what_was_probably_meant():
    with pytest.raises(HttpError) as caught:
        openai.parse_chat({"messages": MESSAGES, "min_p": 0.1})
    assert "give 0" in caught.value.message
    assert all(
        name in caught.value.message for name in ("temperature", "top_p", "top_k", "max_tokens", "seed")
    )
    with pytest.raises(HttpError) as caught:
        openai.parse_chat({"messages": MESSAGES, "max_token": 5})
    assert "did you mean 'max_tokens'?" in caught.value.message


def _forced(choice, *, strict=False, **more):
    tools = [TOOL, {"type": "function", "function": {"name": "g", "strict": strict}}]
    return openai.parse_chat({"messages": MESSAGES, "tools": tools, "tool_choice": choice, **more})


def test_a_choice_says_which_tools_may_be_called_and_whether_one_must_be():
    assert _forced("auto").options is None and _forced("auto").callable == {"f", "g"}
    required = _forced("required")
    assert required.options.must_call and required.options.parallel
    assert required.options.callable == ["f", "g"]
    assert not _forced("required", parallel_tool_calls=False).options.parallel
    named = _forced({"type": "function", "function": {"name": "g"}})
    assert named.callable == {"g"} and named.options.must_call and not named.options.parallel
    assert named.tools[0] == TOOL  # all are shown, whichever may be called
    some = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "g"}}]}
    allowed = _forced({"type": "allowed_tools", "allowed_tools": some})
    assert allowed.callable == {"g"} and allowed.options is None
    assert _forced("auto", strict=True).options.callable == ["f", "g"]
    assert _forced("none", strict=True).options is None


def test_a_call_without_options_has_none_so_that_its_way_to_the_engine_is_unchanged():
    defaults = {"stop": [], "presence_penalty": 0, "logprobs": False, "response_format": {"type": "text"}}
    assert openai.parse_chat({"messages": MESSAGES, **defaults}).options is None
    options = openai.parse_chat({"messages": MESSAGES, "stop": "x", "logit_bias": {"07": 1}}).options
    assert options.stop == ["x"] and options.logit_bias == {"7": 1.0} and options.callable is None


def test_choices_have_seeds_of_their_own():
    chat = openai.parse_chat({"messages": MESSAGES, "n": 3, "seed": 2**63 - 1})
    assert [chat.choice(index).seed for index in range(3)] == [2**63 - 1, 0, 1]
    assert chat.choice(1).n == 1


@pytest.mark.parametrize(
    ("part", "missing"),
    [
        ({"type": "image_url", "image_url": {"url": "data:,"}}, "vision"),
        ({"type": "input_audio"}, "hearing"),
        ({"type": "file"}, "reader of files"),
    ],
)
def test_a_part_that_is_no_text_is_refused_with_what_the_model_lacks(part, missing):
    with pytest.raises(HttpError) as caught:
        openai.parse_chat({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, part]}]})
    assert caught.value.param == "messages[0].content"
    assert repr(part["type"]) in caught.value.message and missing in caught.value.message


def test_tools_are_taken_as_they_came_and_a_choice_that_cannot_be_forced_is_not():
    chat = openai.parse_chat({"messages": MESSAGES, "tools": [TOOL], "tool_choice": "auto"})
    assert chat.tools == [TOOL] and chat.calls_tools and chat.parallel
    silent = openai.parse_chat({"messages": MESSAGES, "tools": [TOOL], "tool_choice": "none"})
    assert silent.tools == [TOOL] and not silent.calls_tools
    assert not openai.parse_chat({"messages": MESSAGES, "tools": []}).calls_tools


def test_calls_and_their_results_are_read_with_their_ids():
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    said = [
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "content": "one", "tool_call_id": "call_1", "name": "f"},
    ]
    chat = openai.parse_chat({"messages": [*MESSAGES, *said], "max_completion_tokens": None, "max_tokens": 7})
    assert chat.messages[1:] == [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "one", "tool_call_id": "call_1"},
    ]
    assert chat.max_tokens == 7


def test_empty_forms_of_refused_parameters_are_fine():
    openai.parse_chat({"messages": MESSAGES, "stop": None, "tools": [], "n": 1, "presence_penalty": 0})


def _calling(arguments):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"messages": [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call]}]}


@pytest.mark.parametrize(
    "arguments",
    [
        '{"a": "\\ud800"}',
        '{"\\udfff": 1}',
        '{"a": NaN}',
        '{"a": 1e999}',
        '{"a": ' + "[" * 30 + "]" * 30 + "}",
        "[" * 100_000 + "]" * 100_000,
    ],
)
def test_arguments_that_no_trajectory_can_hold_are_refused(arguments):
    with pytest.raises(HttpError) as caught:
        openai.parse_chat(_calling(arguments))
    assert caught.value.status == 400 and caught.value.param == "messages[1].tool_calls"


@pytest.mark.parametrize(
    "arguments", ["", "not JSON", '{"a": ', "null", '{"a": "\\ud83d\\ude00 \\u0000"}', "9" * 5000]
)
def test_other_arguments_stay_as_they_are(arguments):
    message = openai.parse_chat(_calling(arguments)).messages[1]
    assert message["tool_calls"][0]["function"]["arguments"] == arguments
