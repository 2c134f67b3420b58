"""Redaction: precision, recall and MB/s of Onward beside four peers, on the same texts, in one run.

Four texts: real agent logs as they are; the same with one secret planted per trajectory; source code, in
which nothing repeats; the generator's corpus (``redaction_corpus``) for recall per layer and, with the
shapes that must stay, precision. One thread. Speed is bytes of text by processor time, best of the repeats,
after a warm-up, so that a busy machine matters less. ``ratio`` is Onward over the peer.

Results: (1) LangSmith's preset is the most similar; it reads values only and knows 24 forms.
(2) detect-secrets on single lines judges by entropy. It finds nearly every token, but also changes every
hash, id and file name, which would leave nothing to learn from. (3) Presidio without a language
model is a list of pattern recognizers. It knows no tokens, and its weak patterns match every number, hence
the threshold. (4) Kingfisher puts 488 rules into one vectorscan database and is still slower on agent logs:
they are many short texts, and each costs a call. (5) Onward therefore joins the distinct texts of a
trajectory and scans them once. A repeated text (agents repeat their history) costs nothing, so the long log
is fastest. A planted hit costs a second pass and a copy, not a scan per secret.

    python benchmarks/redaction.py [--quick] [--json FILE] [--logs FOLDER] [--repeats N]
"""

from __future__ import annotations

import argparse
import copy
import gc
import inspect
import json
import logging
import os
import pkgutil
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from redaction_peers import PEERS, Clean, versions
from redaction_samples import require

require("stdnum")  # the corpus draws valid numbers with it
import redaction_corpus as corpus  # noqa: E402

LOGS = Path(__file__).parents[2] / "shared" / "data" / "trajectories"
SLOW = ("detect-secrets", "presidio")
LAYERS = {1: "vendor tokens", 2: "structure", 3: "personal data"}


def real_logs(folder: Path) -> list[Any]:
    """Returns trajectories of other projects, or the sources if there are none."""
    files = sorted(file for file in folder.glob("*") if file.suffix in (".json", ".traj"))
    return [json.loads(file.read_text(encoding="utf-8")) for file in files] or sources()


def sources() -> list[Any]:
    """Returns modules of Python's library as tool output, one text per paragraph; nothing in them repeats."""
    modules = ("argparse", "decimal", "http.client", "json.decoder", "logging", "subprocess", "zipfile")
    texts = [inspect.getsource(pkgutil.resolve_name(name)) for name in modules]
    return [{"turns": [{"output": part} for part in text.split("\n\n")]} for text in texts]


def planted(logs: list[Any]) -> list[Any]:
    """Returns each log with one secret in its last text."""
    secrets = [case for case in corpus.cases(7) if case.layer == 1]
    return [
        {"log": log, "last": corpus.in_context(secrets[i % len(secrets)], "full stop")}
        for i, log in enumerate(logs)
    ]


def size(documents: list[Any]) -> int:
    return sum(len(text.encode("utf-8", "replace")) for one in documents for text in corpus.texts(one))


def speed(clean: Clean, documents: list[Any], repeats: int) -> float:
    """Returns MB of text per second of processor time: the best of ``repeats`` after a warm-up."""
    best = float("inf")
    for _ in range(1 + repeats):
        own = copy.deepcopy(documents)
        gc.collect()
        start = time.process_time()
        for document in own:
            clean(document)
        best = min(best, time.process_time() - start)
    return size(documents) / best / 1e6


def quality(clean: Clean, quick: bool) -> dict[str, Any]:
    """Measures recall per layer over cases × contexts, and precision over those and shapes that must stay."""
    contexts = ["plain", "full stop"] if quick else list(corpus.CONTEXTS)
    hits, total = Counter[int](), Counter[int]()
    for case in corpus.cases(0)[:: 5 if quick else 1]:
        for context in (name for name in case.contexts if name in contexts):
            document = corpus.document(case, context, "value")
            total[case.layer] += 1
            hits[case.layer] += not corpus.leaked(case, clean(copy.deepcopy(document)))
    shapes = [
        {"note": corpus.CONTEXTS[name](text)} for text in corpus.stay.shapes().values() for name in contexts
    ]
    false = sum(clean(copy.deepcopy(document)) != document for document in shapes)
    found = sum(hits.values())
    return {
        "recall": {LAYERS[layer]: round(hits[layer] / total[layer], 4) for layer in LAYERS},
        "precision": round(found / max(1, found + false), 4),
        "cases": sum(total.values()),
        "shapes": len(shapes),
        "shapes_changed": false,
    }


def changed_texts(clean: Clean, documents: list[Any]) -> int:
    after = [clean(document) for document in copy.deepcopy(documents)]
    return (Counter(corpus.texts(documents)) - Counter(corpus.texts(after))).total()


def measure(names: list[str], logs: list[Any], quick: bool, repeats: int) -> dict[str, dict[str, Any]]:
    hit, code = planted(logs), sources()[: 2 if quick else None]
    result: dict[str, dict[str, Any]] = {}
    for name in names:
        clean = PEERS[name].make()
        often = 1 if name in SLOW else repeats
        result[name] = quality(clean, quick) | {
            "clean_mb_per_second": round(speed(clean, logs, often), 3),
            "hit_mb_per_second": round(speed(clean, hit, often), 3),
            "code_mb_per_second": round(speed(clean, code, often), 3),
            "clean_log_texts_changed": changed_texts(clean, logs),
        }
    return result


def table(result: dict[str, dict[str, Any]]) -> str:
    """Formats one line per peer; after each speed comes the ratio of Onward's to it."""
    speeds = ("clean", "hit", "code")
    lines = [
        f"{'recall:':15}{'tokens':>9}{'structure':>11}{'personal':>10}{'precision':>11}"
        + "".join(f"{name + ' MB/s':>12}{'ratio':>7}" for name in speeds)
        + f"{'changed':>9}"
    ]
    for name, one in result.items():
        tokens, structure, personal = one["recall"].values()
        line = f"{name:15}{tokens:>9.1%}{structure:>11.1%}{personal:>10.1%}{one['precision']:>11.1%}"
        for speed_name in speeds:
            key = f"{speed_name}_mb_per_second"
            line += f"{one[key]:>12.2f}{result['onward'][key] / one[key]:>7.1f}"
        lines.append(line + f"{one['clean_log_texts_changed']:>9}")
    return "\n".join([*lines, "changed: texts of the real logs, planted secrets aside"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--quick", action="store_true", help="a fifth of the kinds in two contexts, small logs"
    )
    parser.add_argument("--json", type=Path, help="write the result to this file as well")
    parser.add_argument("--logs", type=Path, default=LOGS, help="folder of .json and .traj files")
    parser.add_argument("--repeats", type=int, default=5, help="of the fast ones; the slow peers run once")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    peers = versions()
    logs = real_logs(given.logs)
    if given.quick:
        logs = [log for log in logs if size([log]) < 20_000]
    result = {
        "benchmark": "redaction",
        "versions": peers,
        "log_bytes": size(logs),
        "trajectories": len(logs),
        "load_before": round(os.getloadavg()[0], 2),
        "peers": measure(list(PEERS), logs, given.quick, 1 if given.quick else given.repeats),
    }
    print(table(result["peers"]))
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
