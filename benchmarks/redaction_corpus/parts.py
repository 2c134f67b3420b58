"""What a generated secret is made of. No file here holds a secret: each is put together at run time.

A token is a row of parts: fixed text, or ``chars(alphabet, length)`` to be drawn. The drawn parts are what
must be gone from the output; a redactor may leave a vendor's prefix.
"""

from __future__ import annotations

import random
import string
from dataclasses import dataclass

HEX = "0123456789abcdef"
DIGITS = string.digits
UPPER = string.ascii_uppercase
LOWER = string.ascii_lowercase
ALNUM = string.ascii_letters + string.digits
LOWER_ALNUM = LOWER + DIGITS
UPPER_ALNUM = UPPER + DIGITS
BASE32 = UPPER + "234567"
BASE64 = ALNUM + "+/"
BASE64URL = ALNUM + "-_"


@dataclass(frozen=True)
class Chars:
    alphabet: str
    length: int


def chars(alphabet: str, length: int) -> Chars:
    return Chars(alphabet, length)


Part = str | Chars
Spec = tuple[Part, ...]


def draw(rng: random.Random, alphabet: str, length: int) -> str:
    return "".join(rng.choice(alphabet) for _ in range(length))


def token(rng: random.Random, spec: Spec) -> tuple[str, tuple[str, ...]]:
    """The whole token, and its drawn parts of at least six characters."""
    drawn = [draw(rng, part.alphabet, part.length) if isinstance(part, Chars) else part for part in spec]
    secret = tuple(
        text for text, part in zip(drawn, spec, strict=True) if isinstance(part, Chars) and part.length >= 6
    )
    return "".join(drawn), secret


def password(rng: random.Random) -> str:
    """As people make them: a word, signs, digits; never a sign that ends a URL part or a quoted text."""
    word = draw(rng, LOWER, 6).capitalize()
    return word + rng.choice("!*.+-_~") + draw(rng, DIGITS, 3) + draw(rng, ALNUM, 4)
