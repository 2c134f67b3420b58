"""Chat messages to token ids, without ever encoding history twice.

Invariants: text of a message never becomes a control token. Control strings such as ``<|im_end|>`` inside a
message are encoded as ordinary characters, so that a user cannot end a turn or speak as another role. For all
other text the ids equal those of the tokenizer's own chat template.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from onward.errors import OnwardError
from onward.lm.answer_form import CallStyle
from onward.lm.text_length import longest_token
from onward.lm.tool_words import TOOL_RULES, Message, alternating, in_words

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
        self._ends = _end_ids(tokenizer)
        control = {token.content: i for i, token in added.items() if token.special or i in self._ends}
        self._control: dict[str, int] = control
        self._hidden = frozenset(control.values())
        pattern = "|".join(re.escape(text) for text in sorted(control, key=len, reverse=True))
        self._split = re.compile(f"({pattern})") if control else None
        described = _without_control_tokens(tokenizer, set(control))
        self._plain = Tokenizer.from_str(json.dumps(described))
        self._longest = longest_token(described)
        self.has_tool_template = False
        self._folds = False
        self._folds = not self._accepts("system") or not self._accepts("tool")
        self.end_of_turn, self._end_text = self._find_end_of_turn()
        self.has_tool_template, self._writes_whole_tools = self._shows_tools()

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that complete an answer: the end of the turn, and the ends of text of tokenizer and model."""
        return tuple(sorted({self.end_of_turn} | self._ends))

    @property
    def call_style(self) -> CallStyle:
        """The form in which the model is taught to write calls of tools."""
        if not self.has_tool_template:
            return "words"
        template = str(self.tokenizer.chat_template)
        if "<tool_call>" in template:
            return "blocks"
        return "parameters" if '"parameters": ' in template else "arguments"

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
        # Of one text too, the batch form is the one that lets other threads run meanwhile.
        return list(self._plain.encode_batch([text], add_special_tokens=False)[0].ids)

    def fewest_tokens_of(self, text: str) -> int:
        """Returns a number of tokens that ``encode(text)`` has at least, without encoding it."""
        return 0 if self._longest is None else len(text) // self._longest

    def fewest_tokens(self, messages: Sequence[Message], tools: Sequence[Message] = ()) -> int:
        """Returns a number of tokens that a prompt of ``messages`` has at least, without encoding it. Text of
        the assistant and outer spaces do not count: a template may leave them out."""
        if self._longest is None:
            return 0
        said = [message.get("content") for message in messages if message["role"] != "assistant"]
        if self._writes_whole_tools:
            said += [part for tool in tools for part in _parts_of(tool)]
        return sum(len(text.strip()) for text in said if isinstance(text, str)) // self._longest

    def text(self, token_ids: Sequence[int]) -> str:
        """Returns the text of sampled tokens, without control tokens."""
        shown = [token for token in token_ids if token not in self._hidden]
        return str(self.tokenizer.decode(shown, skip_special_tokens=True))

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
        rest = self._after_answer(previous_messages, answer, new_messages, mark, tools)
        if rest is None:
            return None
        delta = self._encode(rest, mark)
        return delta if finished else [self.end_of_turn, *delta]

    def _after_answer(
        self,
        previous: Sequence[Message],
        answer: Message,
        new: Sequence[Message],
        mark: str,
        tools: Sequence[Message],
    ) -> str | None:
        """Returns what the template writes after the end of ``answer`` in the conversation ``new``; None if
        the text up to there is another one than when the answer was given.

        The answer in the new text is compared with its own words first: a template may write the last answer
        of a conversation in another form (with an empty thought) than the same answer in the middle.
        """
        before = self._text(previous, mark, prompt=True, tools=tools)
        whole = self._text(new, mark, prompt=True, tools=tools)
        if not answer.get("tool_calls"):
            exact = f"{before}{self._hide(answer.get('content') or '', mark)}{self._end_text}"
            if whole.startswith(exact):
                return whole[len(exact) :]
        upto = self._text([*previous, answer], mark, prompt=False, tools=tools)
        cut = upto.rfind(self._end_text)
        if cut < len(before) or not upto.startswith(before):
            return None
        cut += len(self._end_text)
        return whole[cut:] if whole[:cut] == upto[:cut] else None

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
        if self._folds:
            messages = alternating(messages)
        hidden = [{k: self._hide(v, mark) for k, v in message.items()} for message in messages]
        shown: dict[str, Any] = {"tools": [self._hide(tool, mark) for tool in tools]} if tools else {}
        rendered = self.tokenizer.apply_chat_template(
            hidden, tokenize=False, add_generation_prompt=prompt, **shown
        )
        return str(rendered)

    def _accepts(self, role: str) -> bool:
        """Reports if the template takes a message of ``role`` in its usual place."""
        talk = [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}]
        odd = {"role": role, "content": "C"}
        try:
            self._text([odd, *talk] if role == "system" else [*talk, odd], "", prompt=True)
        except Exception:  # templates raise what they like
            return False
        return True

    def _shows_tools(self) -> tuple[bool, bool]:
        """Reports if the template writes the name of a tool passed to it, and if the prompt has the whole
        schema and description: some templates write only the keywords that they know."""
        parameters = {"type": "object", "probe_key_zq": {"probe_item_zq": [1]}}
        function = {"name": "probe_tool_zq", "description": "probe_words_zq", "parameters": parameters}
        try:
            text = str(
                self.tokenizer.apply_chat_template(
                    [{"role": "user", "content": "A"}],
                    tools=[{"type": "function", "function": function}],
                    tokenize=False,
                    add_generation_prompt=True,
                )
            )
        except Exception:  # a template that cannot handle tools at all
            text = ""
        if "probe_tool_zq" not in text:
            return False, True  # ``in_words`` writes all of it
        return True, all(word in text for word in ("probe_key_zq", "probe_item_zq", "probe_words_zq"))

    def _encode(self, text: str, mark: str) -> list[int]:
        """Encodes text: control strings of the template become their ids, all else plain characters."""
        ids: list[int] = []
        for piece in self._split.split(text) if self._split else [text]:
            if piece in self._control:
                ids.append(self._control[piece])
            elif piece:
                ids += self.encode(piece.replace(mark, ""))
        return ids


def _parts_of(tool: Message) -> list[Any]:
    """Returns the long texts of a tool, each as short as a template may write it."""
    function = tool["function"]
    shortest = json.dumps(function.get("parameters") or {}, ensure_ascii=False, separators=(",", ":"))
    return [shortest, function.get("description")]


def _end_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Returns the ids that end a text: the tokenizer's, and those that the model's files name."""
    found = [tokenizer.eos_token_id]
    for name in ("generation_config.json", "config.json"):
        path = Path(str(tokenizer.name_or_path)) / name
        if path.is_file():
            given = json.loads(path.read_bytes()).get("eos_token_id")
            found += given if isinstance(given, list) else [given]
            break
    return frozenset(token for token in found if isinstance(token, int))


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
