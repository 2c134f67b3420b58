"""Recall on the generator: every kind of secret, in every context and placement where it makes sense.

A hit means that no eight characters in a row of the secret are left anywhere, in any usual encoding, that
structure and neighbouring words are as before, and that a second run changes nothing. What is missed must
stand in ``MISSED``, kind by kind: the list may only shrink.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

import redaction_corpus as corpus
from onward.redaction import redact
from redaction_corpus import personal, stay, structure, vendor

pytestmark = pytest.mark.slow

MISSED: frozenset[tuple[str, str]] = frozenset()
"""(kind, context) that are known to leak. Shrink only."""
SHARE = {1: 1.0, 2: 1.0, 3: 0.99}
"""Least recall per layer."""


@dataclass
class Measured:
    documents: Counter[int] = field(default_factory=Counter)
    hits: Counter[int] = field(default_factory=Counter)
    missed: set[tuple[str, str]] = field(default_factory=set)
    broken: list[str] = field(default_factory=list)
    unstable: list[str] = field(default_factory=list)


def measure(seed: int, *, thorough: bool) -> Measured:
    """All contexts and placements; unless ``thorough``, a third of the names × syntaxes of assignments."""
    found = Measured()
    for i, case in enumerate(corpus.cases(seed)):
        if case.kind.startswith("assigned") and i % 3 and not thorough:
            continue
        for context in case.contexts:
            for placement in corpus.PLACEMENTS:
                _one(found, case, context, placement)
    return found


def _one(found: Measured, case: corpus.Case, context: str, placement: str) -> None:
    before = corpus.document(case, context, placement)
    after = redact(before).document
    name = f"{case.kind} / {context} / {placement}"
    found.documents[case.layer] += 1
    if corpus.leaked(case, after):
        found.missed.add((case.kind, context))
    else:
        found.hits[case.layer] += 1
    joined = " ".join(corpus.texts(after))
    if not corpus.kept(before, after) or (case.key is None and not {"aside", "onward"} <= _words(joined)):
        found.broken.append(name)
    if redact(after).document != after:
        found.unstable.append(name)


def _words(text: str) -> set[str]:
    return {word for word in ("aside", "onward") if word in text}


@pytest.fixture(scope="module")
def measured() -> Measured:
    return measure(0, thorough=False)


def test_every_kind_is_found_in_every_context_and_placement(measured: Measured) -> None:
    assert measured.missed == MISSED


@pytest.mark.parametrize("layer", SHARE)
def test_recall_per_layer(measured: Measured, layer: int) -> None:
    assert measured.hits[layer] >= SHARE[layer] * measured.documents[layer] > 1000


def test_structure_keys_and_the_words_around_stay(measured: Measured) -> None:
    assert measured.broken == []


def test_a_second_run_is_a_no_op(measured: Measured) -> None:
    assert measured.unstable == []


def test_the_generator_has_all_it_promises() -> None:
    """Eighty vendor kinds, 13 contexts, 6 placements, 40 shapes that stay; all names told apart."""
    made = corpus.cases(0)
    assert len(vendor.KINDS) >= 80
    assert (len(corpus.CONTEXTS), len(corpus.PLACEMENTS)) == (13, 6)
    assert len(stay.shapes()) >= 40
    assert len({case.kind for case in made}) == len(made)
    assert {case.layer for case in made} == {1, 2, 3}
    assert len(structure.BLOCKS) + len(personal.MAKERS) > 100
    assert all(part in case.carrier for case in made for part in case.secrets)


def test_a_leak_is_seen_in_every_encoding() -> None:
    """The yardstick itself: it must not call a leak a hit."""
    case = next(case for case in corpus.cases(0) if case.kind == "aws bedrock long")
    for context in case.contexts:
        for placement in corpus.PLACEMENTS:
            before = corpus.document(case, context, placement)
            assert corpus.leaked(case, before)
            assert not corpus.leaked(case, ["<SECRET:1>"])
    assert corpus.leaked(case, [f"… {case.secrets[0][40:60]}"])


def _changed(make: Callable[[str], Any]) -> set[str]:
    documents = {name: make(text) for name, text in stay.shapes().items()}
    return {name for name, document in documents.items() if redact(document).document != document}


@pytest.mark.parametrize("context", corpus.CONTEXTS)
def test_what_is_no_secret_stays(context: str) -> None:
    assert _changed(lambda text: [corpus.CONTEXTS[context](text)]) == set()


@pytest.mark.parametrize("placement", corpus.PLACEMENTS)
def test_what_is_no_secret_stays_wherever_it_stands(placement: str) -> None:
    assert _changed(corpus.PLACEMENTS[placement]) == set()


@pytest.mark.parametrize("key", stay.KEYED)
def test_a_key_that_only_sounds_like_a_secret_governs_nothing(key: str) -> None:
    document = {"args": [{key: stay.KEYED[key]}]}
    assert redact(document).document == document


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_recall_does_not_hang_on_the_letters_drawn(seed: int) -> None:
    found = measure(seed, thorough=True)
    assert found.missed <= MISSED
    assert found.broken == found.unstable == []


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_no_drawing_of_letters_leaks() -> None:
    """Every kind sixty times, in one context each: a rule must not want a digit that chance may leave out."""
    leaks = set()
    for seed in range(100, 160):
        for case in corpus.cases(seed):
            context = case.contexts[seed % len(case.contexts)]
            if corpus.leaked(case, redact(corpus.document(case, context, "value")).document):
                leaks.add(case.kind)
    assert leaks == set()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 6))
def test_hashes_and_ids_of_any_letters_stay(seed: int) -> None:
    shapes = stay.shapes(seed)
    assert {name for name, text in shapes.items() if redact([text]).document != [text]} == set()
