"""Finds the places where a user name that may be an ordinary word is an account name.

``/home/marshall`` names a person, "marshall the troops" does not. A name that can be read as a word consists
of small letters and has no beginning like ``jsm``, which no word has. It is therefore propagated only to
places of account names: paths, prompts, addresses, ``user=``, listings, a line alone.
"""

from __future__ import annotations

from typing import Any

import re2

_BYTES = re2.Options()
_BYTES.encoding = re2.Options.Encoding.LATIN1
_BEFORE: Any = re2.compile(
    rb"(?:[/\\~@]"
    rb"|\b(?i:user|username|login|logname|owner|account|uid|gid|group|su|sudo -u|chown|passwd|for user)"
    rb"[\"']?\s?[=: ]\s?\\{0,4}[\"']?"
    rb"|[0-9]\("
    rb"|[-dlbcps][-rwxsStT]{9}[.+@]?\s+[0-9]+\s(?:\S+\s+)?)$",
    _BYTES,
)
"""Text before an account name: ``/x``, ``user=x``, ``uid=1000(x)``, ``drwxr-xr-x 2 x x``."""
_AFTER: Any = re2.compile(rb"@|[/\\][A-Za-z0-9._-]|:[~/A-Za-z0-9]", _BYTES)
_LINE_BEFORE: Any = re2.compile(rb"(?:[\x00\r\n]|\\[nr])[ \t\"']{0,4}$", _BYTES)
_LINE_AFTER: Any = re2.compile(rb"[ \t\"']{0,4}(?:$|[\x00\r\n]|\\|[ \t]+(?:[0-9]|pts/|tty))", _BYTES)
"""Output of ``whoami`` (the name alone), ``ps`` and ``who`` (before a number or a terminal)."""
_REACH = 48
_VOWELS = frozenset(b"aeiouy")
_ONSETS = frozenset(
    b"bl br ch cl cr dr dw fl fr gh gl gn gr kh kl kn kr ph pl pn pr ps pt rh sc sh sk sl sm sn sp sq st sv "
    b"sw th tr ts tw vl vr wh wr zh".split()
)
"""Pairs of consonants with which English words begin."""


def may_be_word(name: bytes) -> bool:
    """Returns whether it is small letters alone that may begin a word: ``marshall``; not ``jsmith``,
    ``tberg2``, ``Ada``."""
    if not (name.isalpha() and name.islower()):
        return False
    return name[0] in _VOWELS or name[1] in _VOWELS or name[:2] in _ONSETS


def names_account(buffer: bytes, first: int, last: int) -> bool:
    """Returns whether an account name can stand at ``first``..``last``. Linear; reads 48 bytes around."""
    start = max(0, first - _REACH)
    before = buffer[start:first] if start else b"\x00" + buffer[:first]
    after = buffer[last : last + _REACH]
    if _BEFORE.search(before) is not None or _AFTER.match(after) is not None:
        return True
    return _LINE_BEFORE.search(before) is not None and _LINE_AFTER.match(after) is not None
