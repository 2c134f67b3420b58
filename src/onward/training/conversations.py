"""Conversations as text: told by a trajectory or a file, and made into token rows by the chat template.

Know before changing: rows made here are what a model *would* see, not what one sampled. Their log-probs are
unknown (``behaviour_known`` false), so that a policy gradient refuses them unless it is told to recompute.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onward.errors import OnwardError

if TYPE_CHECKING:
    from onward.lm.chat import Chat
    from onward.lm.tokens import TokenRow

Message = Mapping[str, Any]


def messages_of(trajectory: Mapping[str, Any]) -> list[dict[str, str]]:
    """The chat messages of a trajectory: what was observed, and the raw answer (else the action as JSON)."""
    messages: list[dict[str, str]] = []
    for turn in trajectory["turns"]:
        seen, action = turn["observation"], turn["action"]
        role = "system" if seen.get("type") == "system_message" else "user"
        messages.append({"role": role, "content": _text(seen.get("content"))})
        answer = action.get("raw_response")
        if answer is None:
            answer = json.dumps(
                {"tool_name": action.get("tool_name") or action["type"], "tool_args": action.get("tool_args")}
            )
        messages.append({"role": "assistant", "content": str(answer)})
    return messages


def token_row(chat: Chat, messages: Sequence[Message], *, known: bool = False) -> TokenRow:
    """The conversation as an engine would have seen it, the assistant's turns marked as sampled.

    What follows the last answer is left out. Raises OnwardError where the template rewrites earlier turns,
    or no message is the assistant's.
    """
    from onward.lm.tokens import TokenRow

    talk = [dict(message) for message in messages]
    answers = [at for at, message in enumerate(talk) if message["role"] == "assistant" and at > 0]
    if not answers:
        raise OnwardError(
            "A conversation has no answer of the assistant: give messages with one after the user's."
        )
    ids = chat.render(talk[: answers[0]])
    sampled = [False] * len(ids)
    for number, at in enumerate(answers):
        answer = [*chat.encode(str(talk[at]["content"])), chat.end_of_turn]
        ids, sampled = ids + answer, sampled + [True] * len(answer)
        if number + 1 < len(answers):
            context = chat.extend(ids, talk[:at], talk[: answers[number + 1]], True)
            if context is None:
                raise OnwardError(
                    "The chat template of this model rewrites earlier turns: use a model whose template "
                    "only appends, such as ChatML."
                )
            ids, sampled = ids + context, sampled + [False] * len(context)
    return TokenRow(ids, sampled, [0.0] * len(ids), behaviour_known=known)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
