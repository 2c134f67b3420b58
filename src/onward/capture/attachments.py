"""Separates pictures, sounds and other binary data in base64 from a document, before redaction. Pure.

A picture in a document is replaced by a note with its media type, size and SHA-256. Redaction scans text; a
scan of base64 costs a hundred times as much, finds nothing, and the text would then be cut.

Invariants: data that decodes to text stays in place and is scanned, whatever type it declares. Only data
whose magic bytes and structure are those of a picture, sound, film or PDF counts as one (``is_kept``). Other
binary data is replaced by a note, too, if it is declared as one of these; its bytes are not kept anywhere.
Text that only looks like base64 (hashes, paths, sequences) stays.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onward.capture.media import media_type as media_type_of

PREFIX = "attachments"
"""First part of the keys in the object store, before the day."""
SUBJECT = "attachment"
"""Subject of an attachment in an outbox. It goes to the object store, never to the bus."""
MAX_BYTES = 32 << 20
"""A larger attachment is not kept: only its note is stored."""
MIN_CHARS = 256
"""Shorter base64 stays in place: scanning it costs nothing."""
_DATA_URL = re.compile(
    r"data:([\w.+-]+/[\w.+-]+)(?:;[\w.+-]+=[\w.+-]*)*;base64,([A-Za-z0-9+/_-]{256,}={0,2})"
)
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{254,}={0,2}")
_OPAQUE = re.compile(r"(?:image|audio|video)/(?!.*xml$).+|application/(?:pdf|octet-stream)")
"""Declared types of data that is never text."""
_LETTERS = (re.compile("[A-Z]"), re.compile("[a-z]"), re.compile("[0-9]"))
"""All three kinds occur in base64 of any length here; hashes and sequences lack one."""
_DECLARED = ("media_type", "mime_type", "mediaType", "mimeType", "content_type", "contentType", "format")
_FORMATS = {
    "png": "image/png", "jpg": "image/jpeg", "jpeg": "image/jpeg", "gif": "image/gif", "webp": "image/webp",
    "wav": "audio/wav", "mp3": "audio/mpeg", "flac": "audio/flac", "opus": "audio/ogg", "ogg": "audio/ogg",
    "pdf": "application/pdf", "mp4": "video/mp4", "webm": "video/webm",
}  # fmt: skip
_HALF = re.compile("[\ud800-\udfff]")
"""Half of a pair of surrogates. No encoding has it, but an escape in JSON may name one."""
_NOUNS = {"image": "picture", "audio": "sound", "video": "film", "application": "document"}
_ANY = "application/octet-stream"
_CONTAINERS = frozenset(("audio", "video"))
"""One file format holds both."""
_STARTS = ("iVBORw0KGgo", "/9j/", "R0lGOD", "UklGR", "JVBERi0", "SUQz", "T2dnUw", "ZkxhQ", "AAAA", "GkXfo")
"""First letters of the base64 of a format that is recognised without a declared type."""
_NOTE = re.compile(
    rf"\[(?:{'|'.join(_NOUNS.values())}|file|unreadable data) \S+ [\d.]+ [kM]?B sha256:[0-9a-f]{{64}}\]"
)
_RUN = re.compile(rf"(?<![A-Za-z0-9+/_-])(?:{'|'.join(_STARTS)})[A-Za-z0-9+/_-]{{{MIN_CHARS},}}={{0,2}}")
_MEDIA_TYPE = re.compile(r"""["'](?:image|audio|video|application)/[\w.+-]+["']""")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]")


@dataclass(frozen=True)
class Attachment:
    """Binary data that was in a document."""

    media_type: str
    sha256: str
    size: int
    """Bytes."""
    data: bytes
    is_kept: bool
    """True if it is what its type says; else only the note is stored."""

    @property
    def note(self) -> str:
        """The text in its place: ``[picture image/png 123 kB sha256:…]``."""
        noun = _NOUNS.get(self.media_type.partition("/")[0], "file") if self.is_kept else "unreadable data"
        return f"[{noun} {self.media_type} {size_text(self.size)} sha256:{self.sha256}]"

    def key(self, day: str) -> str | None:
        """Returns its key in the object store; None if it is not kept."""
        return f"{PREFIX}/{day}/{self.sha256}" if self.is_kept and self.size <= MAX_BYTES else None

    def description(self, day: str | None) -> dict[str, Any]:
        """Returns its entry in ``metadata.attachments``; with ``uri`` if it is stored under that day."""
        told = {"media_type": self.media_type, "bytes": self.size, "sha256": self.sha256}
        key = None if day is None else self.key(day)
        return told if key is None else {**told, "uri": key}


def size_text(size: int) -> str:
    if size < 1000:
        return f"{size} B"
    return f"{size / 1000:.0f} kB" if size < 999_500 else f"{size / 1_000_000:.1f} MB"


def separate(document: Any) -> tuple[Any, list[Attachment]]:
    """Returns ``document`` with notes in place of binary data, and that data, each once. The document itself
    is returned if it has none; it is never changed."""
    if not _may_hold_data(document):
        return document, []
    separator = _Separator()
    return separator.value(document, None), list(separator.found.values())


def separate_trajectory(
    document: dict[str, Any], day: str | None = None
) -> tuple[dict[str, Any], list[Attachment]]:
    """Works like ``separate`` and adds the attachments to ``metadata.attachments``. ``day`` (yyyymmdd) is
    that of their keys if they are stored."""
    noted, found = separate(document)
    if not found:
        return document, []
    metadata = noted.get("metadata")
    if isinstance(metadata, dict):
        own = metadata.get("attachments")
        listed = [*(own if isinstance(own, list) else ()), *(one.description(day) for one in found)]
        noted = {**noted, "metadata": {**metadata, "attachments": listed}}
    return noted, found


def shown(part: Any) -> str:
    """Returns a part of a message as text: its note if it holds binary data, now or before, else JSON."""
    noted = json.dumps(separate(part)[0], ensure_ascii=False)
    notes = _NOTE.findall(noted)
    return notes[0] if len(notes) == 1 else noted


def note_of(data: bytes) -> str | None:
    """Returns the note of bytes that are a picture, sound, film or PDF; None for others."""
    media_type = media_type_of(data)
    return None if media_type is None else _attachment(data, media_type, True).note


def _may_hold_data(document: Any) -> bool:
    """Returns whether some text may be or hold base64: a quick look, as most documents have none."""
    pending = [document]
    while pending:
        value = pending.pop()
        kind = type(value)
        if kind is str:
            if len(value) >= MIN_CHARS and (
                " " not in value[:MIN_CHARS]
                or "base64," in value
                or any(start in value for start in _STARTS)
                or (value.lstrip()[:1] in ("{", "[") and _MEDIA_TYPE.search(value) is not None)
            ):
                return True
        elif kind is dict:
            pending += value.values()
        elif kind is list and value and type(value[0]) not in (int, float):
            pending += value
    return False


class _Separator:
    def __init__(self) -> None:
        self.found: dict[str, Attachment] = {}

    def value(self, value: Any, declared: str | None) -> Any:
        if isinstance(value, str):
            return value if len(value) < MIN_CHARS else self._text(value, declared)
        if isinstance(value, dict):
            here = _declared(value)
            new = {name: self.value(item, here) for name, item in value.items()}
            return new if any(new[name] is not item for name, item in value.items()) else value
        if isinstance(value, list) and value and not isinstance(value[0], (int, float)):  # token ids
            items = [self.value(item, declared) for item in value]
            return items if any(a is not b for a, b in zip(items, value, strict=True)) else value
        return value

    def _text(self, text: str, declared: str | None) -> str:
        if text.lstrip()[:1] in ("{", "[") and _MEDIA_TYPE.search(text) is not None:
            noted = self._json(text)
            if noted is not None:
                return noted
        if "base64," in text:
            return _DATA_URL.sub(self._in_url, text)
        if _is_opaque(declared) or text[:20].lstrip().startswith(_STARTS):
            packed = _packed(text)
            if packed is not None:
                return self._replaced(packed, declared) or text
        if any(start in text for start in _STARTS):
            return _RUN.sub(lambda run: self._replaced(run[0], None) or run[0], text)
        return text

    def _json(self, text: str) -> str | None:
        """Separates within JSON text, as tools return it. Its form changes only if data was found. Returns
        None for other text, and for JSON that is nested too deeply."""
        before = dict(self.found)
        try:
            document = json.loads(text)
            noted = self.value(document, None)
            if noted is document:
                return text
            told = json.dumps(noted, ensure_ascii=False)
        except (ValueError, RecursionError):
            self.found = before
            return None
        return _HALF.sub(lambda half: f"\\u{ord(half[0]):04x}", told)

    def _in_url(self, match: re.Match[str]) -> str:
        return self._replaced(match[2], match[1].lower()) or match[0]

    def _replaced(self, packed: str, declared: str | None) -> str | None:
        data = _decoded(packed)
        if data is None or _is_text(data):
            return None
        media_type = media_type_of(data)
        fits = media_type is not None and declared is not None and _agree(declared, media_type)
        if media_type is not None and (fits or not _is_opaque(declared)):
            made = _attachment(data, media_type, True)
        elif declared is not None and _is_opaque(declared) and all(kind.search(packed) for kind in _LETTERS):
            made = _attachment(data, declared, False)
        else:
            return None
        return self.found.setdefault(made.sha256, made).note


def _attachment(data: bytes, media_type: str, is_kept: bool) -> Attachment:
    return Attachment(media_type, hashlib.sha256(data).hexdigest(), len(data), data, is_kept)


def _declared(value: Mapping[Any, Any]) -> str | None:
    """Returns the media type that an object declares for its data."""
    for name in _DECLARED:
        given = value.get(name)
        if isinstance(given, str):
            given = _FORMATS.get(given.lower(), given.lower())
            if re.fullmatch(r"[\w.+-]{1,40}/[\w.+-]{1,80}", given):
                return given
    return None


def _is_opaque(declared: str | None) -> bool:
    return declared is not None and _OPAQUE.fullmatch(declared) is not None


def _packed(text: str) -> str | None:
    """Returns base64 without its line breaks; None for other text. Encoders make lines of one length, a
    multiple of four; a list of names has others."""
    lines = text.strip().replace("\r\n", "\n").split("\n")
    width = len(lines[0])
    if len(lines) > 1 and (width % 4 or any(len(line) != width for line in lines[1:-1])):
        return None
    packed = "".join(lines)
    return packed if len(lines[-1]) <= width and _BASE64.fullmatch(packed) is not None else None


def _decoded(packed: str) -> bytes | None:
    standard = packed.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


def _is_text(data: bytes) -> bool:
    try:
        return _CONTROL.search(data.decode()) is None
    except UnicodeDecodeError:
        return False


def _agree(declared: str, found: str) -> bool:
    kinds = {declared.partition("/")[0], found.partition("/")[0]}
    same_kind = len(kinds) == 1 and "application" not in kinds
    return same_kind or declared in (found, _ANY) or kinds == _CONTAINERS
