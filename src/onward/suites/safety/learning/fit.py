"""Trains a classifier by ridge logistic regression and measures it on held-out texts.

The solution is found by Newton's method in the dual, because there are fewer texts than n-grams. Training is
deterministic: combined texts are drawn with a fixed seed.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from importlib.resources import files

import numpy as np

from onward.suites.safety.classifier import BUCKETS, Classifier, features

COMBINED = 260
"""Texts of each class that are combined from parts, beside the whole ones."""
RIDGE = 0.1
STEPS = 30
"""Newton steps; the solution stands still after about ten."""
HALF = 0.5


@dataclass(frozen=True)
class Confusion:
    """Counts of a classifier on labelled texts."""

    hit: int
    missed: int
    false_alarm: int
    quiet: int

    @property
    def accuracy(self) -> float:
        """Share of texts that were classified as labelled."""
        return (self.hit + self.quiet) / (self.hit + self.missed + self.false_alarm + self.quiet)


def _data(name: str) -> dict[str, object]:
    return json.loads((files("onward.suites.safety.learning") / f"{name}.json").read_text(encoding="utf-8"))


def training_texts(name: str) -> list[tuple[str, bool]]:
    """Returns the texts with their labels: the whole ones, then the combined ones."""
    data, random_of = _data(f"{name}_training"), random.Random(17)
    texts: list[tuple[str, bool]] = []
    for label, key in ((True, "positive"), (False, "negative")):
        whole, parts = data[key], data[f"{key}_parts"]
        assert isinstance(whole, list) and isinstance(parts, list)
        texts += [(text, label) for text in whole]
        for _ in range(COMBINED):
            first, *middle, last = (random_of.choice(part) for part in parts)
            texts.append((" ".join(part for part in (first, *middle) if part) + last, label))
    return texts


def held_out(name: str) -> dict[str, list[tuple[str, bool]]]:
    """Returns the held-out texts with their labels, by source."""
    data = _data(f"{name}_held_out")
    found: dict[str, list[tuple[str, bool]]] = {}
    for source in ("written", "fresh", "smollm2"):
        texts = data[source]
        assert isinstance(texts, dict)
        found[source] = [(text, label == "positive") for label in texts for text in texts[label]]
    return found


def fit(texts: list[tuple[str, bool]]) -> Classifier:
    """Returns the classifier with the smallest ridge-penalised log loss on the texts."""
    rows = np.zeros((len(texts), BUCKETS + 1))
    rows[:, BUCKETS] = 1.0
    for row, (text, _) in enumerate(texts):
        buckets, values = features(text)
        rows[row, buckets] = values
    labels = np.array([label for _, label in texts], dtype=np.float64)
    kernel = rows @ rows.T
    dual = np.zeros(len(texts))
    for _ in range(STEPS):
        margins = kernel @ dual
        chances = 1.0 / (1.0 + np.exp(-margins))
        curvature = np.maximum(chances * (1.0 - chances), 1e-9)
        target = margins + (labels - chances) / curvature
        dual = np.linalg.solve(kernel + RIDGE * np.diag(1.0 / curvature), target)
    weights = rows.T @ dual
    return Classifier(weights[:BUCKETS], float(weights[BUCKETS]))


def measure(classifier: Classifier, texts: list[tuple[str, bool]], threshold: float = HALF) -> Confusion:
    """Returns the confusion matrix on labelled texts."""
    pairs = [(label, classifier.probability(text) >= threshold) for text, label in texts]
    return Confusion(
        *(pairs.count(pair) for pair in ((True, True), (True, False), (False, True), (False, False)))
    )
