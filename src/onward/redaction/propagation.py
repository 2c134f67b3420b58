"""Second pass: a secret found once is searched everywhere in the document, in every form.

Forms: raw, JSON-escaped (once and twice), URL-encoded, base64 at its three alignments, and line by line for a
secret of several lines. Short values match whole words only.

A user name that can be read as a word (small letters, no beginning like ``jsm``, which no word has) is
searched only where account names stand, in paths, prompts, addresses, ``user=``, listings or a line alone:
``/home/marshall`` names a person, "marshall the troops" does not.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, quote_plus, unquote_to_bytes

import re2

from onward.redaction.expressions import compiled, latin1
from onward.redaction.judging.checks import may_start
from onward.redaction.judging.values import is_unpronounceable

MIN_LENGTH = 6
_FREE_LENGTH = 16
_MIN_LINE = 20
_FEW = 24
_BATCH = 400
_LONGEST_NUMBER = 40
_LONGEST = latin1(longest_match=True, max_mem=64 << 20)
_ALNUM = frozenset(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_")
_BASE64 = frozenset(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz+/=_-")
_BEFORE = compiled(
    rb"(?:[/\\~@]"
    rb"|\b(?i:user|username|login|logname|owner|account|uid|gid|group|su|sudo -u|chown|passwd|for user)"
    rb"[\"']?\s?[=: ]\s?\\{0,4}[\"']?"
    rb"|[0-9]\("
    rb"|[-dlbcps][-rwxsStT]{9}[.+@]?\s+[0-9]+\s(?:\S+\s+)?)$"
)
"""Text before an account name: ``/x``, ``user=x``, ``uid=1000(x)``, ``drwxr-xr-x 2 x x``."""
_AFTER = compiled(rb"@|[/\\][A-Za-z0-9._-]|:[~/A-Za-z0-9]")
_LINE_BEFORE = compiled(rb"(?:[\x00\r\n]|\\[nr])[ \t\"']{0,4}$")
_LINE_AFTER = compiled(rb"[ \t\"']{0,4}(?:$|[\x00\r\n]|\\|[ \t]+(?:[0-9]|pts/|tty))")
"""Output of ``whoami`` (the name alone), ``ps`` and ``who`` (before a number or a terminal)."""
_REACH = 48
_CHOSEN = frozenset(
    (
        "PASSWORD",
        "URL_PASSWORD",
        "CLI_PASSWORD",
        "SECRET",
        "TOKEN",
        "API_KEY",
        "AUTHORIZATION",
        "SESSION",
        "COOKIE",
    )
)
"""Kinds whose values people choose."""
_COMMON_WORDS = """
postgres postgresql mysql mariadb mongo mongodb redis rabbitmq elastic elasticsearch opensearch kibana grafana
minio influxdb clickhouse cassandra neo4j oracle mssql sqlserver sqlite docker kubernetes jenkins gitlab
airflow django rails laravel wordpress drupal keycloak vault consul kafka zookeeper nats celery superset
metabase sonar sonarqube nexus artifactory jupyter ubuntu debian vagrant raspberry root admin administrator
guest user username users test testing tester demo dev develop developer development prod production staging
local localhost default example sample secret secrets password passwords passwd pass changeme change letmein
welcome master manager public private server service database db access token key value string hello world
login client backend frontend python java node operator support backup monitor replica application app web
api data my your super the me it
"""
COMMON = frozenset(word.encode() for word in _COMMON_WORDS.split())
"""Names of products and accounts, and fillers, that are also passwords."""
_MOST_PARTS = 2
_URL_REACH = 256
_NAMES_IN_URL = compiled(rb"[A-Za-z0-9]+(?:[_-][A-Za-z0-9]+)*")
_USER_OF_URL = compiled(rb"://([^\s\x00/@:]*):$")
_END_OF_URL = compiled(rb"@[^\s\x00\"'\\<>?#,;)]*")
_VOWELS = frozenset(b"aeiouy")
_ONSETS = frozenset(
    b"bl br ch cl cr dr dw fl fr gh gl gn gr kh kl kn kr ph pl pn pr ps pt rh sc sh sk sl sm sn sp sq st sv "
    b"sw th tr ts tw vl vr wh wr zh".split()
)
"""Pairs of consonants with which English words begin."""


@dataclass(frozen=True)
class Needle:
    """``text`` stands for the secret ``value``. A match of an ``encoded`` one is extended to the whole base64
    run; an ``account`` one matches only where an account name can stand."""

    text: bytes
    value: bytes
    whole_word: bool
    encoded: bool = False
    account: bool = False


def needles(value: bytes, kind: str = "") -> Iterator[Needle]:
    """Yields every form in which ``value`` may occur elsewhere. Nothing for values under 6 bytes, and for
    a password that is a common word. A ``USER``
    that may be a word is searched only in its raw form, where an account name can stand."""
    if len(value) < MIN_LENGTH or may_be_common(value, kind):
        return
    if kind == "USER" and may_be_word(value):
        yield Needle(value, value, whole_word=True, account=True)
        return
    short = len(value) < _FREE_LENGTH
    for form in forms(value):
        yield Needle(form, value, whole_word=short)
    for core in _base64_cores(value):
        yield Needle(core, value, whole_word=False, encoded=True)
    if b"\n" in value or b"\\n" in value:
        for line in value.replace(b"\\r", b"").replace(b"\\n", b"\n").splitlines():
            text = line.strip()
            if len(text) >= _MIN_LINE:
                yield Needle(text, value, whole_word=False)


def may_be_common(value: bytes, kind: str) -> bool:
    """Returns whether a value of ``kind`` is a word of ``COMMON``, or two of them. Such a value is replaced
    where it was found, not elsewhere: a text whose words vanish teaches nothing. Any other word is a secret
    like the rest."""
    if kind not in _CHOSEN:
        return False
    parts = value.lower().replace(b"-", b"_").split(b"_")
    return len(parts) <= _MOST_PARTS and COMMON.issuperset(parts)


def names_its_url(text: bytes, first: int, last: int) -> bool:
    """Returns whether the password at ``first``..``last`` of a URL is a word that is also the user, the host
    or the database there: ``mysql://shop:shop@db/shop``."""
    value = text[first:last].lower()
    parts = value.replace(b"-", b"_").split(b"_")
    if len(parts) > _MOST_PARTS or not all(part.isalpha() and not is_unpronounceable(part) for part in parts):
        return False
    user = _USER_OF_URL.search(text[max(0, first - _URL_REACH) : first])
    rest = _END_OF_URL.match(text[last : last + _URL_REACH])
    if user is None or rest is None:
        return False
    names = _NAMES_IN_URL.findall(rest.group().lower())
    return value == user.group(1).lower() or value in names


def forms(value: bytes) -> set[bytes]:
    """Returns ``value`` raw, unescaped, JSON-escaped and URL-encoded."""
    found = {value}
    if b"%" in value:
        found.add(unquote_to_bytes(value))
    if b"\\" in value:
        found.add(_json_unescaped(value))
    for plain in tuple(found):
        text = plain.decode("utf-8", "surrogatepass") if _is_utf8(plain) else None
        if text is None:
            continue
        for ascii_only in (False, True):
            once = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
            twice = json.dumps(once, ensure_ascii=ascii_only)[1:-1]
            found |= {_bytes(once), _bytes(twice)}
        percent = quote(plain, safe="").encode()
        found |= {percent, percent.lower() if percent != plain else plain, quote_plus(plain).encode()}
        found.add(quote(plain, safe="/").encode())
    return {form for form in found if len(form) >= MIN_LENGTH}


def as_number(value: bytes) -> float | None:
    """Returns the number of six or more characters that may stand for ``value`` in a document, or None."""
    whole, point, rest = value.removeprefix(b"-").partition(b".")
    if not MIN_LENGTH <= len(value) <= _LONGEST_NUMBER or not whole.isdigit():
        return None
    if whole.startswith(b"0") and whole != b"0":
        return None
    if point:
        return float(value) if rest.isdigit() else None
    return int(value)


def same_number(text: bytes, value: bytes) -> bool:
    """Returns whether the JSON number ``text`` is ``value``, without the sign; true if that is no number."""
    number = as_number(value)
    return number is None or abs(float(text)) == abs(float(number))


def find(buffer: bytes, by_text: dict[bytes, Needle]) -> Iterator[tuple[int, int, Needle]]:
    """Yields each occurrence of a needle in ``buffer``: (start, end, needle)."""
    for start, needle in _find_few(buffer, by_text) if len(by_text) <= _FEW else _find_many(buffer, by_text):
        span = placed(buffer, start, needle)
        if span is not None:
            yield *span, needle


def placed(buffer: bytes, start: int, needle: Needle) -> tuple[int, int] | None:
    """Returns the span to take for ``needle`` at ``start``; None if it is only part of a longer word."""
    end = start + len(needle.text)
    if needle.whole_word and not _stands_alone(buffer, start, end):
        return None
    if needle.account and not _names_account(buffer, start, end):
        return None
    return _whole_run(buffer, start, end) if needle.encoded else (start, end)


def _find_few(buffer: bytes, by_text: dict[bytes, Needle]) -> Iterator[tuple[int, Needle]]:
    for text, needle in by_text.items():
        at = buffer.find(text)
        while at >= 0:
            yield at, needle
            at = buffer.find(text, at + len(text))


def _find_many(buffer: bytes, by_text: dict[bytes, Needle]) -> Iterator[tuple[int, Needle]]:
    for expression in alternations(by_text):
        for match in expression.finditer(buffer):
            yield match.start(), by_text[match.group()]


def alternations(texts: Iterable[bytes]) -> Iterator[Any]:
    """Yields expressions that find the longest of ``texts`` at each place, each for some hundred texts."""
    ordered = sorted(texts)
    for i in range(0, len(ordered), _BATCH):
        yield re2.compile(b"|".join(map(re2.escape, ordered[i : i + _BATCH])), _LONGEST)


def _stands_alone(buffer: bytes, start: int, end: int) -> bool:
    left = may_start(buffer, start) or buffer[start] not in _ALNUM
    right = end >= len(buffer) or buffer[end] not in _ALNUM or buffer[end - 1] not in _ALNUM
    return left and right


def _whole_run(buffer: bytes, start: int, end: int) -> tuple[int, int]:
    while start > 0 and buffer[start - 1] in _BASE64:
        start -= 1
    while end < len(buffer) and buffer[end] in _BASE64:
        end += 1
    return start, end


def _base64_cores(value: bytes) -> set[bytes]:
    """Returns the part common to all base64 texts that contain ``value``, for each of three alignments."""
    cores: set[bytes] = set()
    for shift in range(3):
        encoded = base64.b64encode(b"\x00" * shift + value).rstrip(b"=")
        head = (0, 2, 3)[shift]
        tail = 1 if (shift + len(value)) % 3 else 0
        core = encoded[head : len(encoded) - tail]
        if len(core) >= 8:
            cores |= {core, core.replace(b"+", b"-").replace(b"/", b"_")}
    return cores


def _json_unescaped(value: bytes) -> bytes:
    try:
        return _bytes(json.loads(b'"' + value + b'"'))
    except (ValueError, UnicodeDecodeError):
        return value


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return False
    return True


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def may_be_word(name: bytes) -> bool:
    """Returns whether it is small letters that may begin a word: ``marshall``; not ``jsmith``, ``Ada``."""
    if not (name.isalpha() and name.islower()):
        return False
    return name[0] in _VOWELS or name[1] in _VOWELS or name[:2] in _ONSETS


def _names_account(buffer: bytes, first: int, last: int) -> bool:
    """Returns whether an account name can stand at ``first``..``last``. Linear; reads 48 bytes around."""
    start = max(0, first - _REACH)
    before = buffer[start:first] if start else b"\x00" + buffer[:first]
    after = buffer[last : last + _REACH]
    if _BEFORE.search(before) is not None or _AFTER.match(after) is not None:
        return True
    return _LINE_BEFORE.search(before) is not None and _LINE_AFTER.match(after) is not None
