"""The tensors that training changes, by name: one adapter, or every weight of the network.

Invariants: after all weights were trained, the sampler's copies of them are stale until ``Weights.unpack``.
Code that takes a step with ``adapter`` None must call it.
"""

from __future__ import annotations

from torch import Tensor

from onward.lm.policy import Policy


def trained_tensors(policy: Policy, adapter: str | None) -> dict[str, Tensor]:
    """Returns the tensors that training ``adapter`` changes; with None every weight of the network."""
    if adapter is not None:
        return policy.adapter(adapter).params
    return {f"weights.{i}": tensor for i, tensor in enumerate(policy.weights.tensors())}
