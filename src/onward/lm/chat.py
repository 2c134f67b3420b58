"""Chat messages to token ids, without ever encoding history twice.

Invariants: text of a message never becomes a control token. Control strings such as ``<|im_end|>`` inside a
message are encoded as ordinary characters, so that a user cannot end a turn or speak as another role. For all
other text the ids equal those of the tokenizer's own chat template.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from onward.errors import OnwardError
from onward.lm.text_length import longest_token
from onward.lm.tool_words import TOOL_RULES, Message, in_words

_MARK = "\ue0f1"
__all__ = ["TOOL_RULES", "Chat", "Message", "Text", "in_words"]


class Chat:
    """Renders messages with ``tokenizer``'s chat template and extends earlier renderings."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise OnwardError(
                "The tokenizer has no chat template: use a model folder whose tokenizer files carry one."
            )
        self.tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder
        control = {token.content: index for index, token in added.items() if token.special}
        self._control: dict[str, int] = control
        pattern = "|".join(re.escape(text) for text in sorted(control, key=len, reverse=True))
        self._split = re.compile(f"({pattern})") if control else None
        described = _without_control_tokens(tokenizer, set(control))
        self._plain = Tokenizer.from_str(json.dumps(described))
        self._longest = longest_token(described)
        self.has_tool_template = False
        self.end_of_turn, self._end_text = self._find_end_of_turn()
        self.has_tool_template = self._shows_tools()

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that complete an answer."""
        eos = self.tokenizer.eos_token_id
        ids = {self.end_of_turn} | ({eos} if isinstance(eos, int) else set())
        return tuple(sorted(ids))

    def render(self, messages: Sequence[Message], tools: Sequence[Message] = ()) -> list[int]:
        """Returns the ids of ``messages`` followed by the opening of the assistant's turn. ``tools`` (schemas
        as in the chat API) are shown by the template, or in words if it does not support tools."""
        mark = self._mark([*messages, *tools])
        return self._encode(self._text(messages, mark, prompt=True, tools=tools), mark)

    def answer(self, messages: Sequence[Message], tools: Sequence[Message] = ()) -> list[int]:
        """Returns the ids with which a model gives the last of ``messages``, its answer to the others: text
        or calls, and the end of the turn. Raises OnwardError if the template writes calls elsewhere."""
        said = messages[-1]
        if not said.get("tool_calls") or not self.has_tool_template:
            return [*self.encode(in_words([said], ())[0]["content"]), self.end_of_turn]
        mark = self._mark([*messages, *tools])
        before = self._text(messages[:-1], mark, prompt=True, tools=tools)
        upto = self._text(messages, mark, prompt=False, tools=tools)
        cut = upto.rfind(self._end_text)
        if cut < len(before) or not upto.startswith(before):
            raise OnwardError(
                "The chat template of this model writes tool calls elsewhere than after the opening of the "
                "assistant's turn: use a model whose template only appends, such as ChatML."
            )
        return [*self._encode(upto[len(before) : cut], mark), self.end_of_turn]

    def encode(self, text: str) -> list[int]:
        """Returns the ids of plain text outside a message; a control string is ordinary characters."""
        return list(self._plain.encode(text, add_special_tokens=False).ids)

    def fewest_tokens(self, messages: Sequence[Message]) -> int:
        """Returns a number of tokens that a prompt of ``messages`` has at least, without encoding it. Text of
        the assistant and outer spaces do not count: a template may leave them out."""
        if self._longest is None:
            return 0
        said = (message.get("content") for message in messages if message["role"] != "assistant")
        return sum(len(text.strip()) for text in said if isinstance(text, str)) // self._longest

    def text(self, token_ids: Sequence[int]) -> str:
        """Returns the text of sampled tokens, without control tokens."""
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def extend(
        self,
        previous_ids: Sequence[int],
        previous_messages: Sequence[Message],
        new_messages: Sequence[Message],
        finished: bool,
        tools: Sequence[Message] = (),
    ) -> list[int] | None:
        """Returns the ids to append to ``previous_ids`` (a prompt and its completion) to reach
        ``new_messages``.

        ``new_messages`` is the whole new conversation: ``previous_messages``, the assistant's answer, then
        the later messages. ``finished`` is true when the completion ended with the end-of-turn token. When it
        was cut off, that token is added here, as context and not as a sampled token. Returns None when the
        conversation was edited or the template rewrites history: it must then be rendered as a new prompt.
        """
        count = len(previous_messages)
        if len(new_messages) <= count + 1 or list(new_messages[:count]) != list(previous_messages):
            return None
        answer = new_messages[count]
        if answer.get("role") != "assistant" or new_messages[-1].get("role") == "assistant":
            return None
        if finished and (not previous_ids or previous_ids[-1] != self.end_of_turn):
            return None
        if not self._tail_says(previous_ids, answer, finished):
            return None
        mark = self._mark([*new_messages, *tools])
        before = self._text(previous_messages, mark, prompt=True, tools=tools)
        upto = self._text(new_messages[: count + 1], mark, prompt=False, tools=tools)
        whole = self._text(new_messages, mark, prompt=True, tools=tools)
        cut = upto.rfind(self._end_text)
        if cut < len(before) or not upto.startswith(before):
            return None
        cut += len(self._end_text)
        if whole[:cut] != upto[:cut]:
            return None
        delta = self._encode(whole[cut:], mark)
        return delta if finished else [self.end_of_turn, *delta]

    def _tail_says(self, previous_ids: Sequence[int], answer: Message, finished: bool) -> bool:
        ids = list(previous_ids[:-1] if finished else previous_ids)
        if self.end_of_turn in ids:
            last = len(ids) - 1 - ids[::-1].index(self.end_of_turn)
            ids = ids[last + 1 :]
        content, said = str(answer.get("content") or "").rstrip(), self.text(ids).rstrip()
        return content in said if answer.get("tool_calls") else said.endswith(content)

    def _find_end_of_turn(self) -> tuple[int, str]:
        probe = [{"role": "user", "content": "A"}, {"role": "assistant", "content": "Zq"}]
        text = self._text(probe, "", prompt=False)
        after = text[text.rfind("Zq") + 2 :]
        found = self._split.search(after) if self._split else None
        if found is None:
            raise OnwardError(
                "The chat template puts no control token after an assistant message: "
                "use a model whose template ends each turn with one, such as <|im_end|>."
            )
        return self._control[found.group(0)], found.group(0)

    def _mark(self, messages: Sequence[Message]) -> str:
        """Returns a string that occurs in no message, to be inserted into control strings as a mask."""
        everything = json.dumps(list(messages), ensure_ascii=False, default=str)
        longest = max(map(len, re.findall(f"{_MARK}+", everything)), default=0)
        return _MARK * (longest + 1)

    def _hide(self, value: Any, mark: str) -> Any:
        if isinstance(value, str):
            return self._split.sub(lambda m: m[0][0] + mark + m[0][1:], value) if self._split else value
        if isinstance(value, dict):
            return {key: self._hide(item, mark) for key, item in value.items()}
        if isinstance(value, list):
            return [self._hide(item, mark) for item in value]
        return value

    def _text(
        self, messages: Sequence[Message], mark: str, *, prompt: bool, tools: Sequence[Message] = ()
    ) -> str:
        if not self.has_tool_template:
            messages, tools = in_words(messages, tools), ()
        hidden = [{k: self._hide(v, mark) for k, v in message.items()} for message in messages]
        shown: dict[str, Any] = {"tools": [self._hide(tool, mark) for tool in tools]} if tools else {}
        rendered = self.tokenizer.apply_chat_template(
            hidden, tokenize=False, add_generation_prompt=prompt, **shown
        )
        return str(rendered)

    def _shows_tools(self) -> bool:
        """Reports if the template writes the name of a tool passed to it."""
        function = {"name": "probe_tool_zq", "description": "d", "parameters": {"type": "object"}}
        try:
            text = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": "A"}],
                tools=[{"type": "function", "function": function}],
                tokenize=False,
                add_generation_prompt=True,
            )
        except Exception:  # a template that cannot handle tools at all
            return False
        return "probe_tool_zq" in str(text)

    def _encode(self, text: str, mark: str) -> list[int]:
        """Encodes text: control strings of the template become their ids, all else plain characters."""
        ids: list[int] = []
        for piece in self._split.split(text) if self._split else [text]:
            if piece in self._control:
                ids.append(self._control[piece])
            elif piece:
                # Of one text too, the batch form is the one that lets other threads run meanwhile.
                ids += self._plain.encode_batch([piece.replace(mark, "")], add_special_tokens=False)[0].ids
        return ids


class Text:
    """The text of successive tokens, in pieces that never change once returned."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._ids: list[int] = []
        self._told = ""

    def append(self, token_ids: Sequence[int]) -> str:
        """Adds tokens and returns the new final text. A character whose bytes are incomplete is delayed."""
        self._ids += token_ids
        text = self._chat.text(self._ids)
        while text.endswith("\ufffd"):
            text = text[:-1]
        if len(text) <= len(self._told) or not text.startswith(self._told):
            return ""
        new = text[len(self._told) :]
        self._told = text
        return new


def _without_control_tokens(tokenizer: PreTrainedTokenizerBase, control: set[str]) -> dict[str, Any]:
    """Returns the tokenizer without its control tokens, as the content of a tokenizer.json."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise OnwardError(
            "The tokenizer is not a fast tokenizer: the model folder needs a tokenizer.json file."
        )
    described = json.loads(backend.to_str())
    described["added_tokens"] = [t for t in described["added_tokens"] if t["content"] not in control]
    described["post_processor"] = None
    return described
