"""The bcrypt hash of a token, as nats-server compares it.

nats-server takes a token beside users on its command line alone, which every account of the machine can read:
so it is given a hash. Python has no bcrypt of its own from 3.13 on.
"""

from __future__ import annotations

import base64
import secrets
from functools import cache

_COST = 4
"""The least that nats-server accepts. The token has 256 random bits, so a costly hash adds nothing."""
_MAGIC = b"OrpheanBeholderScryDoubt"
_STANDARD = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_OWN = "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_TO_OWN = str.maketrans(_STANDARD, _OWN)
_WORDS = 18 + 4 * 256
_MASK = 0xFFFFFFFF

Words = tuple[int, ...]


def bcrypt(text: str, salt: bytes | None = None) -> str:
    """Returns the hash of ``text`` (at most 71 bytes); ``salt`` has 16 bytes, random by default."""
    salt = secrets.token_bytes(16) if salt is None else salt
    key = text.encode() + b"\x00"
    p, s = list(_pi_words()[:18]), list(_pi_words()[18:])
    salted, keyed, bare = _cycle(salt, 18), _cycle(key, 18), (0, 0, 0, 0)
    _expand(p, s, keyed, _cycle(salt, 4))
    for _ in range(1 << _COST):
        _expand(p, s, keyed, bare)
        _expand(p, s, salted, bare)
    digest = b""
    for at in range(0, len(_MAGIC), 8):
        left, right = int.from_bytes(_MAGIC[at : at + 4]), int.from_bytes(_MAGIC[at + 4 : at + 8])
        for _ in range(64):
            left, right = _encrypt(p, s, left, right)
        digest += left.to_bytes(4) + right.to_bytes(4)
    return f"$2b${_COST:02d}${_text(salt)}{_text(digest[:23])}"


def _expand(p: list[int], s: list[int], key: Words, salt: Words) -> None:
    """Mixes ``key`` and ``salt`` into the tables."""
    for at in range(18):
        p[at] ^= key[at]
    left = right = turn = 0
    for table in (p, s):
        for at in range(0, len(table), 2):
            left, right = _encrypt(p, s, left ^ salt[turn], right ^ salt[turn + 1])
            table[at], table[at + 1] = left, right
            turn ^= 2


def _encrypt(p: list[int], s: list[int], left: int, right: int) -> tuple[int, int]:
    """Encrypts one block of Blowfish."""
    for at in range(16):
        left ^= p[at]
        mixed = s[left >> 24] + s[256 + (left >> 16 & 255)] & _MASK
        mixed = (mixed ^ s[512 + (left >> 8 & 255)]) + s[768 + (left & 255)] & _MASK
        left, right = right ^ mixed, left
    return right ^ p[17], left ^ p[16]


def _cycle(data: bytes, count: int) -> Words:
    """Returns ``count`` words of ``data``, repeated."""
    repeated = data * (4 * count // len(data) + 1)
    return tuple(int.from_bytes(repeated[at : at + 4]) for at in range(0, 4 * count, 4))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode().rstrip("=").translate(_TO_OWN)


@cache
def _pi_words() -> Words:
    """Returns the first words of the fraction of pi, the start of Blowfish's tables (Machin's formula)."""
    spare = 64
    one = 1 << (32 * _WORDS + spare)

    def arctan(inverse: int) -> int:
        term = total = one // inverse
        number, sign = 1, 1
        while term:
            term //= inverse * inverse
            number, sign = number + 2, -sign
            total += sign * (term // number)
        return total

    fraction = (4 * (4 * arctan(5) - arctan(239)) - 3 * one) >> spare
    data = fraction.to_bytes(4 * _WORDS)
    return tuple(int.from_bytes(data[at : at + 4]) for at in range(0, len(data), 4))
