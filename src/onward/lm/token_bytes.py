"""The bytes of each token of a vocabulary, for log-probs in OpenAI's form."""

from __future__ import annotations

import json
import re
from functools import cache

from transformers import PreTrainedTokenizerBase

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class TokenBytes:
    """Bytes of single tokens. Control tokens have none: they are no part of an answer's text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        described = json.loads(backend.to_str()).get("decoder") if backend is not None else None
        self._is_byte_level = '"ByteLevel"' in json.dumps(described)
        self._special = set(tokenizer.all_special_ids) | {
            index for index, token in tokenizer.added_tokens_decoder.items() if token.special
        }
        self._plain = {
            index: token.content
            for index, token in tokenizer.added_tokens_decoder.items()
            if not token.special
        }

    def of(self, token: int) -> bytes:
        if token in self._special:
            return b""
        if token in self._plain:
            return self._plain[token].encode()
        piece = self._tokenizer.convert_ids_to_tokens(token)
        if not isinstance(piece, str):
            return b""  # an id that pads the network's vocabulary
        if self._is_byte_level:
            return bytes(_byte_of()[character] for character in piece if character in _byte_of())
        byte = _BYTE.fullmatch(piece)
        return bytes([int(byte[1], 16)]) if byte else piece.replace("\u2581", " ").encode()

    def dropped_at_start(self, token: int) -> int:
        """Returns the number of spaces that decoding drops from a text that begins with this token. A
        tokenizer that writes a space before each text, such as Llama 2's, drops one."""
        spelled = self.of(token)
        if not spelled.startswith(b" "):
            return 0
        decoded = self._tokenizer.decode([token], skip_special_tokens=True)
        return 0 if str(decoded).startswith(spelled.decode("utf-8", "replace")) else 1


@cache
def _byte_of() -> dict[str, int]:
    """Returns GPT-2's table: the character that a byte-level vocabulary writes for each byte, inverted."""
    shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    table = {chr(byte): byte for byte in shown}
    return table | {chr(256 + place): byte for place, byte in enumerate(hidden)}
