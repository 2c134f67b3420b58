"""Expected log-probs of a fixed prompt, stored in a checkpoint and compared by every engine that loads it.

A file hash shows that the bytes are right. It does not show that a server applies them rightly: a wrong
scaling or a permuted projection leaves the hash as it is. The job's own forward pass writes ``probe.json``.
An engine computes the same numbers after the load. The base model is measured too: its distance is the
rounding of the engine's number format, and the adapter's may not be much larger.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onward.errors import TamperedError

if TYPE_CHECKING:
    from onward.lm.model import LanguageModel

FILE = "probe.json"
PROMPT = "The quick brown fox jumps over the lazy dog. 1 + 1 = 2."
TOKENS = 8
EXACT = 1e-4
"""Nats; a base model that is nearer than this is computed in float32, or in the job's own format. Measured on
SmolLM2 and a Qwen2 network of 1 M parameters: below 2e-5 in float32, 0.006 to 0.05 in bfloat16."""
EXACT_LIMIT, ROUNDED_LIMIT = 1e-3, 0.1
"""Nats that an adapter's log-prob may be off, in float32 and in a format of 16 bits. Measured with adapters
of three strengths on both models: below 2e-5, and 0.016 to 0.09; 0.11 over a base that was off by 0.05."""
TIMES_BASE = 4.0
"""An adapter may be off by so many times as much as the base model."""
WORST_BASE = 0.5
"""Nats; a base model that is off by more is another one, or computed wrongly."""


@dataclass(frozen=True)
class Expected:
    """The greedy answer of one policy, and its log-probs at temperature 1."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]

    def distance(self, found: Sequence[float]) -> float:
        """Returns the largest difference in log-probs; infinite for another number of them."""
        if len(found) != len(self.logprobs):
            return float("inf")
        return max(
            (abs(a - b) if a == a and b == b else float("inf"))
            for a, b in zip(self.logprobs, found, strict=True)
        )


@dataclass(frozen=True)
class Probe:
    prompt_ids: Sequence[int]
    base: Expected
    adapter: Expected

    @classmethod
    def read(cls, folder: Path) -> Probe | None:
        """Reads the probe of a checkpoint; None if it has none, as one that was made elsewhere. Raises
        TamperedError for a file that cannot be used."""
        path = folder / FILE
        if not path.is_file():
            return None
        try:
            told: dict[str, Any] = json.loads(path.read_bytes())
            probe = cls(told["prompt_ids"], Expected(**told["base"]), Expected(**told["adapter"]))
            sound = probe.prompt_ids and all(
                one.token_ids and len(one.token_ids) == len(one.logprobs)
                for one in (probe.base, probe.adapter)
            )
        except (ValueError, TypeError, KeyError):
            probe, sound = None, False
        if probe is None or not sound:
            raise TamperedError(f"{FILE} of {folder.name} is not readable: the adapter must not be loaded.")
        return probe

    def write(self, folder: Path) -> None:
        """Writes ``probe.json``, before the manifest lists it."""
        (folder / FILE).write_text(json.dumps(asdict(self), sort_keys=True) + "\n", encoding="utf-8")

    def check(self, name: str, base: Sequence[float], adapter: Sequence[float]) -> float:
        """Compares what an engine computed for both policies, and returns the adapter's distance in nats.

        Raises TamperedError if the adapter, or the base model under it, is further off than rounding.
        """
        noise, apart = self.base.distance(base), self.adapter.distance(adapter)
        if noise > WORST_BASE:
            raise TamperedError(
                f"The engine's base model is {noise:.3f} nats off the one that adapter {name[:12]} was "
                f"trained on: the adapter is not served. Start the engine with that base model."
            )
        limit = max(EXACT_LIMIT if noise <= EXACT else ROUNDED_LIMIT, TIMES_BASE * noise)
        if apart > limit:
            raise TamperedError(
                f"Adapter {name[:12]} is {apart:.3f} nats off the log-probs that its job stored (at most "
                f"{limit:.3f} is rounding): the engine applies it wrongly, so it is not served."
            )
        return apart


def make(policy: LanguageModel, adapter: str) -> Probe:
    """Computes the probe of ``adapter`` by the policy's own sampler and forward pass."""
    room = policy.shape.max_positions - TOKENS
    prompt = list(policy.tokenizer.encode(PROMPT, add_special_tokens=False))[:room]
    base, adapted = (_expected(policy, prompt, name) for name in (None, adapter))
    return Probe(prompt, base, adapted)


def logprobs(
    policy: LanguageModel, prompt: Sequence[int], token_ids: Sequence[int], adapter: str | None
) -> list[float]:
    """Returns the log-probs of ``token_ids`` after ``prompt``, by one forward pass."""
    from onward.lm.tokens import TokenRow

    before, after = len(prompt), len(token_ids)
    row = TokenRow([*prompt, *token_ids], [False] * before + [True] * after, [0.0] * (before + after))
    return [float(value) for value in policy.logprobs([row], adapter)[0][before:]]


def measure(policy: LanguageModel, probe: Probe, adapter: str) -> tuple[list[float], list[float]]:
    """Returns the log-probs of base and adapter on the probe's answers, by the policy's forward pass."""
    return (
        logprobs(policy, probe.prompt_ids, probe.base.token_ids, None),
        logprobs(policy, probe.prompt_ids, probe.adapter.token_ids, adapter),
    )


def _expected(policy: LanguageModel, prompt: Sequence[int], adapter: str | None) -> Expected:
    from onward.lm import paths
    from onward.lm.request import SampleRequest

    sampler = paths.sampler(policy, 1, len(prompt) + TOKENS)
    sampler.submit(SampleRequest("probe", prompt, TOKENS, temperature=0.0, adapter=adapter))
    ids: list[int] = []
    while sampler.busy:
        for sample in sampler.step():
            ids = list(sample.token_ids)
    return Expected(ids, logprobs(policy, prompt, ids, adapter))
