"""The yardstick of redaction: every kind of secret in every context and placement, and what must stay.

Tests, benchmark and fuzzing share it, so that all speak of the same texts. It knows nothing of Onward: it
makes documents and judges outputs. Which kinds exist is data in ``vendor``, ``structure`` and ``personal``;
a kind that is missed is listed in the test, never taken out here.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from redaction_corpus import personal, stay, structure, vendor

__all__ = [
    "CONTEXTS", "PLACEMENTS", "Case", "cases", "document", "in_context", "kept", "leaked", "stay", "texts",
]  # fmt: skip


def _once(text: str) -> str:
    return json.dumps({"k": text})


CONTEXTS: dict[str, Callable[[str], str]] = {
    "plain": lambda t: f"aside {t} onward",
    "quoted": lambda t: f'aside "{t}" onward',
    "escaped": lambda t: f"aside {_once(t)} onward",
    "double escaped": lambda t: f"aside {_once(_once(t))} onward",
    "full stop": lambda t: f"aside {t}. Then onward",
    "comma": lambda t: f"aside {t}, then onward",
    "parenthesis": lambda t: f"aside (see {t}) onward",
    "bold": lambda t: f"aside **{t}** onward",
    "html": lambda t: f"aside <b>{t}</b> onward",
    "braces": lambda t: f"aside {{{t}}} onward",
    "url": lambda t: f"https://acme.dev/cb?aside=1&k={quote(t, safe='')}&onward=2",
    "brackets": lambda t: f"aside [{t}] onward",
    "own line": lambda t: f"a line of text aside\n{t}\nonward with the text",
}
"""The secret's carrier within other text; the words *aside* and *onward* must survive."""

_ALL = tuple(CONTEXTS)
_NOT_IN_URL = tuple(name for name in CONTEXTS if name != "url")
_LINES = ("plain", "escaped", "double escaped", "own line")
_PROSE = tuple(name for name in _NOT_IN_URL if name not in ("quoted",))

PLACEMENTS: dict[str, Callable[[str], Any]] = {
    "value": lambda t: {"note": t, "n": 1},
    "key": lambda t: {"seen": {t: 1, "other": 2}},
    "list": lambda t: {"items": ["first", [t], 3]},
    "raw_response": lambda t: {
        "action": {
            "tool_args": {"text": t},
            "raw_response": json.dumps({"tool_name": "x", "tool_args": {"text": t}}),
        }
    },
    "error": lambda t: {"result": {"success": False, "error": f"RuntimeError: {t}"}},
    "header": lambda t: {"headers": {"Accept": "*/*", "X-Note": t}},
}


@dataclass(frozen=True)
class Case:
    """One secret in its carrier. ``secrets``: what must be gone from the output, each longer than 2."""

    kind: str
    layer: int
    carrier: str
    secrets: tuple[str, ...]
    contexts: tuple[str, ...]
    key: str | None = None
    """For a value known by its dict key only: the key; the carrier is then the value itself."""


def _rng(kind: str, seed: int) -> random.Random:
    return random.Random(f"{seed}:{kind}")


def _vendor(seed: int) -> Iterator[Case]:
    made = vendor.tokens({kind: _rng(kind, seed) for kind in vendor.KINDS})
    for kind, (text, secret) in made.items():
        yield Case(kind, 1, text, secret, _ALL)


_QUOTES = frozenset("\"'")


def _structure(seed: int) -> Iterator[Case]:
    for kind, (form, make) in structure.LINES.items():
        secret = make(_rng(kind, seed))
        text = form.replace("{s}", secret).replace("{{", "{").replace("}}", "}")
        fits = _NOT_IN_URL
        if _QUOTES & set(form):
            fits = tuple(name for name in fits if name != "quoted")
        yield Case(kind, 2, text, (secret,), fits)
    for kind, block in structure.BLOCKS.items():
        text, secrets = block(_rng(kind, seed))
        yield Case(kind, 2, text, secrets, _LINES)
    for key in structure.GOVERNING_KEYS:
        secret = structure.KEY24(_rng(key, seed))
        yield Case(f"key {key}", 2, secret, (secret,), ("plain",), key)


def _personal(seed: int) -> Iterator[Case]:
    for kind, make in personal.MAKERS.items():
        text, secret = make(_rng(kind, seed))
        lines = kind in ("user prompt", "git author")
        yield Case(kind, 3, text, (secret,), _LINES if lines else _PROSE)
    for key, make_value in personal.STRUCTURED.items():
        value = make_value(_rng(key, seed))
        yield Case(f"key {key}", 3, value, (value,), ("plain",), key)


@lru_cache(maxsize=4)
def cases(seed: int = 0) -> tuple[Case, ...]:
    """Every kind once, with values drawn for ``seed``."""
    return (*_vendor(seed), *_structure(seed), *_personal(seed))


def in_context(case: Case, context: str) -> str:
    return CONTEXTS[context](case.carrier)


def document(case: Case, context: str, placement: str) -> Any:
    """The document to redact. For a case with a key the placement says how deep the pair stands."""
    if case.key is None:
        return PLACEMENTS[placement](in_context(case, context))
    pair = {case.key: case.carrier}
    return {
        "value": pair,
        "key": {"args": {"deep": {"er": pair}}},
        "list": {"items": [1, pair]},
        "raw_response": {"action": {"tool_args": pair, "raw_response": json.dumps({"tool_args": pair})}},
        "error": {"result": {"error": f"ValueError: {json.dumps(pair)}"}},
        "header": {"headers": {"Accept": "*/*", **pair}},
    }[placement]


def texts(value: Any) -> Iterator[str]:
    """All values and keys of a document as text."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)
    else:
        yield str(value)


def _pieces(secret: str) -> list[str]:
    """Windows of eight characters that cover the secret; a short one is its own window."""
    if len(secret) <= 10:
        return [secret]
    return [secret[i : i + 8] for i in range(0, len(secret) - 7, 4)] + [secret[-8:]]


@lru_cache(1 << 12)  # one secret stands in many documents
def _forms(piece: str) -> set[str]:
    escaped = json.dumps(piece)[1:-1]
    return {piece, escaped, json.dumps(escaped)[1:-1], quote(piece, safe="")}


def leaked(case: Case, output: Any) -> bool:
    """Whether any eight characters in a row of a secret stand in ``output``, in any usual encoding."""
    joined = "\x00".join(texts(output))
    for secret in case.secrets:
        if any(form in joined for piece in _pieces(secret) for form in _forms(piece)):
            return True
        for shift in range(3):
            core = base64.b64encode(b"\x00" * shift + secret.encode())[4:-4].decode()
            if len(core) >= 8 and core in joined:
                return True
    return False


def kept(before: Any, after: Any) -> bool:
    """Whether structure is the same: types, list lengths, number of keys, and keys that were no secret."""
    if isinstance(before, dict):
        if not isinstance(after, dict) or len(before) != len(after):
            return False
        pairs = zip(before.items(), after.items(), strict=True)
        return all((a == b or "<" in b) and kept(x, y) for (a, x), (b, y) in pairs)
    if isinstance(before, list):
        return isinstance(after, list) and len(before) == len(after) and all(map(kept, before, after))
    return type(before) is type(after) and (isinstance(before, str) or before == after)
