"""Other projects' redactors and scanners behind one interface, so that all get the same documents.

A peer gets its own copy of a document (it may change it) and returns it without the secrets that it finds.
For a scanner that only reports, each reported value is replaced in the text where it was found.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from onward.redaction import redact
from redaction_samples import MISSING, presidio_recognizers, require

Clean = Callable[[Any], Any]
MARK = "[REDACTED]"
PRESIDIO_THRESHOLD = 0.4
"""Lowest score accepted from Presidio. Its patterns marked weak (bare digits, post codes) are below it."""


def _over_texts(change: Callable[[str], str]) -> Clean:
    """Applies ``change`` to every value and key."""

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            return change(value)
        if isinstance(value, dict):
            return {change(key): clean(item) for key, item in value.items()}
        if isinstance(value, list):
            return [clean(item) for item in value]
        return value

    return clean


def _without(text: str, secrets: set[str]) -> str:
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MARK)
    return text


def onward() -> Clean:
    return lambda document: redact(document).document


def langsmith() -> Clean:
    """Builds LangSmith's secret preset (values only, by its design; depth 24)."""
    return require("langsmith.anonymizer").create_secret_anonymizer()


def detect_secrets() -> Clean:
    """Builds detect-secrets with all plugins of its default settings, line by line."""
    scan = require("detect_secrets.core.scan").scan_line
    settings = require("detect_secrets.settings").default_settings

    def change(text: str) -> str:
        found = {s.secret_value for line in text.splitlines() for s in scan(line) if s.secret_value}
        return _without(text, found) if found else text

    def clean(document: Any) -> Any:
        with settings():
            return _over_texts(change)(document)

    return clean


def presidio() -> Clean:
    """Builds Presidio's pattern recognizers, called one by one: no language model, so no names or context."""
    require("presidio_analyzer")
    logging.getLogger("presidio-analyzer").setLevel(logging.ERROR)
    recognizers = [one for one in presidio_recognizers() if one.supported_language == "en"]
    skipped = ("DATE_TIME", "URL", "UUID")
    recognizers = [one for one in recognizers if one.supported_entities[0] not in skipped]

    def change(text: str) -> str:
        found = {
            text[hit.start : hit.end]
            for one in recognizers
            for hit in one.analyze(text, one.supported_entities)
            if hit.score >= PRESIDIO_THRESHOLD
        }
        return _without(text, found) if found else text

    return _over_texts(change)


def kingfisher() -> Clean:
    """Builds Kingfisher's default scanner (medium confidence), text by text."""
    scanner = require("kingfisher_sdk.scanner").Scanner()

    def change(text: str) -> str:
        found = {hit.secret for hit in scanner.scan(text.encode("utf-8", "replace"))}
        return _without(text, found) if found else text

    return _over_texts(change)


@dataclass(frozen=True)
class Peer:
    package: str
    module: str
    make: Callable[[], Clean]


PEERS = {
    "onward": Peer("onward", "onward", onward),
    "langsmith": Peer("langsmith", "langsmith", langsmith),
    "detect-secrets": Peer("detect-secrets", "detect_secrets", detect_secrets),
    "presidio": Peer("presidio-analyzer", "presidio_analyzer", presidio),
    "kingfisher": Peer("kingfisher-secret-scanner", "kingfisher_sdk", kingfisher),
}


def versions() -> dict[str, str]:
    """Returns the versions of all peers. Exits with one sentence if a peer is missing."""
    for peer in PEERS.values():
        if importlib.util.find_spec(peer.module) is None:
            raise SystemExit(MISSING.format(name=peer.package))
    return {name: version(peer.package) for name, peer in PEERS.items()}
