"""Converts bytes to messages and back, safely for bytes from any source.

``decode`` checks size, then depth, then parses, then validates; no error message repeats any part of the
input, since it may be a secret. ``encode`` writes canonical JSON: the same message gives the same bytes, so
that their SHA-256 is an identity.
"""

from __future__ import annotations

import hashlib
import json
import math
from datetime import datetime
from importlib import import_module
from typing import Any, NoReturn, TypeVar

from pydantic import ValidationError

from onward.clock import utc_text
from onward.contracts.base import KEEP_FOREIGN, MAX_FAULTS, Part
from onward.errors import ContractError

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
NAMED_FAULTS = 8
"""Faulty fields that a sentence names after the first."""

M = TypeVar("M", bound=Part)


def encode(model: Part) -> bytes:
    """Returns the canonical JSON of a message, checked against its own contract.

    Raises ContractError if the message was changed into something that its contract refuses (reason
    ``schema``), holds NaN or infinity (``not_finite``) or something that JSON cannot hold (``not_json``).
    """
    document = _tree(model)
    data = canonical_json(document)
    validate(document, type(model))
    return data


def to_document(model: Part) -> dict[str, Any]:
    """Returns a message as plain JSON values: the same that ``encode`` writes."""
    return json.loads(encode(model))


def decode(data: bytes, model: type[M], *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> M:
    """Reads one message. Raises ContractError: too_large, too_deep, not_json, not_finite, schema."""
    return validate(decode_document(data, max_bytes=max_bytes, max_depth=max_depth), model)


def decode_document(data: bytes, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> Any:
    """Reads JSON without a contract, with the same checks of size, depth, keys and numbers as ``decode``."""
    if len(data) > max_bytes:
        raise ContractError("too_large", f"The message has {len(data)} bytes; at most {max_bytes} are taken.")
    if not _within_depth(data, max_depth):
        raise ContractError("too_deep", f"The message nests deeper than {max_depth} levels.")
    return _parse(data)


def canonical_json(value: Any) -> bytes:
    """Returns JSON with sorted keys, without spaces, in UTF-8; messages and aware datetimes may be inside.

    Raises ContractError: ``not_finite`` for NaN and infinity, ``not_json`` for values that JSON cannot hold.
    """
    try:
        text = json.dumps(
            value, default=_plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
        return text.encode()
    except UnicodeEncodeError:
        raise ContractError("not_json", _HALF_CHARACTER) from None
    except RecursionError:
        raise ContractError("too_deep", "The value nests too deep to be written as JSON.") from None
    except ValueError as error:
        if "Circular" in str(error):
            raise ContractError("not_json", "The value contains itself, so JSON cannot hold it.") from None
        raise ContractError("not_finite", _NOT_FINITE) from None
    except TypeError:
        raise ContractError(
            "not_json", "The value holds something that JSON cannot: give text, numbers, lists and objects."
        ) from None


def sha256_hex(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


_NOT_FINITE = "A number is NaN, infinite or too large for a double; give finite numbers."
_HALF_CHARACTER = "A text holds half of a surrogate pair, which UTF-8 cannot write; give whole characters."


def _tree(value: Any) -> Any:
    """Converts messages inside ``value`` to dicts, without a None whose field JSON leaves out."""
    if isinstance(value, Part):
        nulls = value.null_fields & value.model_fields_set
        document = {k: _tree(v) for k, v in value.__dict__.items() if v is not None or k in nulls}
        document.update(value.__pydantic_extra__ or {})
        return document
    if isinstance(value, datetime) and value.tzinfo is not None:
        return utc_text(value)
    if isinstance(value, list) and value and isinstance(value[0], Part):
        return [_tree(item) for item in value]
    if isinstance(value, dict) and any(isinstance(item, Part) for item in value.values()):
        return {key: _tree(item) for key, item in value.items()}
    return value


def _plain(value: object) -> object:
    """Returns the value that json.dumps writes for a message or a datetime in an open part."""
    plain = _tree(value)
    if plain is value:
        raise TypeError
    return plain


def _within_depth(data: bytes, limit: int) -> bool:
    """Returns whether no bracket outside of strings opens level ``limit + 1``. Linear; nothing is parsed."""
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside = b"".join(data.split(b'"')[::2])
    depth = 0
    for byte in outside.translate(None, _NOT_BRACKETS):
        if byte in b"[{":
            depth += 1
            if depth > limit:
                return False
        else:
            depth -= 1
    return True


_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))

_NUMBER_SHAPE = bytes(48 if c in b"0123456789" else 101 if c in b"eE" else 32 for c in range(256))
"""Table that translates digits to "0", e and E to "e", everything else to a space."""


def _may_overflow(data: bytes) -> bool:
    """Returns whether some number may exceed a double: three digits of exponent, or 200 in a row."""
    shape = data.translate(_NUMBER_SHAPE, b"+")
    return b"0e000" in shape or b"0" * 200 in shape


def _parse(data: bytes) -> Any:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ContractError("not_json", "The message is not UTF-8 text.") from None
    numbers: dict[str, Any] = {"parse_float": _finite, "parse_int": _bounded} if _may_overflow(data) else {}
    try:
        document = json.loads(text, parse_constant=_not_finite, object_pairs_hook=_unique, **numbers)
    except RecursionError:
        raise ContractError("too_deep", "The message nests too deep to be read.") from None
    except ValueError:
        raise ContractError("not_json", "The message is not JSON.") from None
    if b"\\ud" in data or b"\\uD" in data:
        canonical_json(document)
    return document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ContractError("not_json", "An object of the message has the same key twice; keep one.")
    return document


def _not_finite(_: str) -> NoReturn:
    raise ContractError("not_finite", _NOT_FINITE)


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _not_finite(text)


def _bounded(text: str) -> int:
    return int(text) if len(text.lstrip("-")) <= 308 else _not_finite(text)


def validate(document: Any, model: type[M]) -> M:
    """Returns a parsed document as a message. Raises ContractError (reason ``schema``)."""
    if isinstance(document, dict) and model.model_config.get("extra") == "forbid":
        unknown = sum(name not in model.model_fields for name in document)
        if unknown:
            known = ", ".join(model.model_fields)
            raise ContractError(
                "schema",
                f"{model.__name__} has {unknown} unknown field(s) at the top level; it knows {known}.",
            )
    try:
        return model.model_validate(document, context=KEEP_FOREIGN)
    except ValidationError as error:
        faults = _faults_of(error)
        raise ContractError("schema", _sentence(error, model, faults), faults) from None


def explain(error: ValidationError, model: type[Part]) -> str:
    """Describes the first fault in one sentence and names the next ones, from field names, positions and
    expected forms alone."""
    return _sentence(error, model, _faults_of(error))


def _sentence(error: ValidationError, model: type[Part], faults: list[str]) -> str:
    if not faults:
        return f"{model.__name__} does not fit its schema in {error.error_count()} places."
    others = [fault.partition(" ")[0] for fault in faults[1 : 1 + NAMED_FAULTS]]
    left = len(faults) - 1 - len(others)
    end = f" and {left} more" if left else ""
    more = f"; also wrong: {', '.join(others)}{end}" if others else ""
    return f"{model.__name__}{faults[0]}{more}."


def _faults_of(error: ValidationError) -> list[str]:
    """Returns each faulty field once, as ``.turns[0].turn_id is required``; none of more than a hundred.

    A field that may have one of several forms has a fault for each of them: they are joined."""
    if error.error_count() > MAX_FAULTS:
        return []
    found: dict[str, str] = {}
    for fault in error.errors(include_url=False, include_context=False, include_input=False):
        subject, _, expected = fault["msg"].partition(" ")
        what = expected if subject in ("Input", "List", "String", "Dictionary") else fault["msg"]
        if fault["type"] == "missing":
            what = "is required"
        path = _path(fault["loc"])
        if path not in found:
            found[path] = what
        elif what.startswith("should be ") and what not in found[path]:
            found[path] += f" or {what.removeprefix('should be ')}"
    return [f"{path} {what}" for path, what in found.items()]


def _path(loc: tuple[int | str, ...]) -> str:
    shown = ""
    names = _field_names()
    for step in loc:
        if isinstance(step, int):
            shown += f"[{step}]"
        elif step in names:
            shown += f".{step}"
        elif step not in _UNION_LABELS:
            shown += ".*"
    return shown


_UNION_LABELS = frozenset({"str", "constrained-str", "dict[str,any]", "[key]"})
_known_names: set[str] = set()


def _field_names() -> set[str]:
    """Returns every declared field name. Only these are shown in a path; other keys come from the input."""
    if not _known_names:
        for module in ("deployment", "feedback", "outcome", "reward", "training", "trajectory"):
            import_module(f"onward.contracts.{module}")
        pending = [Part]
        while pending:
            part = pending.pop()
            _known_names.update(part.model_fields)
            pending.extend(part.__subclasses__())
    return _known_names
