"""Which names govern a secret: ``db_password``, ``apiKey``, ``X-Auth-Token``; not ``max_tokens``.

A name is split into components (separators and camelCase) before it is judged, so that ``author``
is not ``auth`` and ``monkey`` is not ``key``. Token counters, ids and settings about a secret
(``token_count``, ``password_file``) are not secrets themselves.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

NameClass = Literal["PASSWORD", "SECRET", "API_KEY", "TOKEN", "AUTHORIZATION", "COOKIE", "SESSION"]

SINGLE: dict[str, NameClass] = {
    "password": "PASSWORD",
    "passwords": "PASSWORD",
    "passwd": "PASSWORD",
    "passphrase": "PASSWORD",
    "passcode": "PASSWORD",
    "pwd": "PASSWORD",
    "pass": "SECRET",
    "secret": "SECRET",
    "secrets": "SECRET",
    "credential": "SECRET",
    "credentials": "SECRET",
    "dsn": "SECRET",
    "apikey": "API_KEY",
    "token": "TOKEN",
    "jwt": "TOKEN",
    "auth": "AUTHORIZATION",
    "authorization": "AUTHORIZATION",
    "cookie": "COOKIE",
    "cookies": "COOKIE",
    "session": "SESSION",
}
PAIRS: dict[tuple[str, str], NameClass] = {
    ("api", "key"): "API_KEY",
    ("access", "key"): "API_KEY",
    ("account", "key"): "API_KEY",
    ("auth", "key"): "API_KEY",
    ("service", "key"): "API_KEY",
    ("subscription", "key"): "API_KEY",
    ("private", "key"): "SECRET",
    ("secret", "key"): "SECRET",
    ("signing", "key"): "SECRET",
    ("encryption", "key"): "SECRET",
    ("connection", "string"): "SECRET",
    ("nkey", "seed"): "SECRET",
}
ENDINGS: dict[str, NameClass] = {
    "password": "PASSWORD",
    "passwd": "PASSWORD",
    "passphrase": "PASSWORD",
    "secret": "SECRET",
    "apikey": "API_KEY",
    "accesskey": "API_KEY",
    "privatekey": "SECRET",
    "authtoken": "TOKEN",
    "accesstoken": "TOKEN",
    "refreshtoken": "TOKEN",
}
_BEFORE_EXEMPT_WORDS = """
max min total num n eos bos pad unk sep cls mask stop special next last first per avg mean each no is
has use prompt completion
"""
BEFORE_EXEMPT = frozenset(_BEFORE_EXEMPT_WORDS.split())
_AFTER_EXEMPT_WORDS = """
count counts counter limit limits usage used budget id ids type types name names length len size url uri
endpoint host port file filename path dir expiry expires expired expiration ttl age field fields policy
rules required enabled disabled valid invalid strength hint prompt label regex pattern format void rate
cost price index position offset embedding method mode scheme status state error errors manager provider
service store class flow time timeout date at help description version rotation duration start end
"""
AFTER_EXEMPT = frozenset(_AFTER_EXEMPT_WORDS.split())
_BEST_FIRST: tuple[NameClass, ...] = (
    "PASSWORD",
    "SECRET",
    "API_KEY",
    "TOKEN",
    "AUTHORIZATION",
    "COOKIE",
    "SESSION",
)


def components(name: str) -> list[str]:
    """``"dbPassword"`` → ``["db", "password"]``; ``"X-API-Key"`` → ``["x", "api", "key"]``."""
    parts: list[str] = []
    word = ""
    for i, char in enumerate(name):
        if not char.isalnum():
            if word:
                parts.append(word)
            word = ""
            continue
        starts = char.isupper() and (
            (word and not word[-1].isupper()) or (word and i + 1 < len(name) and name[i + 1].islower())
        )
        if starts:
            parts.append(word)
            word = ""
        word += char
    if word:
        parts.append(word)
    return [part.lower() for part in parts]


def secret_class(name: str) -> NameClass | None:
    """What kind of secret a value under ``name`` is, or None. Linear in the length of ``name``.

    A name with a placeholder in it (a key that was redacted) governs nothing.
    """
    return _cached(name) if len(name) <= 64 and "<" not in name else None


@lru_cache(maxsize=4096)
def _cached(name: str) -> NameClass | None:
    parts = components(name)
    found: dict[int, NameClass] = {}
    for i, part in enumerate(parts):
        kind = SINGLE.get(part) or PAIRS.get((parts[i - 1], part) if i else ("", ""))
        for ending in ENDINGS if kind is None else ():
            if part.endswith(ending):
                kind = ENDINGS[ending]
        if kind is not None:
            found[i] = kind
    if not found:
        return None
    if any(part in AFTER_EXEMPT for part in parts[max(found) + 1 :]):
        return None
    if any(part in BEFORE_EXEMPT for part in parts[: min(found)]):
        return None
    return min(found.values(), key=_BEST_FIRST.index)
