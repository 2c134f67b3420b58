"""What training changes, by name: one adapter, or every weight of the network.

The one thing to know: after all weights were trained, copies of them that the sampler reads are stale until
``Weights.unpack``; whoever takes a step with ``adapter`` None calls it.
"""

from __future__ import annotations

from torch import Tensor

from onward.lm.policy import Policy


def trained_tensors(policy: Policy, adapter: str | None) -> dict[str, Tensor]:
    """The tensors that training ``adapter`` changes; with None every weight of the network."""
    if adapter is not None:
        return policy.adapter(adapter).params
    return {f"weights.{i}": tensor for i, tensor in enumerate(policy.weights.tensors())}
