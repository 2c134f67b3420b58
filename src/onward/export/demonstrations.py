"""What scored well, as conversations to imitate, each once.

Whether a trajectory scored well is decided where it is chosen; here only what cannot be imitated is left out.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import Any, Literal

from onward.export.messages import conversation
from onward.export.records import Record
from onward.lm.tool_words import in_words

MIN_REWARD = 0.7
"""Least ``raw_total`` of a demonstration. With the default weights a success whose other components are
neutral has at least 0.74; one with a thumb down, or with far more turns than usual, has less than 0.7."""
Form = Literal["openai", "text"]


class Demonstrations:
    """Makes lines; ``left_out`` counts by reason what cannot be imitated.

    ``openai``: messages and tools as the chat API takes them. ``text``: roles and texts alone, with tools and
    calls in the words by which the gateway tells them to a model without a tool template.
    """

    def __init__(self, form: Form) -> None:
        self.form = form
        self.left_out: Counter[str] = Counter()
        self._seen: set[bytes] = set()

    def line(self, record: Record) -> dict[str, Any] | None:
        """The conversation up to its last answer; None where it is left out."""
        metadata = record.trajectory["metadata"]
        whole = conversation(record.trajectory, as_said=True).until_last_answer()
        said = in_words(whole.messages, whole.tools)
        digest = hashlib.blake2b(json.dumps(said).encode(), digest_size=16).digest()
        reason = ""
        if metadata.get("texts_cut"):
            reason = "cut"
        elif (record.outcome or {}).get("unparsable"):
            reason = "unparsable"
        elif not any(message["role"] == "assistant" for message in whole.messages[1:]):
            reason = "no_answer"
        elif digest in self._seen:
            reason = "duplicate"
        if reason:
            self.left_out[reason] += 1
            return None
        self._seen.add(digest)
        return {"messages": said} if self.form == "text" else openai_line(whole.messages, whole.tools)


def openai_line(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> dict[str, Any]:
    """A line of OpenAI's fine-tuning form."""
    return {"messages": messages, "tools": tools} if tools else {"messages": messages}
