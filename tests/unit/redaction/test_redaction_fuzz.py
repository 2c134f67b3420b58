"""No document makes ``redact`` fail in another way than RedactionError, lose structure or keep a secret.

The rules are in ``tests/fuzz/redaction_rules.py``; ``tests/fuzz/redaction_fuzz.py`` holds them for hours.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redaction_rules import FRAGMENTS, PLANTED, check

from onward.redaction import redact
from redaction_corpus import cases as corpus_cases
from redaction_corpus import in_context

ROOT = Path(__file__).parents[3]
_ANY_TEXT = st.text(alphabet=st.characters(codec=None, exclude_categories=()), max_size=30)
_TEXTS = st.lists(st.one_of(_ANY_TEXT, st.sampled_from(FRAGMENTS)), max_size=5).map("".join)
_NUMBERS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats())
DOCUMENTS = st.recursive(
    st.one_of(_TEXTS, _NUMBERS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_TEXTS, inner, max_size=4)),
    max_leaves=15,
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(DOCUMENTS, st.sampled_from(PLANTED))
def test_any_document_is_safe(document, planted):
    text, secret = planted
    check(document, f"aside {text} onward", secret)


@pytest.mark.long
@settings(max_examples=3000, deadline=None)
@given(DOCUMENTS, st.sampled_from(PLANTED))
def test_any_document_is_safe_many_times(document, planted):
    text, secret = planted
    check(document, f"aside {text} onward", secret)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(_ANY_TEXT, _ANY_TEXT, st.sampled_from(PLANTED))
def test_any_text_around_a_secret_keeps_nothing_of_it(left, right, planted):
    text, secret = planted
    check(None, f"{left} {text} {right}", secret)


@pytest.mark.parametrize("depth", [10, 63])
def test_deep_nesting(depth):
    document = PLANTED[0][0]
    for i in range(depth - 1):
        document = [document] if i % 2 else {"a": document}
    check(document, *PLANTED[0])


@pytest.mark.parametrize("number", [10**400, -(10**30), 1e308, float("nan"), float("inf"), -0.0])
def test_numbers_of_any_size(number):
    check({"password": number, "n": [number]}, *PLANTED[0])


@pytest.mark.long
def test_coverage_guided_fuzzing_finds_nothing_in_a_minute(tmp_path):
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not installed; run: pip install -e '.[bench]'")
    program = [sys.executable, str(ROOT / "tests" / "fuzz" / "redaction_fuzz.py")]
    limits = ["-max_total_time=60", "-seed=3", "-timeout=30", "-max_len=2048", str(tmp_path)]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    ran = subprocess.run(
        program + limits, capture_output=True, text=True, timeout=240, cwd=tmp_path, env=environment
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-1000:]
    assert "Done " in ran.stderr


UNITS = [
    "A", "a1B2", "=", " ", "\\", '\\"', "'", "{", "(", "a@", "a@b.", "@", "eyJ", "eyJhbGciOiJub25lIn0.",
    "sk-", "sk-ant-", "token=", "password=a", "password: ", '"token": "', "://:a", "://a:b@", "%", "%3D",
    "\\u003d", "-----BEGIN " + "PRIVATE KEY-----", "-----", "<", "<EMAIL:1>", "${", "Bearer ", "Cookie: a=",
    "4111 ", "1", "1.", "12:", "+49 ", "1-", "abcd:", "DE00 ", "/home/a", "--password ", "\n", "\x00",
    "ZXlK", "A/", "Zm9v",
]  # fmt: skip
"""Repeated to a megabyte, each drives one loop of the engine as far as it goes."""


@pytest.mark.long
@pytest.mark.parametrize("unit", UNITS, ids=[ascii(unit) for unit in UNITS])
def test_time_on_a_megabyte_of_malice_grows_with_its_length(unit):
    """Four times the text may take at most eight times as long; times in the clock's noise pass."""

    def cost(size: int) -> float:
        document = {"text": unit * (size // len(unit))}
        best = float("inf")
        for _ in range(3):
            started = time.process_time()
            redact(document)
            best = min(best, time.process_time() - started)
        return best

    small = cost(1 << 18)
    assert cost(1 << 20) < 8 * max(small, 0.005)


@pytest.mark.long
def test_many_different_secrets_in_a_megabyte_grow_with_their_number():
    def cost(count: int) -> float:
        kinds = [case for seed in range(4) for case in corpus_cases(seed) if case.layer == 1]
        text = "\n".join(in_context(kinds[i % len(kinds)], "plain") + f" {i}" for i in range(count))
        started = time.process_time()
        redact([text])
        return time.process_time() - started

    assert min(cost(4000) for _ in range(2)) < 8 * max(min(cost(1000) for _ in range(2)), 0.005)
