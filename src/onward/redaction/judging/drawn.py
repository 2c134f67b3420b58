"""Decides whether a value looks drawn: chosen by a generator, or by a person against guessing.

It is the judge where the text says little: after a comma, a blank or "is". A name with a number (``sha256``,
``utf8mb4``, ``X-Token-V2``), a version, a date, a duration, a path or a file is not drawn.
"""

from __future__ import annotations

from onward.redaction.expressions import compiled
from onward.redaction.judging.values import (
    SNAKE_CASE,
    is_name_of_a_thing,
    is_random,
    is_reference,
    is_unpronounceable,
    is_word,
)

_SHORTEST = 8
_LONGEST_NAME = 8
"""Runs of letters and digits of this length with changes between them are no names."""
_SHAPE = bytes(
    ord("a")
    if 0x61 <= c <= 0x7A
    else ord("A")
    if 0x41 <= c <= 0x5A
    else ord("0")
    if 0x30 <= c <= 0x39
    else ord("-")
    for c in range(256)
)
_SIGNS = frozenset(b"!@#$%^&*")
_CODE = frozenset(b"()[]{}<>\\`\"';|,")
_OTHER_THINGS = compiled(
    rb"v?[0-9]+(?:[.]?(?:alpha|beta|rc|a|b)[0-9]+|[.][0-9]+.*)|v[0-9]+[a-z]+[0-9]+"
    rb"|(?:[0-9.]+(?:h|m|s|d|ms|us|ns|min|sec|px|em|kb|mb|gb|k|b|w|x))+|[0-9]+x[0-9]+.*"
    rb"|[0-9]{4}-[0-9]{2}-[0-9]{2}.*|[0-9:.,+TZ-]+|0x[0-9a-fA-F]{1,8}"
    rb"|.*[.](?:py|js|ts|tsx|jsx|json|ya?ml|toml|md|txt|html?|css|sh|go|rs|java|rb|php|c|h|cc|cpp|png|jpe?g|gif|svg"
    rb"|pdf|csv|xml|log|lock|cfg|ini|conf|sql|whl|gz|zip|tar|com|org|net|io|dev|local)(?:[:#].*)?"
)
"""Versions, durations, sizes, dates, addresses, files, hosts."""


def is_drawn(value: bytes) -> bool:
    """Returns whether ``value`` looks drawn: at least 8 bytes, with digits and letters that change within one
    run, or with a sign, or a long run of mixed letters. Linear."""
    if len(value) < _SHORTEST or is_reference(value) or any(c in _CODE or c <= 0x20 for c in value):
        return False
    if (
        value[:1] in b"/.~-"
        or b"://" in value
        or _OTHER_THINGS.fullmatch(value)
        or is_name_of_a_thing(value.rpartition(b".")[2])
    ):
        return False
    shape = value.translate(_SHAPE)
    if b"0" not in shape:
        return is_random(value)
    run = max(shape.split(b"-"), key=len)
    flat = shape.replace(b"A", b"a")
    changes = flat.count(b"a0") + flat.count(b"0a")
    if any(c in _SIGNS for c in value[1:]) and changes:
        return True
    if len(run) < _LONGEST_NAME or b"0" not in run or not run.strip(b"0"):
        return False
    if changes >= 3:
        return True
    inner = run[1:]
    return changes == 2 and (b"aA" in inner or b"0a" in run[:3] or len(run) >= 20)


def is_telling(value: bytes) -> bool:
    """Returns whether ``value`` is no plain word, name or reference: at least 4 bytes with a digit or a sign,
    or letters that no word has.
    The judge where the text shows that a literal value follows."""
    if len(value) < 4 or is_reference(value) or is_word(value) or any(c in _CODE or c <= 0x20 for c in value):
        return False
    if value[:1] in b"/.~-" or b"://" in value or value.isdigit() or _OTHER_THINGS.fullmatch(value):
        return False
    if is_name_of_a_thing(value.rpartition(b".")[2]) or SNAKE_CASE.fullmatch(value):
        return False
    shown = any(0x30 <= c <= 0x39 or c in _SIGNS for c in value)
    return shown or is_random(value) or is_unpronounceable(value)
