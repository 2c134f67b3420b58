"""Conversations as text, from a trajectory or a file, converted to token rows by the chat template.

Invariants: the rows made here are tokens that a model *would* see, not tokens that one sampled. Their
log-probs are unknown (``behaviour_known`` false), so a policy gradient refuses them unless it is set to
recompute.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from onward.capture.conversations.messages import conversation
from onward.errors import OnwardError
from onward.lm.tool_words import in_words

if TYPE_CHECKING:
    from onward.lm.chat import Chat
    from onward.lm.tokens import Call, TokenRow

Message = Mapping[str, Any]


def messages_of(trajectory: Mapping[str, Any]) -> list[dict[str, str]]:
    """Returns a trajectory's messages up to its last answer, the same as an export of demonstrations."""
    return conversation(trajectory, as_said=True).until_last_answer().texts()


def texts_of(line: Mapping[str, Any]) -> list[dict[str, str]]:
    """Returns role and text of each message of a dataset line, tools and calls in words."""
    return in_words(line["messages"], line.get("tools") or ())


def place_of(trajectory: Mapping[str, Any], turn_id: int) -> int | None:
    """Returns the index of a turn's answer in ``messages_of``; None if it is not among them."""
    whole = conversation(trajectory, as_said=True)
    at = whole.answer_at.get(turn_id)
    return None if at is None else at + len(whole.texts()) - len(whole.messages)


def answer_of(action: Mapping[str, Any]) -> str:
    """Returns the policy's answer in a turn: the raw answer, or the action as JSON."""
    answer = action.get("raw_response")
    if answer is None:
        answer = json.dumps(
            {"tool_name": action.get("tool_name") or action["type"], "tool_args": action.get("tool_args")}
        )
    return str(answer)


def token_row(
    chat: Chat, messages: Sequence[Message], *, tools: Sequence[dict[str, Any]] = (), known: bool = False
) -> TokenRow:
    """Encodes a conversation as an engine would have seen it, with the assistant's turns marked as sampled.
    An answer of ``weight`` 0 is context.

    Messages after the last answer are left out. Raises OnwardError when the template rewrites earlier turns,
    or no message is the assistant's.
    """
    from onward.lm.tokens import TokenRow

    talk = [{name: value for name, value in message.items() if name != "weight"} for message in messages]
    answers = [at for at, message in enumerate(talk) if message["role"] == "assistant" and at > 0]
    if not answers:
        raise OnwardError(
            "A conversation has no answer of the assistant: give messages with one after the user's."
        )
    ids = chat.render(talk[: answers[0]], tools)
    sampled = [False] * len(ids)
    for number, at in enumerate(answers):
        answer = chat.answer(talk[: at + 1], tools)
        ids, sampled = ids + answer, sampled + [messages[at].get("weight") != 0] * len(answer)
        if number + 1 < len(answers):
            context = chat.extend(ids, talk[:at], talk[: answers[number + 1]], True, tools)
            if context is None:
                raise OnwardError(
                    "The chat template of this model rewrites earlier turns: use a model whose template "
                    "only appends, such as ChatML."
                )
            ids, sampled = ids + context, sampled + [False] * len(context)
    return TokenRow(ids, sampled, [0.0] * len(ids), behaviour_known=known)


def corrected(chat: Chat, line: Mapping[str, Any]) -> tuple[TokenRow, TokenRow] | None:
    """Returns the correction of a dataset line and the answer that it replaces, after the same prompt tokens;
    None for a line without a correction.

    Prompt and replaced answer are the tokens that the engine saw and sampled, if the line has them. Only the
    two answers are compared: earlier answers of the policy are context on both sides. Raises OnwardError as
    ``token_row`` does.
    """
    from onward.lm import tokens

    told = line.get("correction")
    if told is None:
        return None
    if "generation_id" in told:
        calls = calls_of(line)
        prompt = tokens.prompt_of(calls, told["generation_id"])
        answer = next(call.token_ids for call in calls if call.generation_id == told["generation_id"])
    else:
        talk, tools = line["messages"][: told["message"] + 1], line.get("tools") or ()
        whole = token_row(chat, talk, tools=tools).ids
        cut = len(whole) - len(chat.answer(talk, tools))
        prompt, answer = whole[:cut], whole[cut:]
    written = [*chat.encode(told["answer"]), chat.end_of_turn]
    return _behind(prompt, written), _behind(prompt, answer)


def calls_of(line: Mapping[str, Any]) -> list[Call]:
    """Returns the sampled answers of a dataset line. One under a grammar is context unless it has its masks
    (``job.replayed``). Raises OnwardError for a call with an unknown field."""
    return [_call(call) for call in line["calls"]]


def _call(stored: Mapping[str, Any]) -> Call:
    from onward.lm.tokens import Call

    known = {name: value for name, value in stored.items() if name != "grammar"}
    unknown = sorted(known.keys() - {one.name for one in fields(Call)})
    if unknown:
        raise OnwardError(
            f"The call {str(stored['generation_id'])[:60]!r} has the field {unknown[0][:40]!r}, which is not "
            f"read: leave it out, or give lines as a job writes them."
        )
    known["top_p"] = 1.0 if stored.get("top_p") is None else stored["top_p"]
    if "grammar" in stored and not stored.get("allowed"):
        known["trains"] = False
    return Call(**known)


def _behind(prompt: list[int], answer: list[int]) -> TokenRow:
    from onward.lm.tokens import TokenRow

    ids = [*prompt, *answer]
    mask = [False] * len(prompt) + [True] * len(answer)
    return TokenRow(ids, mask, [0.0] * len(ids), behaviour_known=False)
