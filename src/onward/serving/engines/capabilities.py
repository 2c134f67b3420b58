"""Features of each engine, as data, and what follows from them for the record of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Capabilities:
    adapters: bool
    """Loads and unloads LoRA adapters while it runs."""
    token_ids: bool
    """Returns the ids that it saw and sampled."""
    logprobs: bool
    """Returns log-probs of the distribution that it drew from, at temperature alone."""
    truncated_logprobs: bool
    """The same with top-p, top-k or a grammar."""
    streams: bool
    """Tokens arrive one by one."""

    @property
    def trains(self) -> bool:
        """True if its answers can be used in a policy loss."""
        return self.token_ids and self.logprobs

    def record(self, sampling: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns the part of a generation record that may be stored: None from an engine without tokens, and
        no tokens where its log-probs are not those of the distribution that was drawn from."""
        if not self.trains:
            return None
        is_cut = sampling.get("top_p", 1.0) != 1.0 or bool(sampling.get("top_k")) or "constraint" in sampling
        if is_cut and sampling.get("temperature") and not self.truncated_logprobs:
            return {**sampling, **WITHOUT_TOKENS}
        return dict(sampling)

    def described(self, name: str) -> dict[str, Any] | None:
        """Returns the part of a trajectory's metadata from which the trainer learns that the engine ``name``
        gives nothing for a policy loss; None for one that does."""
        if self.trains:
            return None
        return {"name": name, "token_ids": self.token_ids, "logprobs": self.logprobs}


WITHOUT_TOKENS: dict[str, Any] = {
    "continues": None,
    "prompt_ids": [],
    "token_ids": [],
    "logprobs": [],
    "tokens_void": True,
}
"""Fields of the record of an answer that may be shown and never trained on."""

ENGINES: dict[str, Capabilities] = {
    "local": Capabilities(True, True, True, True, True),
    "vllm": Capabilities(True, True, True, True, True),
    "sglang": Capabilities(True, True, True, False, False),
    "ollama": Capabilities(True, False, False, False, False),
    "openai": Capabilities(False, False, False, False, False),
}
"""``model.engine`` → its features."""
