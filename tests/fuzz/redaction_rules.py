"""What must hold for the output of ``redact``, whatever the document: shared by hypothesis and atheris."""

from __future__ import annotations

import json
import math
from typing import Any

import redaction_corpus as corpus
from onward.errors import RedactionError
from onward.redaction import redact


def _cases(seed: int) -> list[corpus.Case]:
    return [case for case in corpus.cases(seed) if case.key is None and len(case.secrets) == 1]


PLANTED = [(case.carrier, case.secrets[0]) for case in _cases(11)[::7]]
"""(carrier, secret): a seventh of all kinds."""
_SIGNS = r"""
password token api_key Authorization Bearer Cookie: = : " ' ` \ \" \n \u003d %3D %40 % & < > { } :// @ --
<EMAIL:2> <PASSWORD:999999999> eyJ sk- AKIA 4111 é 名 🙂 ß
"""
FRAGMENTS = [
    *[case.carrier for case in _cases(12)[::9]],
    *[case.carrier[: len(case.carrier) // 2] for case in _cases(12)[::23]],
    *_SIGNS.split(),
    *[" ", "\n", "\r\n", "\t", "\x00", "\ud800", "\udfff", "\ufeff", "\u202e", "\u0130", "\x1b[31m"],
    *["-----BEGIN PRIVATE " + "KEY-----", "-----END PRIVATE " + "KEY-----"],
]
"""Whole secrets, halves of secrets and what structures are made of."""


def check(document: Any, note: str = "", secret: str = "") -> None:
    """Redact ``document`` with ``note`` beside it, and judge; nothing of ``secret`` may be left in the note.

    RedactionError is an allowed answer: the document is then held back. Raises AssertionError for a leak, a
    lost structure, output that does not parse, or a second run that changes something; any other exception is
    a defect as well.
    """
    given = [document, note]
    before = _copy(given)
    try:
        once = redact(given).document
    except RedactionError:
        return
    assert _same(given, before), "the caller's document was changed"
    assert corpus.kept(_plain(given), _plain(once)), "structure was lost"
    if _same(json.loads(json.dumps(document)), document):  # JSON joins two halves of a surrogate pair
        assert _same(json.loads(json.dumps(once)), once), "the output does not survive JSON"
    if secret:
        case = corpus.Case("planted", 1, note, (secret,), ())
        assert not corpus.leaked(case, once[1]), "a planted secret is left"
    assert _same(redact(once).document, once), "a second run changes something"


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    """Without numbers: a number under a secret name may become text, and NaN is not equal to itself."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if isinstance(value, str) else "a number"


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return type(a) is type(b) and a == b
