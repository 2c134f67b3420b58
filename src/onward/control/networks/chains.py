"""Forward and backward of linear layers with activations between them, by hand.

On small networks a graph of operations costs more than the arithmetic. ``Chain`` keeps
what its backward needs in a list and writes the parameters' gradients straight into where they belong, with
no clearing and no adding up. Products are taken the way round in which the processor is fast: with a narrow
side (observations of 4 numbers, 2 actions) that is three to six times faster than the other. tanh is numpy's,
several times faster than PyTorch's on some processors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from onward.errors import ControlError

Activation = Literal["tanh", "relu"]
Layers = list[tuple[Tensor, Tensor]]
"""(weight (in, out), bias (out,)) of each layer; a weight may be a transposed view."""

NARROW = 16
"""A side of a product up to which its way round matters."""
ROWS = 1024
"""Rows that go through all layers at once where nothing is recorded: what they take stays in the cache."""


class Chain:
    """One multilayer perceptron without layer norm: ``activation`` between its linear ``layers``."""

    def __init__(self, layers: Layers, activation: Activation) -> None:
        self.layers, self.activation = layers, activation
        self.width = layers[-1][1].shape[0]

    def outputs(self, x: Tensor, out: Tensor) -> Tensor:
        """(B, in) → ``out`` (B, width); nothing is kept."""
        for at in range(0, len(x), ROWS):
            self.record(x[at : at + ROWS], out[at : at + ROWS])
        return out

    def record(self, x: Tensor, out: Tensor) -> list[Tensor]:
        """(B, in) → ``out`` (B, width); gives each layer's input, as ``backward`` takes them."""
        inputs = [x]
        for weight, bias in self.layers[:-1]:
            x = torch.addmm(bias, x, weight)
            if self.activation == "relu":
                x.relu_()
            else:
                array = x.numpy()
                np.tanh(array, out=array)
            inputs.append(x)
        weight, bias = self.layers[-1]
        if 1 < weight.shape[1] <= NARROW and weight.is_contiguous():
            weight = weight.t().contiguous().t()
        torch.addmm(bias, x, weight, out=out)
        return inputs

    def backward(self, inputs: list[Tensor], gradient: Tensor, into: Layers | None, to_input: bool) -> Tensor:
        """Writes the parameters' gradients, from the gradient at the outputs (B, width), over ``into``.

        Gives the gradient at the chain's input (``to_input``), else at the first layer's output.
        """
        for depth in range(len(self.layers) - 1, -1, -1):
            if into is not None:
                weight_into, bias_into = into[depth]
                torch.sum(gradient, 0, out=bias_into)
                _weight_gradient(inputs[depth], gradient, weight_into)
            if depth == 0:
                break
            gradient = torch.mm(gradient, self.layers[depth][0].t())
            if self.activation == "relu":
                torch.ops.aten.threshold_backward.grad_input(gradient, inputs[depth], 0, grad_input=gradient)
            else:
                torch.ops.aten.tanh_backward.grad_input(gradient, inputs[depth], grad_input=gradient)
        return torch.mm(gradient, self.layers[0][0].t()) if to_input else gradient

    def through(self, inputs: list[Tensor], gradient: Tensor) -> Tensor:
        """The gradient at the input (B, in), parameters holding still: rows of zeros cost nothing."""
        rows = gradient.count_nonzero(dim=1).nonzero().squeeze(1)
        if len(rows) == len(gradient):
            return self.backward(inputs, gradient, None, to_input=True)
        full = torch.zeros_like(inputs[0])
        if len(rows):
            some = [inputs[0], *(x[rows] for x in inputs[1:])]
            full[rows] = self.backward(some, gradient[rows], None, to_input=True)
        return full


def _weight_gradient(x: Tensor, gradient: Tensor, into: Tensor) -> None:
    """``into`` (in, out) = xᵀ · gradient, by whichever way round is fast."""
    fan_in, fan_out = into.shape
    if into.is_contiguous():
        if 1 < fan_out <= NARROW:
            into.copy_(torch.mm(gradient.t(), x).t())
        else:
            torch.mm(x.t(), gradient, out=into)
    elif fan_in <= NARROW:
        into.copy_(torch.mm(x.t(), gradient))
    else:
        torch.mm(gradient.t(), x, out=into.t())


class Stack:
    """The chains of a network's parameters: of an MLP, or of the ``count`` members of an ensemble.

    ``layers``: parameters (weight (out, in), bias (out,)) of an MLP, or stacked (E, in, out) and
    (E, 1, out). They are looked at anew when ``FlatParameters`` has moved them.
    """

    def __init__(
        self,
        layers: Layers,
        activation: Activation,
        count: int | None = None,
    ) -> None:
        self._layers, self._count = layers, count
        self._activation: Activation = activation
        self._at = 0
        self._chains: list[Chain] = []
        self._grad: Tensor | None = None
        self._into: list[Layers] = []

    def chains(self) -> list[Chain]:
        """One per member, on the parameters' memory."""
        at = self._layers[0][0].data_ptr()
        if at != self._at:
            layers = [(weight.detach(), bias.detach()) for weight, bias in self._layers]
            self._chains = [Chain(member, self._activation) for member in self._members(layers)]
            self._at = at
        return self._chains

    def outputs(self, x: Tensor) -> Tensor:
        """(B, in) → (E, B, width), without gradient."""
        chains = self.chains()
        out = x.new_empty(len(chains), len(x), chains[0].width)
        for chain, part in zip(chains, out, strict=True):
            chain.outputs(x, part)
        return out

    @torch.no_grad()
    def record(self, x: Tensor) -> tuple[Tensor, Callable[[Tensor], None]]:
        """(B, in) → (E, B, width), and what sets the gradients from that at the outputs (E, B, width)."""
        out, recorded = self._recorded(x)

        @torch.no_grad()
        def back(gradient: Tensor) -> None:
            for (chain, inputs), part, into in zip(recorded, gradient, self._gradients(), strict=True):
                chain.backward(inputs, part, into, to_input=False)

        return out, back

    @torch.no_grad()
    def through(self, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """(B, in) → (E, B, width), and the gradient at ``x`` of that at the outputs: parameters hold still.

        Where a loss takes the smaller of two critics, each row has its gradient in one of them: it goes back
        through that one alone.
        """
        out, recorded = self._recorded(x)

        @torch.no_grad()
        def back(gradient: Tensor) -> Tensor:
            total: Tensor | None = None
            for (chain, inputs), part in zip(recorded, gradient, strict=True):
                at_input = chain.through(inputs, part)
                total = at_input if total is None else total.add_(at_input)
            assert total is not None
            return total

        return out, back

    def _recorded(self, x: Tensor) -> tuple[Tensor, list[tuple[Chain, list[Tensor]]]]:
        """Outputs (E, B, width), and each member with what its backward needs."""
        chains = self.chains()
        out = x.new_empty(len(chains), len(x), chains[0].width)
        return out, [(chain, chain.record(x, part)) for chain, part in zip(chains, out, strict=True)]

    def _gradients(self) -> list[Layers]:
        """Returns the tensors that take the gradients of each member."""
        grad = self._layers[0][0].grad
        if grad is None or grad is not self._grad:
            layers: Layers = []
            for weight, bias in self._layers:
                if weight.grad is None or bias.grad is None:
                    raise ControlError(
                        "A network's gradients were asked for, but have no place to go: make FlatParameters "
                        "of it, and clear gradients by FlatParameters.zero_grad alone."
                    )
                layers.append((weight.grad, bias.grad))
            self._into = self._members(layers)
            self._grad = grad
        return self._into

    def _members(self, layers: Layers) -> list[Layers]:
        if self._count is None:
            return [[(weight.t(), bias) for weight, bias in layers]]
        return [[(weight[e], bias[e, 0]) for weight, bias in layers] for e in range(self._count)]


class ChainNode(torch.autograd.Function):
    """A chain as one node of autograd's graph, for losses taken apart by autograd. Not twice differentiable.

    Called with (x, activation, weight (out, in), bias, weight, bias …).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, activation: Activation, *parameters: Tensor) -> Tensor:
        weights = [weight.t() for weight in parameters[::2]]
        chain = Chain(list(zip(weights, parameters[1::2], strict=True)), activation)
        out = x.new_empty(len(x), chain.width)
        inputs = chain.record(x, out)
        ctx.save_for_backward(*inputs, *parameters)
        ctx.activation = activation
        return out

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        count = len(saved) // 3  # of layers: an input, a weight and a bias each
        inputs, parameters = list(saved[:count]), saved[count:]
        layers = [(w.t(), b) for w, b in zip(parameters[::2], parameters[1::2], strict=True)]
        gradients = [torch.empty_like(p) for p in parameters]
        into = [(w.t(), b) for w, b in zip(gradients[::2], gradients[1::2], strict=True)]
        wanted = ctx.needs_input_grad[0]
        at_input = Chain(layers, ctx.activation).backward(inputs, grad_outputs[0], into, wanted)
        return at_input if wanted else None, None, *gradients
