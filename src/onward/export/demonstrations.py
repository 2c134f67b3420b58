"""Conversations with a high reward, to train on by imitation, each once.

The caller selects trajectories by reward. This module only leaves out those that cannot be imitated.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import Any, Literal

from onward.capture.conversations.messages import conversation
from onward.export.records import Record

MIN_REWARD = 0.7
"""Lowest ``raw_total`` of a demonstration. With the default weights a success whose other components are
neutral scores at least 0.74; one with a thumb down, or with far more turns than usual, scores below 0.7."""
Form = Literal["openai", "text"]


class Demonstrations:
    """Makes lines. ``left_out`` counts, by reason, the trajectories that cannot be imitated.

    ``openai``: messages and tools in the form of the chat API. ``text``: only roles and texts; tools and
    calls are written in the words that the gateway uses for a model without a tool template.
    """

    def __init__(self, form: Form) -> None:
        self.form = form
        self.left_out: Counter[str] = Counter()
        self._seen: set[bytes] = set()

    def line(self, record: Record) -> dict[str, Any] | None:
        """Returns the conversation up to its last answer; None if it is left out."""
        metadata = record.trajectory["metadata"]
        whole = conversation(record.trajectory, as_said=True).until_last_answer()
        said = whole.texts()
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
    """Returns a line in OpenAI's fine-tuning form."""
    return {"messages": messages, "tools": tools} if tools else {"messages": messages}
