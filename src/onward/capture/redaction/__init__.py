"""Redaction: secrets and personal data leave a document before it is written anywhere.

It fails closed: whatever goes wrong is a RedactionError, and the caller must hold the document back.
A second run changes nothing. The rules are data (``rules.py``); their hash is the policy version.
"""

from onward.capture.redaction.engine import POLICY_VERSION, Redacted, redact
from onward.capture.redaction.rules import RULES, Rule
from onward.capture.redaction.trajectory import decodes_clean, redact_trajectory

__all__ = ["POLICY_VERSION", "RULES", "Redacted", "Rule", "decodes_clean", "redact", "redact_trajectory"]
