"""Networks of control policies in PyTorch: MLP, image encoder, stacked ensemble; parameters as one tensor.

The one thing to know: small networks spend their time in dispatch, not in arithmetic. So an ensemble is one
``baddbmm`` per layer, and ``FlatParameters`` makes clipping, Adam and target updates one operation each.
After it every parameter and every gradient is a view of a flat tensor; whatever else clears gradients drops
these views (``grad`` becomes None), and ``FlatParameters.zero_grad`` puts them back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from onward.control.spaces import Layout, Obs
from onward.errors import ControlError

Activation = Literal["tanh", "relu"]
TensorObs = Tensor | dict[str, Tensor]
LayerArrays = tuple[NDArray[Any], NDArray[Any], str, tuple[NDArray[Any], NDArray[Any]] | None]
"""(weight (out, in), bias (out,), "tanh" | "relu" | "none", None or layer norm's (gain, bias))."""

_ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu}
_NORM_EPS = 1e-5


class MLP(nn.Module):
    """Linear layers with ``activation`` between them, a layer norm before each activation if asked for.

    ``sizes``: input, hidden …, output width; the last layer is linear. With ``gain`` weights are orthogonal,
    √2 in hidden layers and ``gain`` in the last, with zero biases (Andrychowicz et al. 2021 use 0.01 for
    policies and 1 for values); with None they are PyTorch's uniform ±1/√fan-in.
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
        # Module look-ups cost as much as a small layer: the parameters are kept at hand. Their identity never
        # changes (FlatParameters and load_state_dict both keep it).
        self._layers = [(linear.weight, linear.bias) for linear in cast(Iterable[nn.Linear], self.linears)]
        self._flat = [p for layer in self._layers for p in layer]
        self._norms = [(norm.weight, norm.bias) for norm in cast(Iterable[nn.LayerNorm], self.norms)]

    def forward(self, x: Tensor) -> Tensor:
        """(…, sizes[0]) → (…, sizes[-1])."""
        if x.dim() == 2 and x.dtype == torch.float32 and not self._norms:
            return _Chain.apply(x, self.activation, *self._flat)  # type: ignore[no-any-return]
        act = _ACTIVATIONS[self.activation]
        for depth, (weight, bias) in enumerate(self._layers[:-1]):
            x = F.linear(x, weight, bias)
            if self._norms:
                gain, shift = self._norms[depth]
                x = F.layer_norm(x, gain.shape, gain, shift, _NORM_EPS)
            x = act(x)
        weight, bias = self._layers[-1]
        return F.linear(x, weight, bias)

    def arrays(self) -> list[LayerArrays]:
        """Its layers as numpy arrays that share the parameters' memory: call it after ``FlatParameters``."""
        layers: list[LayerArrays] = []
        for depth, (weight, bias) in enumerate(self._layers):
            last = depth == len(self._layers) - 1
            norm = None
            if self._norms and not last:
                gain, shift = self._norms[depth]
                norm = (_array(gain), _array(shift))
            layers.append((_array(weight), _array(bias), "none" if last else self.activation, norm))
        return layers


class _Chain(torch.autograd.Function):
    """An MLP as one node of the graph: a third less time than a node per operation at 256 × 64.

    tanh is numpy's, several times faster than PyTorch's on some processors. Not twice differentiable.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, activation: Activation, *parameters: Tensor) -> Tensor:
        """``parameters``: weight, bias, weight, bias …"""
        inputs = []
        for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
            if inputs and activation == "tanh":
                array = x.numpy()
                np.tanh(array, out=array)
            elif inputs:
                x.relu_()
            inputs.append(x)
            x = torch.addmm(bias, x, weight.t())
        ctx.save_for_backward(*inputs, *parameters[::2])
        ctx.activation = activation
        return x

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Any, ...]:
        (gradient,), saved = grad_outputs, ctx.saved_tensors
        inputs, weights = saved[: len(saved) // 2], saved[len(saved) // 2 :]
        gradients: list[Tensor] = []
        for depth in range(len(weights) - 1, -1, -1):
            gradients += [gradient.sum(0), gradient.t() @ inputs[depth]]
            if depth == 0:
                break
            gradient = gradient @ weights[depth]
            if ctx.activation == "tanh":
                gradient = torch.ops.aten.tanh_backward(gradient, inputs[depth])
            else:
                gradient = torch.ops.aten.threshold_backward(gradient, inputs[depth], 0)
        into = gradient @ weights[0] if ctx.needs_input_grad[0] else None
        return into, None, *reversed(gradients)


def mlp(
    sizes: Sequence[int],
    activation: Activation = "tanh",
    layer_norm: bool = False,
    gain: float | None = 1.0,
    generator: torch.Generator | None = None,
) -> MLP:
    """``MLP``, as a call: see there."""
    return MLP(sizes, activation, layer_norm, gain, generator)


class Ensemble(nn.Module):
    """``count`` MLPs of one shape as stacked weights (E, in, out): one ``baddbmm`` per layer for all of them.

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
        self._layers: list[tuple[nn.Parameter, nn.Parameter]] = []
        self._norms: list[tuple[nn.Parameter, nn.Parameter]] = []
        for depth, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            last = depth == len(sizes) - 2
            weight, bias = torch.empty(count, fan_in, fan_out), torch.zeros(count, 1, fan_out)
            layer_gain = None if gain is None else gain if last else math.sqrt(2)
            for member in range(count):
                _initialise(weight[member].T, bias[member, 0], layer_gain, generator)
            self._layers.append((nn.Parameter(weight), nn.Parameter(bias)))
            self.register_parameter(f"weight{depth}", self._layers[-1][0])
            self.register_parameter(f"bias{depth}", self._layers[-1][1])
            if layer_norm and not last:
                norm = (
                    nn.Parameter(torch.ones(count, 1, fan_out)),
                    nn.Parameter(torch.zeros(count, 1, fan_out)),
                )
                self._norms.append(norm)
                self.register_parameter(f"norm_gain{depth}", norm[0])
                self.register_parameter(f"norm_bias{depth}", norm[1])

    def forward(self, x: Tensor) -> Tensor:
        """(batch, in), the same for all members, or (E, batch, in) → (E, batch, out)."""
        if x.dim() == 2:
            x = x.expand(self.count, *x.shape)
        act = _ACTIVATIONS[self.activation]
        for depth, (weight, bias) in enumerate(self._layers[:-1]):
            x = torch.baddbmm(bias, x, weight)
            if self._norms:
                gain, shift = self._norms[depth]
                x = torch.addcmul(shift, F.layer_norm(x, x.shape[-1:], eps=_NORM_EPS), gain)
            x = act(x)
        weight, bias = self._layers[-1]
        return torch.baddbmm(bias, x, weight)

    def arrays(self, member: int) -> list[LayerArrays]:
        """Layers of one member as numpy arrays (weights transposed views, sharing memory)."""
        layers: list[LayerArrays] = []
        for depth, (weight, bias) in enumerate(self._layers):
            last = depth == len(self._layers) - 1
            norm = None
            if self._norms and not last:
                gain, shift = self._norms[depth]
                norm = (_array(gain)[member, 0], _array(shift)[member, 0])
            activation = "none" if last else self.activation
            layers.append((_array(weight)[member].T, _array(bias)[member, 0], activation, norm))
        return layers


class Encoder(nn.Module):
    """Observations of any ``Layout`` → (N, width) features: vectors pass through, each image has a CNN.

    From 36 pixels on the CNN is that of Mnih et al. 2015 (8×8/4, 4×4/2, 3×3/1), below it two 3×3 layers (the
    second with stride 2 from 8 pixels on); then one linear layer to ``features``. Bytes are divided by 255.
    """

    def __init__(self, layout: Layout, features: int = 128, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.layout = layout
        self.width = layout.width + features * len(layout.images)
        """Features it gives."""
        self.cnns = nn.ModuleList(_cnn(shape, features, generator) for _, shape in layout.images)

    def forward(self, obs: TensorObs) -> Tensor:
        """``obs``: float32 (N, width), or a dict with uint8 (N, height, width, channels) images."""
        if not isinstance(obs, dict):
            return obs
        parts = [obs["vector"]] if self.layout.width else []
        for (key, _), cnn in zip(self.layout.images, self.cnns, strict=True):
            parts.append(cnn(obs[key].permute(0, 3, 1, 2).float().div_(255.0)))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


class FlatParameters:
    """All parameters of ``modules`` as one tensor, and all their gradients as another.

    Gradients accumulate into the views in place, so ``clip_``, an optimiser over ``[flat.tensor]`` and
    ``lerp_from`` each are one operation. Order: modules as given, parameters as registered, no duplicates.
    """

    def __init__(self, modules: nn.Module | Iterable[nn.Module]) -> None:
        listed = [modules] if isinstance(modules, nn.Module) else list(modules)
        self.parameters: list[nn.Parameter] = list(dict.fromkeys(p for m in listed for p in m.parameters()))
        if not self.parameters:
            raise ControlError("FlatParameters was given no parameters: pass modules that have some.")
        size = sum(p.numel() for p in self.parameters)
        flat, self.grad = torch.empty(size), torch.zeros(size)
        self._grads: list[Tensor] = []
        at = 0
        for p in self.parameters:
            end = at + p.numel()
            flat[at:end] = p.detach().reshape(-1)
            p.data = flat[at:end].view(p.shape)
            self._grads.append(self.grad[at:end].view(p.shape))
            p.grad = self._grads[-1]
            at = end
        self.tensor = nn.Parameter(flat)
        """(size,) every parameter; its ``grad`` is every gradient. This is what an optimiser gets."""
        self.tensor.grad = self.grad

    def adam(self, lr: float, eps: float = 1e-8) -> torch.optim.Adam:
        """Adam over everything as one fused operation. Clear with ``zero_grad`` here."""
        return torch.optim.Adam([self.tensor], lr=lr, eps=eps, fused=True)

    def zero_grad(self) -> None:
        """Zero the gradients; what is not a view of ``grad`` (any more) becomes one again."""
        self.grad.zero_()
        for p, grad in zip(self.parameters, self._grads, strict=True):
            if p.grad is not grad:
                p.grad = grad

    def clip_(self, max_norm: float) -> Tensor:
        """Scale the gradient to at most ``max_norm`` (L2, all parameters together); gives the norm before."""
        norm = torch.linalg.vector_norm(self.grad)
        self.grad.mul_((max_norm / (norm + 1e-6)).clamp_(max=1.0))
        return norm

    @torch.no_grad()
    def lerp_from(self, other: FlatParameters, tau: float) -> None:
        """Move ``tau`` of the way to ``other`` (Polyak averaging; 1 copies)."""
        if tau == 1.0:
            self.tensor.copy_(other.tensor)
        else:
            self.tensor.lerp_(other.tensor, tau)

    def freeze(self) -> None:
        """For target networks: nothing of it takes part in autograd, nor gets a gradient."""
        for p in (*self.parameters, self.tensor):
            p.requires_grad_(False)
            p.grad = None

    def numpy_views(self) -> list[NDArray[Any]]:
        """Every parameter as an array that shares its memory, in order."""
        return [_array(p) for p in self.parameters]


def adam_state(optimiser: torch.optim.Adam) -> dict[str, Any]:
    """What ``load_adam_state`` needs: copies of step and moments of each tensor, {} before a step."""
    states = [optimiser.state[p] for group in optimiser.param_groups for p in group["params"]]
    return {str(i): {name: t.clone() for name, t in state.items()} for i, state in enumerate(states) if state}


def load_adam_state(optimiser: torch.optim.Adam, saved: dict[str, Any]) -> None:
    """Continue with the moments of ``adam_state``."""
    tensors = [p for group in optimiser.param_groups for p in group["params"]]
    for i, p in enumerate(tensors):
        optimiser.state.pop(p, None)
        if str(i) in saved:
            optimiser.state[p] = {name: torch.as_tensor(t).clone() for name, t in saved[str(i)].items()}


def to_tensor(obs: Obs) -> TensorObs:
    """An observation as tensors that share its memory."""
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
    """``weight`` (out, in), which may be a view: filled in place."""
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
