"""The one forward loop for Llama-shaped networks; sampler and learner differ only in ``attend``.

Invariants: rows of the q and k projections are stored with the two halves of each head interleaved, so that
rotary embedding is one complex multiplication. (The dot product q·k does not change under a common
permutation.) ``Shape.rope_order`` is that permutation. Code that reads or writes transformers weights or LoRA
``B`` matrices of q and k must apply it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from onward.errors import ConfigError
from onward.lm.kernels import linear, linear_add, pack, rms_norm, swiglu
from onward.lm.sizes import Sizes
from onward.lm.watch import Watch

# attend(layer, qkv) -> (tokens, heads * head_dim); qkv is (tokens, heads + 2 kv_heads, head_dim), rotated.
Attend = Callable[[int, Tensor], Tensor]


@dataclass(frozen=True)
class Shape(Sizes):
    """Sizes of a network, and the other constants of its forward loop."""

    norm_eps: float
    rope_theta: float
    max_positions: int

    @classmethod
    def read(cls, folder: Path) -> Shape:
        """Reads ``config.json``. Raises ConfigError for a network that the loop would compute wrongly."""
        path = folder / "config.json"
        if not path.is_file():
            raise ConfigError(f"{folder} has no config.json: give a folder in transformers format.")
        c: dict[str, Any] = json.loads(path.read_text())
        rope = c.get("rope_parameters") or {}
        scaling = c.get("rope_scaling") or {}
        kind = rope.get("rope_type", scaling.get("rope_type", scaling.get("type", "default")))
        wrong = [
            f"{name} is {got!r}, not {want!r}"
            for name, got, want in (
                ("model_type", c.get("model_type"), "llama"),
                ("hidden_act", c.get("hidden_act", "silu"), "silu"),
                ("attention_bias", bool(c.get("attention_bias")), False),
                ("mlp_bias", bool(c.get("mlp_bias")), False),
                ("rope_type", kind, "default"),
            )
            if got != want
        ]
        if wrong:
            raise ConfigError(
                f"The model in {folder} is not a plain Llama network ({'; '.join(wrong)}): use one that is."
            )
        return cls.from_config(
            c,
            norm_eps=float(c.get("rms_norm_eps", 1e-6)),
            rope_theta=float(rope.get("rope_theta", c.get("rope_theta", 10000.0))),
            max_positions=int(c.get("max_position_embeddings", 2048)),
        )

    @property
    def rotated(self) -> int:
        """Number of heads (q and k) to which rotary embedding applies."""
        return self.heads + self.kv_heads

    @property
    def group(self) -> int:
        """Query heads per key-value head."""
        return self.heads // self.kv_heads

    def rope_order(self, heads: int) -> Tensor:
        """Returns the index that turns transformers' row order of a q or k projection into ours."""
        half = self.head_dim // 2
        one = torch.stack([torch.arange(half), torch.arange(half) + half], dim=1).flatten()
        return (torch.arange(heads)[:, None] * self.head_dim + one).flatten()


@dataclass
class Layer:
    """Weights of one block, as (output, input) matrices; qkv and gate_up are stacked."""

    attention_norm: Tensor
    qkv: Tensor
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass
class PackedLayer:
    """The matrices of one block in the layout of ``kernels.pack``; None where packing gains nothing."""

    qkv: Tensor | None = None
    out: Tensor | None = None
    gate_up: Tensor | None = None
    down: Tensor | None = None


_NOTHING = PackedLayer()


@dataclass
class LoraLayer:
    """Fused low-rank updates of one block, ``(A, B)`` each, with the scale inside ``B``.

    ``A`` is (ranks, input), with the projections that share an input stacked. ``B`` is (output, ranks),
    block-diagonal. None where the adapter does not change a projection.
    """

    qkv: tuple[Tensor, Tensor] | None = None
    out: tuple[Tensor, Tensor] | None = None
    gate_up: tuple[Tensor, Tensor] | None = None
    down: tuple[Tensor, Tensor] | None = None


# Token positions [start, stop) use these fused updates (index = layer; None = base weights).
Segment = tuple[int, int, Sequence[LoraLayer | None]]


@dataclass
class Weights:
    embedding: Tensor  # (vocab, hidden)
    layers: list[Layer]
    norm: Tensor
    head: Tensor  # (vocab, hidden); the same tensor as ``embedding`` when tied
    packed: list[PackedLayer] | None = None  # copies for passes without a graph
    packed_head: Tensor | None = None
    _watch: Watch = field(default_factory=Watch, repr=False, compare=False)

    def pack(self) -> None:
        """Makes copies that are faster for sampling; they cost as much memory as the weights."""
        self.drop_stale()
        if self.packed is None:
            self.packed = [
                PackedLayer(pack(w.qkv), pack(w.out), pack(w.gate_up), pack(w.down)) for w in self.layers
            ]
            self.packed_head = pack(self.head)

    def unpack(self) -> None:
        """Drops the copies, which frees their memory."""
        self.packed, self.packed_head = None, None

    def drop_stale(self) -> None:
        """Drops the copies if the weights changed since they were made."""
        if self._watch.changed(self.tensors()):
            self.unpack()

    def tensors(self) -> Iterator[Tensor]:
        """Yields every distinct tensor, for training all parameters."""
        yield self.embedding
        for layer in self.layers:
            yield from (getattr(layer, f.name) for f in fields(layer))
        yield self.norm
        if self.head is not self.embedding:
            yield self.head


class _Rotate(torch.autograd.Function):
    """Rotary embedding in place on the first ``count`` heads; the gradient is rotated back."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, angles: Tensor, count: int) -> Tensor:
        ctx.mark_dirty(qkv)
        ctx.save_for_backward(angles)
        ctx.count = count
        _rotate_(qkv, angles, count)
        return qkv

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        # In place: the rotated tensor has one reader (``attend``), so this gradient has no other reader.
        grad = grad.contiguous()
        _rotate_(grad, ctx.saved_tensors[0].conj(), ctx.count)
        return grad, None, None


def _rotate_(qkv: Tensor, angles: Tensor, count: int) -> None:
    heads = qkv[:, :count]
    if qkv.dtype == torch.float32:
        torch.view_as_complex(heads.unflatten(-1, (-1, 2))).mul_(angles)
    else:  # torch has no complex number of two bfloat16: rotate a float32 copy
        rotated = torch.view_as_complex(heads.float().unflatten(-1, (-1, 2))) * angles
        heads.copy_(torch.view_as_real(rotated).flatten(-2))


def rope_table(shape: Shape, length: int, device: torch.device) -> Tensor:
    """(length, 1, head_dim / 2) unit complex numbers e^{i·position·theta^(-2j/d)} (RoFormer, eq. 34)."""
    exponent = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    frequency = 1.0 / (shape.rope_theta**exponent)
    angle = torch.arange(length, dtype=torch.float32)[:, None] * frequency
    return torch.polar(torch.ones_like(angle), angle)[:, None, :].to(device)


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm in float32, whatever the dtype of ``x``: half precision loses the mean square."""
    if x.dtype == torch.float32:
        return rms_norm(x, weight, eps)
    return rms_norm(x.float(), weight.float(), eps).to(x.dtype)


def _add_lora(y: Tensor, x: Tensor, segments: Sequence[Segment], layer: int, name: str) -> Tensor:
    for start, stop, lora in segments:
        fused = lora[layer]
        pair = None if fused is None else getattr(fused, name)
        if pair is None:
            continue
        a, b = pair
        if start == 0 and stop == len(x):
            y = torch.addmm(y, F.linear(x, a), b.t())
        else:
            y[start:stop].addmm_(F.linear(x[start:stop], a), b.t())
    return y


def run_layers(
    shape: Shape,
    weights: Weights,
    x: Tensor,
    angles: Tensor,
    attend: Attend,
    segments: Sequence[Segment] = (),
    first: int = 0,
    last: int | None = None,
    keep: Tensor | None = None,
    recompute: bool = False,
) -> Tensor:
    """Runs blocks ``first`` to ``last`` over ``x`` (tokens, hidden); ``angles`` has one row per token.

    With ``keep``, only those tokens leave the last block (then at most one segment is allowed). With
    ``recompute`` (gradient checkpointing, 1604.06174) a graph stores only each block's input, and the block
    is computed again in the backward pass: less memory, a third more time, the same numbers.
    """
    last = shape.layers if last is None else last
    if weights.packed is not None:
        weights.drop_stale()
    for i in range(first, last):
        kept = keep if i == last - 1 else None
        if recompute and torch.is_grad_enabled():
            x = checkpoint(_block, shape, weights, x, angles, attend, segments, i, kept, use_reentrant=False)  # type: ignore[assignment]
        else:
            x = _block(shape, weights, x, angles, attend, segments, i, kept)
    return x


def _block(
    shape: Shape,
    weights: Weights,
    x: Tensor,
    angles: Tensor,
    attend: Attend,
    segments: Sequence[Segment],
    i: int,
    keep: Tensor | None,
) -> Tensor:
    graph = torch.is_grad_enabled()
    eps, layer = shape.norm_eps, weights.layers[i]
    packed = _NOTHING if graph or weights.packed is None else weights.packed[i]
    h = _norm(x, layer.attention_norm, eps)
    qkv = _add_lora(linear(h, layer.qkv, packed.qkv), h, segments, i, "qkv")
    qkv = qkv.view(-1, shape.heads + 2 * shape.kv_heads, shape.head_dim)
    if graph:
        qkv = _Rotate.apply(qkv, angles, shape.rotated)
    else:
        _rotate_(qkv, angles, shape.rotated)
    h = attend(i, qkv)  # type: ignore[arg-type]
    if keep is not None:
        x, h = x[keep], h[keep]
        segments = [(0, len(x), lora) for _, _, lora in segments]
    x = _add_lora(linear_add(x, h, layer.out, packed.out), h, segments, i, "out")
    h = _norm(x, layer.mlp_norm, eps)
    h = swiglu(_add_lora(linear(h, layer.gate_up, packed.gate_up), h, segments, i, "gate_up"))
    return _add_lora(linear_add(x, h, layer.down, packed.down), h, segments, i, "down")


def final_norm(shape: Shape, weights: Weights, x: Tensor) -> Tensor:
    return _norm(x, weights.norm, shape.norm_eps)
