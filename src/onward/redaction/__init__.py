"""Redaction: secrets and personal data leave a document before it is written anywhere.

It fails closed: whatever goes wrong is a RedactionError, and the caller must hold the document back.
A second run changes nothing. The rules are data; their hash is the policy version.
``Redactor`` carries how one process redacts: known secrets, optional kinds.

**How a rule is added.** A rule file (``vendors.py`` and ``services.py`` layer 1, ``structure.py`` and
``assignments.py`` layer 2, ``personal.py`` layer 3) holds ``RULES``, a tuple of ``rule.Rule``, and may hold
``CHECKS``, a dict from name to function; ``rules.py`` puts them together, nothing else is to be done.

- ``pattern`` is RE2 over UTF-8 bytes read as Latin-1 (write ``\\xc3\\xa9`` for one accented letter). It must
  not match a NUL byte: all texts of a document are joined by NUL and scanned at once. It has no left
  boundary; put ``"start"`` first in ``checks`` when a match may not follow a letter or digit (escapes such
  as ``\\n`` are seen through). A match that a check refuses is searched again from its second byte, but
  not behind its end: a greedy pattern should not swallow the neighbour. Bound every repetition.
- A pattern with a literal of 3 bytes or more is skipped at no cost where the literal is absent; one without
  (``[0-9]{13,19}``) reads every byte of every document, about 1.5 ns each, and calls its checks for each
  candidate, about 1 µs each. Use few of these.
- ``checks``: names of functions ``(buffer, first, last) -> (first, last) | None``, all must agree, each may
  narrow the span. ``buffer`` is the whole joined buffer, so a check may look at what stands before
  ``first`` and behind ``last`` (context words: at most 64 bytes, stop at NUL). Linear time, no ``re``.
- ``take``: ``"match"`` takes all of the match, ``"group"`` its first group; ``assigned``, ``flag`` and
  ``cookies`` are for layer 2 (``assigned.py``).
- ``kind``: upper case, the name in the placeholder ``<KIND:n>``. ``same`` says when two writings of a value
  share a placeholder.
- Each rule carries ``positives`` and ``negatives``, run by ``tests/unit/capture/test_redaction_rules.py``.
"""

from onward.redaction.engine import POLICY_VERSION, Redacted, redact
from onward.redaction.known import Known
from onward.redaction.redactor import PLAIN, Redactor
from onward.redaction.rules.catalogue import RULES, table
from onward.redaction.rules.rule import Rule
from onward.redaction.trajectory import decodes_clean, redact_trajectory

__all__ = [
    "PLAIN",
    "POLICY_VERSION",
    "RULES",
    "Known",
    "Redacted",
    "Redactor",
    "Rule",
    "decodes_clean",
    "redact",
    "redact_trajectory",
    "table",
]
