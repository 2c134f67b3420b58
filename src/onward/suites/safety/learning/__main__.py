"""Trains both classifiers, writes their weights beside the data and prints how well they do."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from onward.files import write_whole
from onward.suites.safety import classifier
from onward.suites.safety.learning import fit


def main() -> None:
    """Writes the weights; with ``--measure`` it only measures the shipped ones."""
    for name in ("refusal", "hostility"):
        if "--measure" not in sys.argv[1:]:
            document = fit.fit(fit.training_texts(name)).document()
            write_whole(Path(__file__).parent / f"{name}_weights.json", json.dumps(document).encode())
        for source, texts in fit.held_out(name).items():
            found = fit.measure(classifier.shipped(name), texts)
            sys.stdout.write(f"{name:9} {source:8} {found} accuracy {found.accuracy:.3f}\n")


if __name__ == "__main__":
    main()
