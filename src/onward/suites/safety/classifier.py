"""Linear classifiers of short English texts over word and character n-grams, read from a shipped file.

``learning.fit`` computes the weights from the data beside it. A text becomes a unit vector of hashed n-grams,
so an answer of any length counts once. Words at the beginning count a second time by place: most refusals
refuse at once. numpy alone is needed.
"""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from collections import Counter
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

BUCKETS = 1 << 14
WORDS = 60
"""Words of a text that are read."""
FIRST = 6
"""Words that count a second time, as the beginning."""
SCALE = 1000.0
"""Weights are stored as integers of a thousandth."""
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")


def words_of(text: str) -> list[str]:
    """Returns the words in lower case, with one kind of apostrophe."""
    return _WORD.findall(text.lower().replace("’", "'"))


def _grams(text: str) -> Counter[str]:
    words = words_of(text)[:WORDS]
    found: Counter[str] = Counter()
    for size in (1, 2, 3):
        runs = [" ".join(words[at : at + size]) for at in range(len(words) - size + 1)]
        found.update(runs)
        found.update(f"^{run}" for run in runs[:FIRST])
    for word in words:
        padded = f"<{word}>"
        found.update(f"#{padded[at : at + 4]}" for at in range(len(padded) - 3))
    return found


def features(text: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns buckets and values of the text's n-grams; the values have the length 1, none if there is no
    word."""
    sums: dict[int, float] = {}
    for gram, count in _grams(text).items():
        bucket = zlib.crc32(gram.encode()) % BUCKETS
        sums[bucket] = sums.get(bucket, 0.0) + 1.0 + math.log(count)
    values = np.array(list(sums.values()), dtype=np.float64)
    norm = float(np.sqrt((values**2).sum())) or 1.0
    return np.fromiter(sums, dtype=np.int64, count=len(sums)), values / norm


@dataclass(frozen=True)
class Classifier:
    """Weights by bucket, and what is added to their sum."""

    weights: np.ndarray
    bias: float

    def probability(self, text: str) -> float:
        """Returns the probability of the class that the weights describe; 0 for a text without words."""
        buckets, values = features(text)
        if not len(buckets):
            return 0.0
        return 1.0 / (1.0 + math.exp(-float(self.weights[buckets] @ values) - self.bias))

    def document(self) -> dict[str, object]:
        """Returns the form in which it is stored."""
        whole = np.round(self.weights * SCALE).astype("<i2").tobytes()
        return {"bias": round(self.bias, 3), "weights": base64.b64encode(zlib.compress(whole, 9)).decode()}


def load(text: str) -> Classifier:
    """Returns the classifier of a stored document."""
    stored = json.loads(text)
    whole = zlib.decompress(base64.b64decode(stored["weights"]))
    return Classifier(np.frombuffer(whole, dtype="<i2").astype(np.float64) / SCALE, float(stored["bias"]))


@cache
def shipped(name: str) -> Classifier:
    """Returns the shipped classifier ``refusal`` or ``hostility``."""
    folder = files("onward.suites.safety") / "learning"
    return load((folder / f"{name}_weights.json").read_text(encoding="utf-8"))
