"""A trained policy as an agent uses it: a file that is loaded and asked for actions, with numpy alone.

The one thing to know: what trains never comes along. ``PolicyParts`` is all that an algorithm hands over
(plain arrays, the frozen normaliser inside), so acting needs neither the trainer nor torch, and every export
(safetensors, ONNX) is made from the same parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from numpy.typing import NDArray

from onward.control.spaces import ActionSpec, Layout

Head = Literal["q", "logits", "gaussian", "tanh", "table"]
Activation = Literal["tanh", "relu", "none"]


class Layer(NamedTuple):
    """x → activation(layer_norm(x Wᵀ + b))."""

    weight: NDArray[Any]
    """(out, in) float32"""
    bias: NDArray[Any]
    """(out,) float32"""
    activation: Activation = "none"
    layer_norm: tuple[NDArray[Any], NDArray[Any]] | None = None
    """(gain, bias), each (out,), between the product and the activation; epsilon 1e-5."""


class Convolution(NamedTuple):
    """A convolution over (height, width, channels) without padding, then ReLU."""

    weight: NDArray[Any]
    """(out, in, height, width) float32, torch's order"""
    bias: NDArray[Any]
    """(out,) float32"""
    stride: int = 1
    padding: int = 0


@dataclass(frozen=True)
class PolicyParts:
    """What ``Algorithm.networks`` hands over. Greedy action: argmax for ``q``, ``logits`` and ``table`` (per
    component; ``multi_binary``: above 0), the mean for ``gaussian``, tanh of the mean for ``tanh``."""

    layout: Layout
    actions: ActionSpec
    head: Head
    layers: Sequence[Layer]
    """From the flat observation (behind ``images``: encoded images, then the vector) to the head. A table is one
    layer without bias over one-hot states."""
    log_std: NDArray[Any] | None = None
    """(dim,) of ``gaussian``. ``tanh``, or a Gaussian without it: the last layer gives means, then log-stds."""
    norm: tuple[NDArray[Any], NDArray[Any], float] | None = None
    """(mean, variance, clip) of the float32 part: (x − mean) / √(variance + 1e-8), clipped to ±clip."""
    images: dict[str, Any] | None = None
    """Per image key the convolutions in order, ``[Convolution, …]``; their output is flattened as
    (channels, height, width). Pixels are divided by 255 first."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Numbers and strings to keep beside the policy."""
