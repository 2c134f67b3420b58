"""The image encoder of ``nets.Encoder`` in numpy, for policies that act without torch.

Weights alone do not contain strides, so the rule of ``nets`` is repeated here. A first kernel of 8 pixels
means the network of Mnih et al. 2015 (strides 4, 2, 1, no padding). Otherwise there are 3×3 layers with
padding 1, the second with stride 2 from 8 pixels on. A test checks that the two agree.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from onward.control.core.spaces import Layout, Obs
from onward.errors import ControlError

State = dict[str, NDArray[Any]]
Pair = tuple[NDArray[Any], NDArray[Any]]


class Convolution(NamedTuple):
    """A convolution followed by ReLU."""

    weight: NDArray[Any]
    """(out, in, height, width)"""
    bias: NDArray[Any]
    stride: int
    padding: int


def image_layers(layout: Layout, state: State) -> list[tuple[list[Convolution], Pair]]:
    """Returns per image of ``layout`` the convolutions and the (weight, bias) of the linear layer after them.

    Raises ControlError where ``state`` is not that of ``nets.Encoder(layout)``.
    """
    return [_layers_of(state, f"cnns.{i}.", shape) for i, (_, shape) in enumerate(layout.images)]


def encode_images(layout: Layout, state: State, obs: Obs) -> list[NDArray[np.float32]]:
    """Returns (N, features) of each image of ``obs``."""
    assert isinstance(obs, dict)
    return [
        _encode(obs[key], *layers)
        for (key, _), layers in zip(layout.images, image_layers(layout, state), strict=True)
    ]


def _layers_of(state: State, prefix: str, shape: tuple[int, int, int]) -> tuple[list[Convolution], Pair]:
    numbers = sorted({int(key[len(prefix) :].split(".")[0]) for key in state if key.startswith(prefix)})
    pairs = [(state[f"{prefix}{n}.weight"], state[f"{prefix}{n}.bias"]) for n in numbers]
    if len(pairs) < 2 or any(w.ndim != 4 for w, _ in pairs[:-1]) or pairs[-1][0].ndim != 2:
        raise ControlError(f"The image encoder lacks layers {prefix}…: export the policy again.")
    if pairs[0][0].shape[2] == 8:
        strides, padding = (4, 2, 1), 0
    else:
        strides, padding = (1, 2 if min(shape[:2]) >= 8 else 1), 1
    convolutions = [Convolution(w, b, s, padding) for (w, b), s in zip(pairs[:-1], strides, strict=True)]
    return convolutions, pairs[-1]


def _encode(pixels: NDArray[Any], convolutions: list[Convolution], linear: Pair) -> NDArray[np.float32]:
    x = pixels.transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255)
    for convolution in convolutions:
        x = np.maximum(_convolved(x, convolution), 0)
    weight, bias = linear
    return np.maximum(x.reshape(len(x), -1) @ weight.T + bias, 0)


def _convolved(x: NDArray[np.float32], layer: Convolution) -> NDArray[np.float32]:
    """Convolves (N, in, H, W) to (N, out, H′, W′) by one matrix product over all windows."""
    out, _, height, width = layer.weight.shape
    p = layer.padding
    x = np.pad(x, ((0, 0), (0, 0), (p, p), (p, p)))
    windows = sliding_window_view(x, (height, width), axis=(2, 3))[:, :, :: layer.stride, :: layer.stride]
    n, _, rows, columns = windows.shape[:4]
    flat = windows.transpose(0, 2, 3, 1, 4, 5).reshape(n * rows * columns, -1)
    product = flat @ layer.weight.reshape(out, -1).T + layer.bias
    return product.reshape(n, rows, columns, out).transpose(0, 3, 1, 2)
