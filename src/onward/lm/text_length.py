"""Bounds the number of tokens of a text from below, by the tokenizer alone and without encoding it. Pure.

Invariants: the bound is never above the true number of tokens. A tokenizer that may drop or join characters
in a way that is not known here has no bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_SHRINKS_BY = {"Prepend": 1, "NFC": 4, "NFD": 1}
"""Normalizer → the most characters that it may join to one."""
_KEEPS_ALL = {"ByteLevel", "Digits", "Metaspace", "Split", "Punctuation"}


def longest_token(described: Mapping[str, Any]) -> int | None:
    """Returns the most characters of a text that one token can stand for; None if that has no known limit.
    ``described`` is the content of a tokenizer.json."""
    model = described["model"]
    parts = list(_parts(described.get("pre_tokenizer")))
    if any(part["type"] not in _KEEPS_ALL or part.get("behavior") == "Removed" for part in parts):
        return None
    writes_bytes = any(part["type"] == "ByteLevel" for part in parts) or model.get("byte_fallback")
    if model.get("type") != "BPE" or not writes_bytes:
        return None
    shrinks = 1
    for part in _parts(described.get("normalizer")):
        if part["type"] == "Replace":
            pattern = part["pattern"].get("String")
            shrinks *= 0 if pattern is None or len(part["content"]) < len(pattern) else 1
        else:
            shrinks *= _SHRINKS_BY.get(part["type"], 0)
    added = (token["content"] for token in described["added_tokens"])
    return shrinks * max(map(len, [*model["vocab"], *added])) or None


def _parts(described: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """Yields the parts of a normalizer or pre-tokenizer, also those inside a sequence."""
    if described is None:
        return
    if described["type"] != "Sequence":
        yield described
        return
    for part in described.get("normalizers") or described.get("pretokenizers") or ():
        yield from _parts(part)
