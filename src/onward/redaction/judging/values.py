"""Decides whether a value is a literal secret, and not a placeholder, variable, type hint or code expression.

A false match destroys training text, and the second pass repeats it everywhere; a missed match leaks. The
tests are ordered by cost; all are linear.
"""

from __future__ import annotations

from dataclasses import dataclass

from onward.redaction import placeholders
from onward.redaction.expressions import compiled
from onward.redaction.judging.names import PERSONAL, NameClass

_WORDS = """
changeme change_me change-me example placeholder redacted hidden masked none null nil undefined true
false yes no on off required optional string str int integer float number bool boolean bytes any object
array list dict text char varchar secretstr password passwd passphrase pass pwd secret secrets token
tokens apikey api_key api-key key keys auth authorization bearer basic digest cookie session credential
credentials user username env environ dummy default empty missing unset unknown foo bar baz self this
value values :memory: x-oauth-basic file os process config settings request headers
passwort kennwort geheim contraseña contrasena senha wachtwoord hasło haslo erforderlich requis obligatoire
obligatorio obligatoria vereist wymagane
"""
NOT_VALUES = frozenset((*_WORDS.split(), "mot de passe", "parola d'ordine", "palavra-passe"))
_SCHEME_WORDS = """
bearer basic token digest apikey api-key apitoken api-token ssws splunk negotiate ntlm aws4-hmac-sha256 key
"""
SCHEMES = frozenset(_SCHEME_WORDS.split())
MIN_AFTER_SCHEME = 6
_FIELD = (
    rb"\$\{[^}]*\}|\$\([^)]*\)|\$(?:env:)?[A-Za-z_][A-Za-z0-9_]*|\{\{.*\}\}|\{[A-Za-z_0-9.\[\]!:-]*\}"
    rb"|%\([^)]*\)[sdr]|%[sdr]|%[A-Za-z_]+%|\xc2\xa7\xc2\xa7[a-z_]+\([^)]*\)|<[^<>]*>|\[[A-Za-z_ ]+\]"
)
_TEMPLATE = compiled(rb"(?:%b)(?:[:/@,;|. _*-]{0,8}(?:%b))*" % (_FIELD, _FIELD))
"""References to a value: ``${TOKEN}``, ``{user}:{passwd}``."""
_URL = compiled(rb"[a-z][a-z0-9+.-]*://[^\s:/?#@]*:([^\s/]+)@[^\s@]")
_SPACES = b" \t\r\n"
_ENDS_LOOSE = b" \t\r\n\x00\"'`\\<>|&"
_ENDS_STRICT = _ENDS_LOOSE + b",;)}]"
_LOOSE, _STRICT = (bytes.maketrans(ends, b"\x00" * len(ends)) for ends in (_ENDS_LOOSE, _ENDS_STRICT))
"""Translation tables that turn the bytes that end a bare value into NUL."""
_OPENING = compiled(rb"[fFrRbBuU]?(\\*)([\"'`])")
_MAY_OPEN = tuple(bytes([c]) for c in b"fFrRbBuU\\\"'`")
_MAY_CLOSE = tuple(bytes([c]) for c in b"\\\"'`")
_BEHIND_A_TEXT = compiled(rb"[),;\]}\s\x00]|\\+[nr]|$")
_APOSTROPHE = compiled(rb"(?:[A-Za-z]{2}|\bI)'[a-z]")
_LINE_REACH = 200
_MAY_REFER = tuple(bytes([c]) for c in b"${%<[(^\\\xc2")
_PATTERN = compiled(rb"\(\?[:!=<iP]|\[\^?(?:a-z|A-Z|0-9)[^\]]*\]")
"""A regular expression, in code that searches for secrets."""
_NAME_OF_A_THING = compiled(
    rb"[A-Z]{0,5}[0-9]{0,3}(?:[A-Z][a-z]+[0-9]{0,5}){2,}|[A-Z]{2,}[0-9]{0,2}(?:_[A-Z]{2,}[0-9]{0,2})+"
)
"""Identifiers: ``PKCS7PrivateKeyTypes``, ``OPENAI_API_KEY``."""
_CAPITAL_WORD = compiled(rb"[A-Z][a-z]+")
_OF_CODE = compiled(rb"[A-Za-z0-9_][./:][A-Za-z0-9_]|[(){}]")
"""Part of a path or name in code: ``torch.nn.Linear``, ``owner/repository``; not of ``J. Doe``."""
_DIGITS = b"0123456789"
_SHORTEST_RUN = 12
_MOST_CONSONANTS = 6
_VOWELS = b"aeiouy"
_TO_GAPS = bytes(0x20 if c in _VOWELS else c for c in range(256))
_SYMBOLS = b"!@#$%^&*+=/~?"
SNAKE_CASE = compiled(rb"_?(?:[a-z]+[0-9]{0,2}_)+[a-z]+[0-9]{0,2}|(?:[A-Z]+[0-9]{0,2}_)+[A-Z]+[0-9]{0,2}")
"""Identifiers with digits: ``sigv4_auth_cls``, ``TRACING_V2``."""
_HEADER = compiled(rb"[A-Z][A-Za-z]{0,20}(?:-[A-Z][A-Za-z]{0,20}){1,4}")
"""The name of a header: ``X-API-Key``."""
_ELIDED = 16
"""Longest value of which an ellipsis at the end shows that it is an example: ``hf_...``."""
_UUID = compiled(rb"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TO_BLANKS = bytes(c if chr(c).isascii() and chr(c).isalnum() else 0x20 for c in range(256))
_CAPITALS = bytes(range(0x41, 0x5B))
_WIDEST_QUOTED = 4096
_FIRST_LOOK = 48
"""Most bare values end within this many bytes."""
WIDEST_BARE = 256


@dataclass(frozen=True)
class Assigned:
    """A candidate value found after ``name=``: its place and whether it was quoted."""

    start: int
    end: int
    quoted: bool


def is_reference(value: bytes) -> bool:
    """Returns whether ``value`` only names, masks or describes a secret."""
    if not value or placeholders.has_placeholder(value):
        return True
    if value[:1] in _MAY_REFER and (_TEMPLATE.fullmatch(value) or _PATTERN.search(value)):
        return True
    if len(value) <= _ELIDED and value.endswith((b"...", b"\xe2\x80\xa6")):
        return True
    low = value.lower()
    if low in _NOT_VALUES or low.startswith((b"your-", b"your_", b"your ", b"<your", b"insert_", b"insert-")):
        return True
    return value[:1] in b"*xX.-_#?0" and value == value[:1] * len(value)


def url_password(value: bytes) -> bytes | None:
    """Returns the password if ``value`` is a URL with credentials, else None."""
    match = _URL.match(value)
    return match.group(1) if match is not None and not is_reference(match.group(1)) else None


def is_scheme(value: bytes) -> bool:
    """Returns whether ``value`` is an authorization scheme such as ``Bearer``, which precedes a secret."""
    return value.lower().decode("latin-1") in SCHEMES


def is_secret_value(value: bytes, kind: NameClass, *, how: str) -> bool:
    """Returns whether ``value``, assigned to a name of class ``kind``, is a literal secret. ``how``:
    ``"key"`` (dict value), ``"quoted"``, ``"env"`` (``NAME=value`` and flags) or ``"bare"``."""
    value = value.strip(_SPACES)
    if is_reference(value) or is_scheme(value) or _is_path(value):
        return False
    if kind != "PASSWORD" and (how in ("bare", "line") or value.isupper()) and is_name_of_a_thing(value):
        return False
    if kind != "PASSWORD" and _HEADER.fullmatch(value):
        return False
    if kind in PERSONAL:
        return how in ("key", "quoted") and _is_personal(value, kind)
    if kind == "COOKIE_VALUE":
        return how in ("key", "quoted") and len(value) >= 3
    if how in ("bare", "env", "line") and _is_code(value):
        return False
    if how == "line":
        if kind == "PASSWORD" and len(value) >= 8 and value.isalpha():
            return True
        how = "bare"
    if kind == "KEY":
        return _is_generated(value)
    if kind == "SESSION" and (b" " in value or not _is_session(value)):
        return False
    strong = kind in ("PASSWORD", "SECRET", "API_KEY")
    if how in ("key", "quoted"):
        if kind == "PASSWORD":
            return len(value) >= 3 and not _is_prose(value, words=6)
        if strong:
            return len(value) >= 6 and not _is_prose(value, words=2) and not is_word(value)
        return len(value) >= 8 and not _is_prose(value, words=2) and _is_dense(value)
    if how == "env" and strong:
        return len(value) >= 4 and not _is_constant(value)
    if strong:
        telling = _has_digit(value) or _has_symbol(value) or is_random(value) or is_unpronounceable(value)
        return len(value) >= 6 and telling and not is_word(value)
    if len(value) < 12 or not _has_letter(value) or (how == "bare" and SNAKE_CASE.fullmatch(value)):
        return False
    return _is_dense(value) if _has_digit(value) else is_random(value)


def parse_assigned(buffer: bytes, at: int, *, loose: bool) -> Assigned | None:
    """Returns the value that starts at ``at``: quoted with any number of backslashes, or bare. ``loose``
    allows ``, ; ) } ]`` in a bare value (environment style); they are trimmed at its end."""
    start = at
    opening = _OPENING.match(buffer, at, at + 64) if buffer[at : at + 1] in _MAY_OPEN else None
    if opening is not None:
        opened = opening.end()
        slashes = opening.end(1) - opening.start(1)
        closed = _closing(buffer, opened, opened + _WIDEST_QUOTED, slashes, buffer[opened - 1 : opened])
        if closed is not None:
            return Assigned(opened, closed, quoted=True)
        start = opened
    elif buffer[at : at + 1] == b"\\":
        return None
    end = _end_of_bare(buffer, start, WIDEST_BARE, loose)
    while end > start:
        if buffer[end - 1] in b".,;:)}]!?":
            end -= 1
        elif end - start > 4 and buffer[end - 2 : end] == b"**":  # bold in Markdown
            end -= 2
        else:
            break
    return Assigned(start, end, quoted=False) if end > start else None


def closes_a_text(buffer: bytes, at: int) -> bool:
    """Returns whether the quote at ``at`` ends the text that contains the name before it: ``input('Password:
    ')``. It does if a quote of this kind is open on its line and the next character rarely begins a value."""
    quote = _OPENING.match(buffer, at, at + 64) if buffer[at : at + 1] in _MAY_CLOSE else None
    if quote is None or _BEHIND_A_TEXT.match(buffer, quote.end()) is None:
        return False
    line = buffer[max(0, at - _LINE_REACH) : at].rpartition(b"\x00")[2].rpartition(b"\n")[2]
    quotes = line.count(quote.group())
    if quote.group() == b"'":
        quotes -= len(_APOSTROPHE.findall(line))
    return quotes % 2 == 1


def end_of_bare(buffer: bytes, end: int, *, loose: bool) -> int:
    """Returns the end of a bare value of which only the beginning was judged."""
    while (later := _end_of_bare(buffer, end, WIDEST_BARE, loose)) == end + WIDEST_BARE:
        end = later
    return later


def _end_of_bare(buffer: bytes, start: int, widest: int, loose: bool) -> int:
    """Returns the first byte from ``start`` on that ends a bare value, at most ``widest`` further."""
    table = _LOOSE if loose else _STRICT
    for width in (_FIRST_LOOK, widest):
        at = buffer[start : start + width].translate(table).find(b"\x00")
        if at >= 0:
            return start + at
    return min(start + widest, len(buffer))


def _closing(buffer: bytes, at: int, limit: int, slashes: int, quote: bytes) -> int | None:
    """Returns the start of the closing quote (with its own backslashes); None if the text ends before it."""
    nul = buffer.find(b"\x00", at, limit)
    limit = limit if nul < 0 else nul
    while True:
        found = buffer.find(quote, at, limit)
        if found < 0:
            return None
        before = found
        while before > 0 and buffer[before - 1] == 0x5C:
            before -= 1
        if found - before == slashes or (slashes == 0 and (found - before) % 2 == 0):
            return found - slashes
        at = found + 1


def _is_generated(value: bytes) -> bool:
    """Returns whether it is one run of 20 letters and digits or more, 32 with ``-`` and ``_``, or a UUID."""
    if _UUID.fullmatch(value):
        return True
    if len(value) >= 32 and (b"-" in value or b"_" in value):
        joined = value.replace(b"-", b"").replace(b"_", b"")
        mixed = not joined.isupper() and not joined.islower() and not SNAKE_CASE.fullmatch(value)
        return mixed and joined.isalnum() and _has_digit(joined) and len(joined) >= 30
    return len(value) >= 20 and value.isalnum() and not value.isalpha() and not value.isdigit()


def _is_session(value: bytes) -> bool:
    """Returns whether it can be the id of a session: a run of 16 letters and digits, or digits and letters
    that change; a state field ``interactive_session`` also holds names, commands and dates."""
    run = max(value.translate(_TO_BLANKS).split() or [b""], key=len)
    long = len(run) >= 16 or (len(run) >= 8 and (len(value) >= 16 or not run.isdigit()))
    return (long and _has_digit(value) and _has_letter(value)) or is_random(run)


def _is_personal(value: bytes, kind: NameClass) -> bool:
    """Returns whether it can be a person's name, address, phone or id, and does not describe the field."""
    if not 2 <= len(value) <= 200 or any(c in value for c in b"{}[]<>=$\\_"):
        return False
    digits = sum(0x30 <= c <= 0x39 for c in value)
    if kind == "PERSON" and _OF_CODE.search(value):
        return False
    if kind == "PERSON":
        return digits == 0 and _has_letter_or_wide(value) and not value.islower() and len(value.split()) <= 6
    if kind == "ADDRESS":
        parts = value.replace(b"-", b" ").split()
        code = value.isdigit() or (
            value.isalnum() and value.isupper() and 5 <= len(value) <= 8 and digits > 1
        )
        whole = len(parts) > 1 or (code and digits > 1 and len(value) > 3)
        return digits > 0 and whole and b"://" not in value and not _is_host(value)
    return digits >= (7 if kind == "PHONE" else 4)


def _has_letter_or_wide(value: bytes) -> bool:
    return _has_letter(value) or any(c >= 0x80 for c in value)


def _is_host(value: bytes) -> bool:
    """Returns whether it is the address of a machine: ``10.0.0.1:80``, ``0x7f00``, ``node-3.local``."""
    return b" " not in value and (b"." in value or b":" in value or value[:2] == b"0x" or len(value) > 24)


def _is_code(value: bytes) -> bool:
    if value[:1] in b"([{=:*&!+-/" and not _has_digit(value):
        return True
    if b"(" in value or b"[" in value or b"{" in value or b"->" in value or b"::" in value:
        return True
    if value.isdigit():
        return len(value) < 6
    if b"." in value and not any(c in value for c in b"+/=@#$%^&*!~"):
        return all(part[:1].isalpha() or part[:1] == b"_" for part in value.split(b".")) and not any(
            len(part) >= 20 for part in value.split(b".")
        )
    return False


def _is_constant(value: bytes) -> bool:
    """Returns whether it is a name in capitals: ``YOUR_KEY_2``, ``HMACSHA256``; not ``ABCDEF123456``."""
    if not value.isupper() or not value.isalnum() or len(value) < 8:
        return value.isupper()
    digits = len(value) - len(value.translate(None, _DIGITS))
    return digits < (1 if len(value) >= 16 else 4)


def _is_path(value: bytes) -> bool:
    if value[:1] not in b"/.~" and value[1:3] not in (b":\\", b":/") and b"://" not in value[:12]:
        return False
    if b"://" in value[:12]:
        return b"@" not in value and b"?" not in value
    if b"+" in value or b"=" in value or _is_drawn(value):
        return False
    return value.count(b"/") + value.count(b"\\") >= 1 and max(map(len, value.split(b"/"))) < 32


def _is_drawn(value: bytes) -> bool:
    """Returns whether it is a base64 key with slashes: folder names are short or have few capitals."""
    longest = max(map(len, value.split(b"/")))
    return len(value) >= 32 and longest >= 12 and is_random(value.translate(None, _DIGITS + b"/"))


def _is_prose(value: bytes, words: int) -> bool:
    parts = value.split()
    return len(parts) > words and sum(part.strip(b".,:;!?'\"()").isalpha() for part in parts) >= words


def is_word(value: bytes) -> bool:
    """Returns whether it is a plain word or snake_case name: ``required_field``, ``GitHub``."""
    if is_unpronounceable(value):
        return False
    parts = value.replace(b"-", b"_").split(b"_")
    return (len(value) < 20 or (b"-" not in value and b"_" in value and len(value) < 48)) and all(
        part.isalpha() and (part.islower() or part.istitle()) for part in parts
    )


def _is_dense(value: bytes) -> bool:
    """Returns whether it is no word, sentence or name: it has a digit and a letter, or is a long run."""
    if _has_digit(value) and _has_letter(value):
        return True
    if len(value) >= 20 and b" " not in value and b"_" not in value and b"-" not in value:
        return True
    return value.isdigit() and len(value) >= 12


def is_random(value: bytes) -> bool:
    """Returns whether the letters look random: ``camelCaseNames`` have few capitals."""
    if len(value) < 16 or not value.isalpha():
        return False
    capitals = len(value) - len(value.translate(None, _CAPITALS))
    return len(value) // 4 < capitals < len(value) * 3 // 4


def is_unpronounceable(value: bytes) -> bool:
    """Returns whether it is one run of letters that no word has: 12 or more, with few vowels or with six
    consonants in a row."""
    if len(value) < _SHORTEST_RUN or not value.isalpha():
        return False
    text = value.lower()
    vowels = len(text) - len(text.translate(None, _VOWELS))
    return vowels * 6 < len(text) or max(map(len, text.translate(_TO_GAPS).split())) >= _MOST_CONSONANTS


def is_name_of_a_thing(value: bytes) -> bool:
    """Returns whether it is an identifier of code: ``PKCS7PrivateKeyTypes``, ``OPENAI_API_KEY``. The parts of
    a long one are words: four letters on average, and all but one with a vowel."""
    if not value.replace(b"_", b"").isalnum() or _NAME_OF_A_THING.fullmatch(value) is None:
        return False
    if len(value) < 16 or value.isupper():
        return True
    parts = _CAPITAL_WORD.findall(value)
    silent = sum(len(part.lower().translate(None, _VOWELS)) == len(part) for part in parts)
    return silent <= 1 and sum(map(len, parts)) >= 4 * len(parts)


def _has_digit(value: bytes) -> bool:
    return len(value.translate(None, _DIGITS)) < len(value)


def _has_letter(value: bytes) -> bool:
    return value.lower() != value.upper()


def _has_symbol(value: bytes) -> bool:
    return len(value.translate(None, _SYMBOLS)) < len(value)


_NOT_VALUES = frozenset(word.encode() for word in NOT_VALUES)
