"""Networks of control policies in PyTorch: MLP, stacked ensemble, image encoder."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from onward.control.core.spaces import Layout, Obs
from onward.control.networks.in_numpy import Layer
from onward.errors import ControlError

Activation = Literal["tanh", "relu"]
TensorObs = Tensor | dict[str, Tensor]

# In place: nothing but the activation itself needs a linear layer's outputs.
_ACTIVATIONS = {"tanh": torch.tanh_, "relu": torch.relu_}
_NORM_EPS = 1e-5
Pairs = Sequence[tuple[Tensor, Tensor]]
NARROW = 16
"""Number of inputs or outputs up to which the orientation of a product matters: it is 4 times as fast."""


class MLP(nn.Module):
    """Linear layers with ``activation`` between them and an optional layer norm before each activation.

    ``sizes``: input, hidden …, output width; the last layer is linear. With ``gain``, weights are orthogonal
    (√2 in hidden layers, ``gain`` in the last) and biases are zero; Andrychowicz et al. 2021 use 0.01 for
    policies and 1 for values. With None, both are PyTorch's uniform ±1/√fan-in.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activation: Activation = "tanh",
        layer_norm: bool = False,
        gain: float | None = 1.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _check(sizes, activation)
        self.activation: Activation = activation
        self.linears = nn.ModuleList()
        self.norms = nn.ModuleList()
        for depth, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            linear = nn.Linear(fan_in, fan_out)
            last = depth == len(sizes) - 2
            _initialise(
                linear.weight,
                linear.bias,
                None if gain is None else gain if last else math.sqrt(2),
                generator,
            )
            self.linears.append(linear)
            if layer_norm and not last:
                self.norms.append(nn.LayerNorm(fan_out, eps=_NORM_EPS))
        # Module look-ups cost as much as a small layer, so the parameters are stored in lists. Their identity
        # never changes: FlatParameters and load_state_dict both preserve it.
        self.layers = [(linear.weight, linear.bias) for linear in cast(Iterable[nn.Linear], self.linears)]
        self._norms = [(norm.weight, norm.bias) for norm in cast(Iterable[nn.LayerNorm], self.norms)]

    def forward(self, x: Tensor) -> Tensor:
        """Maps (…, sizes[0]) to (…, sizes[-1])."""
        act = _ACTIVATIONS[self.activation]
        for depth, (weight, bias) in enumerate(self.layers[:-1]):
            x = _linear(x, weight, bias)
            if self._norms:
                gain, shift = self._norms[depth]
                x = F.layer_norm(x, gain.shape, gain, shift, _NORM_EPS)
            x = act(x)
        return _linear(x, *self.layers[-1])

    def arrays(self) -> list[Layer]:
        """Returns the layers as arrays in the parameters' memory; to be called after ``FlatParameters``."""
        layers: list[Layer] = []
        for depth, (weight, bias) in enumerate(self.layers):
            last = depth == len(self.layers) - 1
            norm = None
            if self._norms and not last:
                gain, shift = self._norms[depth]
                norm = (_array(gain), _array(shift))
            layers.append(Layer(_array(weight), _array(bias), "none" if last else self.activation, norm))
        return layers


class Ensemble(nn.Module):
    """An ensemble of ``count`` MLPs with stacked weights (E, in, out): one ``baddbmm`` per layer for all.

    Members differ by their initial weights alone. Twin critics are an ensemble of 2.
    """

    def __init__(
        self,
        count: int,
        sizes: Sequence[int],
        activation: Activation = "relu",
        layer_norm: bool = False,
        gain: float | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _check(sizes, activation)
        self.count = count
        self.activation: Activation = activation
        self.layers: list[tuple[nn.Parameter, nn.Parameter]] = []
        self._norms: list[tuple[nn.Parameter, nn.Parameter]] = []
        for depth, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            last = depth == len(sizes) - 2
            weight, bias = torch.empty(count, fan_in, fan_out), torch.zeros(count, 1, fan_out)
            layer_gain = None if gain is None else gain if last else math.sqrt(2)
            for member in range(count):
                _initialise(weight[member].T, bias[member, 0], layer_gain, generator)
            self.layers.append((nn.Parameter(weight), nn.Parameter(bias)))
            self.register_parameter(f"weight{depth}", self.layers[-1][0])
            self.register_parameter(f"bias{depth}", self.layers[-1][1])
            if layer_norm and not last:
                norm = (
                    nn.Parameter(torch.ones(count, 1, fan_out)),
                    nn.Parameter(torch.zeros(count, 1, fan_out)),
                )
                self._norms.append(norm)
                self.register_parameter(f"norm_gain{depth}", norm[0])
                self.register_parameter(f"norm_bias{depth}", norm[1])

    def forward(self, x: Tensor, members: int | None = None) -> Tensor:
        """Maps (batch, in), the same for all members, or (E, batch, in) to (E, batch, out).

        ``members``: computes only the first ones.
        """
        layers: Pairs = self.layers
        norms: Pairs = self._norms
        if members is not None:
            layers, norms = ([(a[:members], b[:members]) for a, b in pairs] for pairs in (layers, norms))
        if x.dim() == 2:
            x = x.expand(members or self.count, *x.shape)
        act = _ACTIVATIONS[self.activation]
        for depth, (weight, bias) in enumerate(layers[:-1]):
            x = torch.baddbmm(bias, x, weight)
            if norms:
                gain, shift = norms[depth]
                x = torch.addcmul(shift, F.layer_norm(x, x.shape[-1:], eps=_NORM_EPS), gain)
            x = act(x)
        # One by one: a batched product with a single output takes ten times as long.
        parts = zip(x.unbind(), *(stack.unbind() for stack in layers[-1]), strict=True)
        return torch.stack([torch.addmm(bias, each, weight) for each, weight, bias in parts])

    def arrays(self, member: int) -> list[Layer]:
        """Returns the layers of one member as arrays in shared memory (weights are transposed views)."""
        layers: list[Layer] = []
        for depth, (weight, bias) in enumerate(self.layers):
            last = depth == len(self.layers) - 1
            norm = None
            if self._norms and not last:
                gain, shift = self._norms[depth]
                norm = (_array(gain)[member, 0], _array(shift)[member, 0])
            activation = "none" if last else self.activation
            layers.append(Layer(_array(weight)[member].T, _array(bias)[member, 0], activation, norm))
        return layers


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``F.linear``, with the orientation in which the gradient of a weight with few inputs is fast."""
    if x.dim() == 2 and weight.shape[1] <= NARROW:
        return torch.addmm(bias, x, weight.t().contiguous())
    return F.linear(x, weight, bias)


class Encoder(nn.Module):
    """Encodes observations of any ``Layout`` as (N, width): vectors pass through, each image has a CNN.

    From 36 pixels on the CNN is that of Mnih et al. 2015 (8×8/4, 4×4/2, 3×3/1). Below, it has two 3×3 layers
    (the second with stride 2 from 8 pixels on). One linear layer to ``features`` follows. Bytes are divided
    by 255.
    """

    def __init__(self, layout: Layout, features: int = 128, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.layout = layout
        self.width = layout.width + features * len(layout.images)
        """Number of features."""
        self.cnns = nn.ModuleList(_cnn(shape, features, generator) for _, shape in layout.images)

    def forward(self, obs: TensorObs) -> Tensor:
        """Encodes ``obs``: float32 (N, width), or a dict with uint8 (N, height, width, channels) images."""
        if not isinstance(obs, dict):
            return obs
        parts = [obs["vector"]] if self.layout.width else []
        for (key, _), cnn in zip(self.layout.images, self.cnns, strict=True):
            parts.append(cnn(obs[key].permute(0, 3, 1, 2).float().div_(255.0)))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def to_tensor(obs: Obs) -> TensorObs:
    """Returns an observation as tensors that share its memory."""
    if isinstance(obs, dict):
        return {key: torch.from_numpy(array) for key, array in obs.items()}
    return torch.from_numpy(obs)


def _array(p: Tensor) -> NDArray[Any]:
    return p.detach().numpy()


def _check(sizes: Sequence[int], activation: str) -> None:
    if len(sizes) < 2 or min(sizes) < 1:
        raise ControlError(
            f"A network has sizes {tuple(sizes)}; give at least the input and output width, each 1 or more."
        )
    if activation not in _ACTIVATIONS:
        raise ControlError(
            f"A network has activation {activation!r}; choose one of {', '.join(_ACTIVATIONS)}."
        )


@torch.no_grad()
def _initialise(weight: Tensor, bias: Tensor, gain: float | None, generator: torch.Generator | None) -> None:
    """Fills ``weight`` (out, in), which may be a view, and ``bias`` in place."""
    if gain is None:
        bound = 1 / math.sqrt(weight.shape[1])
        weight.uniform_(-bound, bound, generator=generator)
        bias.uniform_(-bound, bound, generator=generator)
    else:
        weight.copy_(nn.init.orthogonal_(torch.empty(weight.shape), gain, generator))
        bias.zero_()


def _cnn(shape: tuple[int, int, int], features: int, generator: torch.Generator | None) -> nn.Sequential:
    height, width, channels = shape
    if min(height, width) < 3:
        raise ControlError(
            f"An image observation has {height}×{width} pixels; at least 3×3 are needed: "
            "flatten smaller ones to a vector of numbers."
        )
    if min(height, width) >= 36:
        convs = [nn.Conv2d(channels, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1)]
    else:
        stride = 2 if min(height, width) >= 8 else 1
        convs = [nn.Conv2d(channels, 16, 3, 1, padding=1), nn.Conv2d(16, 32, 3, stride, padding=1)]
    layers: list[nn.Module] = [layer for conv in convs for layer in (conv, nn.ReLU())]
    with torch.no_grad():
        flat = nn.Sequential(*layers)(torch.zeros(1, channels, height, width)).numel()
    linear = nn.Linear(flat, features)
    for layer in (*convs, linear):
        assert layer.bias is not None
        nn.init.orthogonal_(layer.weight, math.sqrt(2), generator)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers, nn.Flatten(), linear, nn.ReLU())
