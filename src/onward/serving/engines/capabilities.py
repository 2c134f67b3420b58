"""Features of each engine, as data."""

from __future__ import annotations

from dataclasses import dataclass


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


ENGINES: dict[str, Capabilities] = {
    "local": Capabilities(True, True, True, True, True),
    "vllm": Capabilities(True, True, True, True, True),
    "sglang": Capabilities(True, True, True, False, False),
}
"""``model.engine`` → its features."""
