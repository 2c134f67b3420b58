"""Redaction: secrets and personal data are removed from a document before it is written anywhere.

Reading order: ``engine`` (the whole run), ``document`` (texts of a document), ``scan`` (rules are matched),
``rules`` and ``judging`` (data, and the checks of a match), ``propagation`` (other occurrences),
``trajectory``.

It fails closed: every failure is a RedactionError, and the caller must then not write the document.
A second run changes nothing. The rules are data; their hash is the policy version.
``Redactor`` holds the settings of one process: known secrets, optional kinds.

**Adding a rule.** Rule files are in ``rules/``: ``vendors.py``, ``services.py`` and ``more_services.py``
(layer 1), ``structure.py``, ``assignments.py``, ``commands.py`` and ``beside.py`` (layer 2),
``personal.py`` (layer 3), which joins the ``personal_*.py`` files except ``personal_optional.py``. Each
defines ``RULES``, a tuple of ``Rule`` (``rule.py``). Checks for layers 1 and 2 are in
``judging/checks.py``; a file of layer 3 may define its own in ``CHECKS``, a dict from name to function.
``rules/catalogue.py`` collects all rules and checks; nothing else has to be changed.

- ``pattern`` is RE2 over UTF-8 bytes read as Latin-1 (write ``\\xc3\\xa9`` for one accented letter). It must
  not match a NUL byte: all texts of a document are joined by NUL and scanned at once. It has no left
  boundary; put ``"start"`` first in ``checks`` when a match may not follow a letter or digit (escapes such as
  ``\\n`` are recognised). Such a match, if refused, is searched again from its second byte, but not beyond
  its end. A greedy pattern should therefore not include the text after the secret. Bound every repetition.
- A pattern with a literal of 3 bytes or more costs nothing where the literal is absent. A pattern without one
  (``[0-9]{13,19}``) reads every byte of every document, about 1.5 ns each, and calls its checks for each
  candidate, about 1 µs each. Use few of these.
- ``checks``: names of functions ``(buffer, first, last) -> (first, last) | None``. All must agree; each may
  narrow the span. ``buffer`` is the whole joined buffer, so a check may read the text before ``first`` and
  after ``last`` (context words: at most 64 bytes, stop at NUL). Linear time, no ``re``.
- ``gate``: an expression that matches in every text in which the pattern does, for a pattern without a
  literal or with many counted repetitions: in the shared gate, their states would multiply. Empty: the
  pattern has a literal that is rare, and needs no gate.
- ``take``: ``"group"`` (the default of ``vendor_rule``, ``context_rule`` and ``personal_rule``) takes the
  first group of the pattern, ``"match"`` the whole match; ``assigned``, ``flag`` and
  ``cookies`` are for layer 2 (``judging/assigned_values.py``), and so are those of
  ``judging/near_values.py``.
- ``kind``: upper case, the name in the placeholder ``<KIND:n>``. ``same`` decides when two spellings of a
  value share a placeholder.
- Each rule has ``positives`` and ``negatives``, run by ``tests/unit/redaction/test_redaction_rules.py``.
"""

from onward.redaction.engine import POLICY_VERSION, Redacted, redact
from onward.redaction.known import Known
from onward.redaction.own_rules import OwnRules, read_rules
from onward.redaction.redactor import PLAIN, Redactor
from onward.redaction.rule import Rule
from onward.redaction.rules.catalogue import RULES, table
from onward.redaction.trajectory import redact_trajectory

__all__ = [
    "PLAIN",
    "POLICY_VERSION",
    "RULES",
    "Known",
    "OwnRules",
    "Redacted",
    "Redactor",
    "Rule",
    "read_rules",
    "redact",
    "redact_trajectory",
    "table",
]
