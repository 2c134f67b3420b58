"""A language policy: base weights, which an adapter's training never changes, and named adapters.

``weights`` is in our own layout (stacked and, for q and k, permuted, see ``network``). Everything written to
disk is in transformers' and peft's layout, so that any other engine can load it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from onward.errors import ConfigError
from onward.lm.adapters import Adapter
from onward.lm.families.rotary import BOUNDED, rope_table
from onward.lm.head import At, backward_logprobs, token_logprobs
from onward.lm.layout import load_weights, to_transformers
from onward.lm.loaded_model import LoadedModel
from onward.lm.model_path import ComputePath
from onward.lm.network import Segment, Shape, Weights, final_norm, run_layers
from onward.lm.packing import Packed
from onward.lm.permitted import Permitted
from onward.lm.precision import place
from onward.lm.sharing import common_prefix
from onward.lm.tokenizer import save_tokenizer
from onward.lm.tokens import TokenRow

GENERATION = "generation_config.json"
"""File with the ids that end an answer, besides the tokenizer's."""


class Policy(LoadedModel[Adapter]):
    """Weights, tokenizer and resident adapters. Not safe for use from several threads at once."""

    path: ComputePath = "fast"
    reason = "Onward's own forward pass knows this network"
    notes: Sequence[str] = ()

    def __init__(self, shape: Shape, weights: Weights, folder: Path, device: torch.device) -> None:
        self.shape = shape
        self.weights = weights
        self.folder = folder
        self.device = device
        self._adapters: dict[str, Adapter] = {}
        self._angles: list[Tensor] = []
        self._tabulate(min(shape.max_positions, 1024))

    @classmethod
    def load(cls, folder: Path, *, device: str = "cpu", dtype: str = "float32") -> Policy:
        """Reads a transformers folder with a dense decoder of a known family in safetensors. Raises
        ConfigError for other content, or a device that is not here. ``precision.place`` decides what "auto"
        means."""
        folder = Path(folder)
        shape = Shape.read(folder)
        chosen = place(device, dtype, parameters=shape.parameters)
        where = torch.device(chosen.device)
        with torch.inference_mode(False):  # in-place writes must be counted in any mode
            weights = load_weights(shape, folder, where, getattr(torch, chosen.dtype))
        return cls(shape, weights, folder, where)

    @property
    def torch_dtype(self) -> torch.dtype:
        return self.weights.norm.dtype

    @property
    def adapters(self) -> Mapping[str, Adapter]:
        return self._adapters

    @property
    def bytes_per_token(self) -> int:
        """Bytes of the keys and values of one token."""
        shape = self.shape
        return 2 * shape.layers * shape.kv_heads * shape.head_dim * self.torch_dtype.itemsize

    def save(self, folder: Path) -> None:
        """Writes the base weights (after full-parameter training) and the tokenizer to ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        raw = {k: v.detach().cpu().contiguous() for k, v in to_transformers(self.shape, self.weights).items()}
        save_file(raw, folder / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((self.folder / "config.json").read_text())
        config.pop("torch_dtype", None)  # its name before transformers 5
        config["dtype"] = str(self.weights.norm.dtype).removeprefix("torch.")
        (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        if (self.folder / GENERATION).is_file() and not (folder / GENERATION).exists():
            shutil.copyfile(self.folder / GENERATION, folder / GENERATION)
        save_tokenizer(self.tokenizer, self.folder, folder)

    def new_adapter(
        self,
        name: str,
        rank: int = 16,
        alpha: float = 32.0,
        layers: Sequence[int] | None = None,
        seed: int = 0,
        targets: Sequence[str] | None = None,
        rslora: bool = False,
    ) -> Adapter:
        """Creates an adapter that changes nothing yet; None means all ``layers``, and as ``targets`` all
        projections of a block."""
        self.refuse_loaded(name)
        chosen = range(self.shape.layers) if layers is None else layers
        self._adapters[name] = Adapter(
            self.shape, rank, alpha, chosen, self.device, seed, targets, self.weights.norm.dtype, rslora
        )
        return self._adapters[name]

    def add_adapter(self, name: str, folder: Path) -> Adapter:
        """Loads the peft adapter in ``folder`` and makes it resident under ``name``."""
        self.refuse_loaded(name)
        self._adapters[name] = Adapter.read(self.shape, Path(folder), self.device, self.weights.norm.dtype)
        return self._adapters[name]

    def save_adapter(self, name: str, folder: Path) -> None:
        self.adapter(name).save(Path(folder), base=self.folder.name)

    def remove_adapter(self, name: str) -> None:
        self.adapter(name)
        del self._adapters[name]

    def tensors(self) -> Iterator[Tensor]:
        """Yields every distinct weight, for training all of them."""
        return self.weights.tensors()

    def drop_copies(self) -> None:
        """Drops the packed copies of weights that have changed since."""
        self.weights.unpack()

    def angles(self, positions: Tensor) -> list[Tensor]:
        """Returns, for each of ``shape.ropes``, rotary factors (tokens, 1, rotated / 2) for ``positions``.

        Raises ConfigError beyond the longest sequence if the factors of all tokens would change there.
        """
        need = int(positions.max()) + 1 if len(positions) else 0
        if need > len(self._angles[0]):
            if need > self.shape.max_positions and any(r.kind in BOUNDED for r in self.shape.ropes):
                raise ConfigError(
                    f"A row of {need} tokens is longer than the {self.shape.max_positions} for which this "
                    f"network's rotary embedding is fixed: give shorter ones."
                )
            self._tabulate(max(need, 2 * len(self._angles[0])))
        return [table[positions] for table in self._angles]

    def _tabulate(self, length: int) -> None:
        if any(rope.kind in BOUNDED for rope in self.shape.ropes):
            length = min(length, self.shape.max_positions)
        self._angles = [rope_table(rope, length, self.device) for rope in self.shape.ropes]

    def segments(self, adapter: str | None, count: int) -> list[Segment]:
        """Returns segments that put all ``count`` tokens under one adapter."""
        return [] if adapter is None else [(0, count, self.adapter(adapter).fused())]

    def embed(self, ids: Tensor) -> Tensor:
        """Returns the input of the first block, (tokens, hidden)."""
        x, scale = self.weights.embedding[ids], self.shape.embedding_scale
        return x if scale is None else x * torch.tensor(scale, dtype=x.dtype, device=x.device)

    def trunk(self, packed: Packed, last: int) -> Tensor:
        """Returns base hidden states (tokens, hidden) before block ``last``, where an adapter starts."""
        angles, attend = self.angles(packed.positions), packed.attend(self.shape)
        return run_layers(self.shape, self.weights, self.embed(packed.ids), angles, attend, last=last)

    def hidden(
        self,
        packed: Packed,
        adapter: str | None,
        x: Tensor | None = None,
        first: int = 0,
        *,
        recompute: bool = False,
    ) -> Tensor:
        """Returns normalised last hidden states (len(packed.at), hidden) at the positions of wanted
        log-probs.

        ``x`` are the states before block ``first`` if they are already computed; ``recompute`` as in
        ``run_layers``.
        """
        x = run_layers(
            self.shape,
            self.weights,
            self.embed(packed.ids) if x is None else x,
            self.angles(packed.positions),
            packed.attend(self.shape),
            self.segments(adapter, packed.total),
            first=first,
            keep=packed.at,
            recompute=recompute,
        )
        return final_norm(self.shape, self.weights, x)

    def states(
        self, rows: Sequence[TokenRow], adapter: str | None, *, recompute: bool = False
    ) -> tuple[Packed, Tensor]:
        """Returns ``rows`` packed with their common beginning, and ``hidden`` of them."""
        packed = Packed(rows, common_prefix(rows), self.device)
        return packed, self.hidden(packed, adapter, recompute=recompute)

    def token_logprobs(
        self, states: Tensor, targets: Tensor, temperature: Tensor, *, permitted: Permitted | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns ``(logp, entropy)`` as ``head.token_logprobs`` does, with this network's head."""
        head, cap = self.weights.head, self.shape.logit_cap
        return token_logprobs(states, head, targets, temperature, cap=cap, permitted=permitted)

    def backward_logprobs(
        self,
        states: Tensor,
        targets: Tensor,
        temperature: Tensor,
        slope: Callable[[Tensor, At], Tensor],
        *,
        entropy_slope: Tensor | None = None,
        also: Tensor | None = None,
        permitted: Permitted | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Backpropagates as ``head.backward_logprobs`` does, through this network's head."""
        return backward_logprobs(
            states,
            self.weights.head,
            targets,
            temperature,
            slope,
            entropy_slope=entropy_slope,
            also=also,
            cap=self.shape.logit_cap,
            permitted=permitted,
        )
