"""Secrets as other projects define them: drawn from the rules, and read from the doctests, that peers ship.

None of their strings is stored here. Rules are loaded from the installed packages, and strings are drawn from
their expressions with a fixed seed; a drawn string counts only if its own project recognises it. The wheels
of detect-secrets, LangSmith, Presidio and Kingfisher contain rules but no sample strings (Kingfisher's 488
rules come with empty example lists); python-stdnum's modules contain doctests. The sdists of LangSmith and
python-stdnum also contain tests; those are not installed and so not read here.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from redaction_draw import Drawer

MISSING = "{name} is not installed; run: pip install -e '.[bench]'"
_NAMES = ("{n} = '{v}'", '"{n}": "{v}"', "{n}={v}", "{n}: {v}")


@dataclass(frozen=True)
class Sample:
    """One sample. An empty ``secret`` means that the peer finds none in ``text``."""

    source: str
    rule: str
    text: str
    secret: str


def require(name: str) -> Any:
    """Imports the module ``name``. Exits with one sentence if it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SystemExit(MISSING.format(name=name.partition(".")[0])) from error


def _bare(secret: str) -> str:
    """Strips host, name or scheme around the secret in a peer's report."""
    return re.sub(r"^(?:https?://[^/]+/\w+/|AccountKey=|(?:bearer|token|basic)\s+)", "", secret, flags=re.I)


def kingfisher(per_rule: int = 2) -> Iterator[Sample]:
    """Draws from the 488 rules of Kingfisher and Betterleaks.

    Where a rule expects a vendor's name before the value, the name of the rule is used
    (``adafruit_api_key = …``).
    """
    module = require("kingfisher_sdk.rules")
    rules = module.Rules(cache=False, confidence="low")
    scanner = require("kingfisher_sdk.scanner").Scanner(rules, base64=False)
    for meta in rules.metadata():
        rule = meta["id"]
        pattern = rules._native.detail(rule)["detection_regex"]
        name, _, value_pattern = pattern.rpartition(r"""[\x60'"\s=]{0,5}""")
        drawer = Drawer(value_pattern, rule)
        for i in range(per_rule):
            value = drawer.draw()
            if value is None:
                continue
            if name:
                words = re.sub(r"\W+", "_", re.sub(r"\.\d+$", "", rule.split(".", 1)[-1]))
                value = _NAMES[i % len(_NAMES)].format(n=words, v=value.strip("'\"`;\\nr \t\r\n"))
            text = f"aside {value} onward"
            own = [found for found in scanner.scan(text.encode()) if found.rule_id == rule]
            secret = _bare(own[0].secret) if own else ""
            if len(secret) > 4:
                yield Sample("kingfisher", rule, text, secret)


def langsmith(per_rule: int = 4) -> Iterator[Sample]:
    """Draws from the preset of LangSmith's anonymizer; the secret is the part that it removes."""
    module = require("langsmith.anonymizer")
    for number, rule in enumerate(module.DEFAULT_SECRET_RULES):
        expression = rule["pattern"]
        drawer = Drawer(expression.pattern, f"langsmith:{number}")
        for _ in range(per_rule):
            drawn = drawer.draw()
            found = expression.search(f"aside {drawn} onward") if drawn else None
            if found is None:
                continue
            rest = expression.sub(rule["replace"], found[0])
            start, end = rest.split(module.SECRET_PLACEHOLDER, 1)
            secret = _bare(found[0][len(start) : len(found[0]) - len(end)])
            yield Sample("langsmith", f"rule {number}", f"aside {found[0]} onward", secret)


def detect_secrets(per_rule: int = 4) -> Iterator[Sample]:
    """Draws from the denylist expressions of detect-secrets; the secret is the plugin's reported value."""
    package = require("detect_secrets.plugins")
    base = require("detect_secrets.plugins.base").RegexBasedDetector
    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        for name, kind in inspect.getmembers(module, inspect.isclass):
            if not issubclass(kind, base) or inspect.isabstract(kind) or kind.__module__ != module.__name__:
                continue
            plugin = kind()
            for number, expression in enumerate(plugin.denylist):
                drawer = Drawer(expression.pattern, f"{name}:{number}")
                for _ in range(per_rule):
                    drawn = drawer.draw()
                    secrets = [s.strip() for s in plugin.analyze_string(drawn) if s] if drawn else []
                    if secrets:
                        longest = max(secrets, key=len)
                        secret = _bare(longest if len(longest) > 4 else drawn.strip())
                        yield Sample("detect-secrets", f"{name} {number}", f"aside {drawn} onward", secret)


def presidio_recognizers() -> list[Any]:
    """Returns Presidio's pattern recognizers that are English or have no language of their own."""
    package = require("presidio_analyzer.predefined_recognizers")
    base = require("presidio_analyzer").PatternRecognizer
    kinds = [kind for _, kind in inspect.getmembers(package, inspect.isclass)]
    return [kind() for kind in kinds if issubclass(kind, base) and kind is not base]


PRESIDIO = (
    "CREDIT_CARD", "IBAN_CODE", "EMAIL_ADDRESS", "IP_ADDRESS", "MAC_ADDRESS", "US_SSN", "US_ITIN", "UK_NHS",
    "UK_NINO", "CA_SIN", "DE_TAX_ID", "ES_NIF", "ES_NIE", "IT_FISCAL_CODE", "PL_PESEL", "SE_PERSONNUMMER",
    "IN_AADHAAR", "IN_PAN", "AU_TFN", "KR_RRN",
)  # fmt: skip
"""Presidio's entities among the kinds that Onward knows. The others are passports, plates, companies, health
and bank numbers, post codes, dates and URLs: kinds that are off by default or out of scope."""


def presidio(per_rule: int = 3, tries: int = 1500) -> Iterator[Sample]:
    """Draws from Presidio's patterns, beside the first of their context words; check digits are valid."""
    for recognizer in presidio_recognizers():
        entity = recognizer.supported_entities[0]
        words = ", ".join(list(recognizer.context or ["value"])[:3])
        for number, pattern in enumerate(recognizer.patterns if entity in PRESIDIO else []):
            drawer = Drawer(pattern.regex, f"{recognizer.name}:{number}")
            drawn = (drawer.draw() for _ in range(tries))
            valid = (value for value in drawn if value and _valid(recognizer, value))
            for value in itertools.islice(valid, per_rule):
                yield Sample("presidio", f"{entity} {pattern.name}", f"aside {words}: {value} onward", value)


def _valid(recognizer: Any, value: str) -> bool:
    return recognizer.validate_result(value) is not False and not recognizer.invalidate_result(value)


STDNUM = {
    "luhn": "card", "iban": "IBAN", "us.ssn": "SSN", "us.itin": "ITIN", "gb.nhs": "NHS number",
    "ca.sin": "SIN",    "de.idnr": "Steuer-ID",
    "es.nif": "NIF", "es.nie": "NIE", "es.dni": "DNI", "fr.nir": "NIR",
    "it.codicefiscale": "codice fiscale", "pl.pesel": "PESEL", "se.personnummer": "personnummer",
    "in_.aadhaar": "Aadhaar", "in_.pan": "PAN", "br.cpf": "CPF", "au.tfn": "TFN",
    "kr.rrn": "RRN", "mac": "MAC",
}  # fmt: skip
"""Modules of python-stdnum for the kinds that Onward knows, with the word to place before such a number."""


def stdnum() -> Iterator[Sample]:
    """Reads the numbers in python-stdnum's doctests: valid ones are secrets, rejected ones are not."""
    require("stdnum")
    for name, word in STDNUM.items():
        module = importlib.import_module(f"stdnum.{name}")
        is_valid: Callable[[str], bool] = module.is_valid
        calls = re.findall(r">>> (?:validate|is_valid|compact|format)\('([^']+)'", module.__doc__ or "")
        for number in dict.fromkeys(calls):
            good = is_valid(number)
            yield Sample("python-stdnum", name, f"aside {word}: {number} onward", number if good else "")


SOURCES: dict[str, Callable[[], Iterator[Sample]]] = {
    "kingfisher": kingfisher,
    "langsmith": langsmith,
    "detect-secrets": detect_secrets,
    "presidio": presidio,
    "python-stdnum": stdnum,
}
