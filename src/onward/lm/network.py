"""The one forward loop for dense decoders; sampler and learner differ only in ``attend``.

What differs between families of networks is data (``families.table``): the loop asks for norms, biases and
rotary embedding that may be absent, never for the name of a family.

Invariants: rows of the q and k projections are stored with the two halves of each head interleaved, so that
rotary embedding is one complex multiplication. (The dot product q·k does not change under a common
permutation.) ``Shape.row_order`` is that permutation. Code that reads or writes transformers weights, biases,
norms or LoRA ``B`` matrices of q and k must apply it.
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
from onward.lm.families import traits
from onward.lm.kernels import GATES, linear, linear_add, pack, rms_norm
from onward.lm.sizes import Sizes
from onward.lm.watch import Watch

# attend(layer, qkv) -> (tokens, heads * head_dim); qkv is (tokens, heads + 2 kv_heads, head_dim), rotated.
Attend = Callable[[int, Tensor], Tensor]


@dataclass(frozen=True)
class Shape(Sizes, traits.Traits):
    """Sizes of a network, and the other constants of its forward loop."""

    @classmethod
    def read(cls, folder: Path) -> Shape:
        """Reads ``config.json``. Raises UnsupportedNetworkError (a ConfigError) for a network that the loop
        would compute wrongly."""
        path = folder / "config.json"
        if not path.is_file():
            raise ConfigError(f"{folder} has no config.json: give a folder in transformers format.")
        try:
            config: dict[str, Any] = json.loads(path.read_bytes())
        except ValueError:
            raise ConfigError(f"{path} is not JSON: download it again.") from None
        reason = traits.supports(config)
        if reason is not None:
            raise traits.UnsupportedNetworkError(
                f"The model in {folder} is none that Onward's own network computes ({reason}): use one of a "
                f"supported family."
            )
        return cls.from_config(config, **vars(traits.read(config)))

    @property
    def rotated(self) -> int:
        """Number of heads (q and k) to which rotary embedding applies."""
        return self.heads + self.kv_heads

    @property
    def group(self) -> int:
        """Query heads per key-value head."""
        return self.heads // self.kv_heads

    def row_order(self, name: str) -> Tensor | None:
        """Returns the index that turns transformers' row order of a projection, or of the norm ``q_norm`` or
        ``k_norm``, into ours; None where they are the same."""
        q, k = self._rope_order(self.heads), self._rope_order(self.kv_heads)
        if name == "qkv_proj":
            v = torch.arange(self.kv_heads * self.head_dim)
            return torch.cat([q, len(q) + k, len(q) + len(k) + v])
        if name in ("q_norm", "k_norm") and self.family.qk_norm == "head":
            return self._rope_order(1)
        return {"q_proj": q, "k_proj": k, "q_norm": q, "k_norm": k}.get(name)

    def _rope_order(self, heads: int) -> Tensor:
        half = self.ropes[0].dim // 2
        one = torch.stack([torch.arange(half), torch.arange(half) + half], dim=1).flatten()
        one = torch.cat([one, torch.arange(2 * half, self.head_dim)])
        return (torch.arange(heads)[:, None] * self.head_dim + one).flatten()


@dataclass
class Layer:
    """Weights of one block, as (output, input) matrices; qkv and gate_up are stacked. None: not present."""

    attention_norm: Tensor | None
    qkv: Tensor
    out: Tensor
    mlp_norm: Tensor | None
    gate_up: Tensor
    down: Tensor
    qkv_bias: Tensor | None = None
    out_bias: Tensor | None = None
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    q_norm: Tensor | None = None
    """(head_dim,), the same for all heads, or (heads · head_dim,), over the whole width; so is ``k_norm``."""
    k_norm: Tensor | None = None
    attention_out_norm: Tensor | None = None
    mlp_out_norm: Tensor | None = None

    def tensors(self) -> Iterator[Tensor]:
        for one in fields(self):
            tensor = getattr(self, one.name)
            if tensor is not None:
                yield tensor


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
            yield from layer.tensors()
        yield self.norm
        if self.head is not self.embedding:
            yield self.head


class _Rotate(torch.autograd.Function):
    """Rotary embedding in place on the first ``count`` heads; the gradient is rotated back. ``angles`` cover
    the first part of a head, or all of it."""

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
    heads = qkv[:, :count, : 2 * angles.shape[-1]]
    if qkv.dtype == torch.float32:
        torch.view_as_complex(heads.unflatten(-1, (-1, 2))).mul_(angles)
    else:  # torch has no complex number of two bfloat16: rotate a float32 copy
        rotated = torch.view_as_complex(heads.float().unflatten(-1, (-1, 2))) * angles
        heads.copy_(torch.view_as_real(rotated).flatten(-2))


def _norm(shape: Shape, x: Tensor, weight: Tensor) -> Tensor:
    """RMS norm in float32, whatever the dtype of ``x``: half precision loses the mean square."""
    if x.dtype == torch.float32:
        return rms_norm(x, 1 + weight if shape.family.centred_norms else weight, shape.norm_eps)
    weight = 1 + weight.float() if shape.family.centred_norms else weight.float()
    return rms_norm(x.float(), weight, shape.norm_eps).to(x.dtype)


def _norm_heads(shape: Shape, qkv: Tensor, q_norm: Tensor, k_norm: Tensor) -> Tensor:
    """Normalises q and k, each head by itself or all heads of a token together."""
    h, kv, d = shape.heads, shape.kv_heads, shape.head_dim
    if shape.family.qk_norm == "head":
        weight = torch.cat([q_norm.expand(h, d), k_norm.expand(kv, d)])
        parts = [_norm(shape, qkv[:, : h + kv], weight)]
    else:
        q, k = qkv[:, :h].flatten(1), qkv[:, h : h + kv].flatten(1)
        parts = [_norm(shape, q, q_norm).unflatten(1, (h, d)), _norm(shape, k, k_norm).unflatten(1, (kv, d))]
    return torch.cat([*parts, qkv[:, h + kv :]], dim=1)


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
    angles: Sequence[Tensor],
    attend: Attend,
    segments: Sequence[Segment] = (),
    first: int = 0,
    last: int | None = None,
    keep: Tensor | None = None,
    recompute: bool = False,
) -> Tensor:
    """Runs blocks ``first`` to ``last`` over ``x`` (tokens, hidden). ``angles`` has, for each of
    ``shape.ropes``, one row per token.

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
    angles: Sequence[Tensor],
    attend: Attend,
    segments: Sequence[Segment],
    i: int,
    keep: Tensor | None,
) -> Tensor:
    layer, rope = weights.layers[i], shape.rope_of[i]
    graph = torch.is_grad_enabled()
    packed = _NOTHING if graph or weights.packed is None else weights.packed[i]
    h = x if layer.attention_norm is None else _norm(shape, x, layer.attention_norm)
    qkv = _add_lora(linear(h, layer.qkv, packed.qkv, layer.qkv_bias), h, segments, i, "qkv")
    qkv = qkv.view(-1, shape.heads + 2 * shape.kv_heads, shape.head_dim)
    if layer.q_norm is not None and layer.k_norm is not None:
        qkv = _norm_heads(shape, qkv, layer.q_norm, layer.k_norm)
    if rope is not None and graph:
        qkv = _Rotate.apply(qkv, angles[rope], shape.rotated)
    elif rope is not None:
        _rotate_(qkv, angles[rope], shape.rotated)
    h = attend(i, qkv)  # type: ignore[arg-type]
    if keep is not None:
        x, h = x[keep], h[keep]
        segments = [(0, len(x), lora) for _, _, lora in segments]
    x = _add(
        shape, x, h, (layer.out, packed.out, layer.out_bias), layer.attention_out_norm, segments, i, "out"
    )
    h = x if layer.mlp_norm is None else _norm(shape, x, layer.mlp_norm)
    gate_up = linear(h, layer.gate_up, packed.gate_up, layer.gate_up_bias)
    h = GATES[shape.gate](_add_lora(gate_up, h, segments, i, "gate_up"))
    return _add(
        shape, x, h, (layer.down, packed.down, layer.down_bias), layer.mlp_out_norm, segments, i, "down"
    )


def _add(
    shape: Shape,
    x: Tensor,
    h: Tensor,
    matrix: tuple[Tensor, Tensor | None, Tensor | None],
    norm: Tensor | None,
    segments: Sequence[Segment],
    i: int,
    name: str,
) -> Tensor:
    """Returns x + norm(h·weightᵀ + bias), where ``matrix`` is (weight, its packed copy, bias)."""
    weight, packed, bias = matrix
    if norm is None and bias is None:
        return _add_lora(linear_add(x, h, weight, packed), h, segments, i, name)
    y = _add_lora(linear(h, weight, packed, bias), h, segments, i, name)
    return x + (y if norm is None else _norm(shape, y, norm))


def final_norm(shape: Shape, weights: Weights, x: Tensor) -> Tensor:
    return _norm(shape, x, weights.norm)
