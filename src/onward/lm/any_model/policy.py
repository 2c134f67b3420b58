"""A language policy on a transformers module: what learners and samplers' callers need, by its own passes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onward.lm.any_model.adapters import Adapters, PeftAdapter, is_linear, linear_names
from onward.lm.any_model.loading import load_module, max_positions, parameters_of_files
from onward.lm.any_model.network import Network, recomputing
from onward.lm.any_model.probe import try_out
from onward.lm.head import At, refuse_other_vocabulary
from onward.lm.loaded_model import LoadedModel
from onward.lm.model_path import ComputePath
from onward.lm.module_saving import save_module
from onward.lm.packing import Wanted
from onward.lm.permitted import Part, Permitted
from onward.lm.precision import place
from onward.lm.tokenizer import save_tokenizer
from onward.lm.tokens import TokenRow

CHUNK = 256
"""Positions whose logits exist at once."""


@dataclass(frozen=True)
class Bounds:
    """Numbers that bound what the network can be given; ``hidden`` is the width of its states."""

    vocab: int
    hidden: int
    layers: int
    max_positions: int


class AnyPolicy(LoadedModel[PeftAdapter]):
    """Module, tokenizer and resident adapters. Not safe for use from several threads at once."""

    path: ComputePath = "transformers"
    bytes_per_token = 0

    def __init__(self, network: Network, folder: Path, device: torch.device, reason: str) -> None:
        self.network, self.folder, self.device, self.reason = network, folder, device, reason
        self.module = network.module
        embeddings: Any = self.module.get_input_embeddings()
        vocab = int(embeddings.weight.shape[0])
        used = _called(network, vocab)
        with torch.no_grad():
            hidden = network.states([[1, 2]]).shape[-1]
        self.shape = Bounds(
            vocab=vocab,
            hidden=hidden,
            layers=int(self.module.config.get_text_config().num_hidden_layers),
            max_positions=max_positions(self.module.config),
        )
        self.trust = try_out(network, vocab)
        self._adapters = Adapters(self.module, linear_names(self.module, used))

    @classmethod
    def load(
        cls, folder: Path, *, device: str = "cpu", dtype: str = "float32", reason: str = "it was asked for"
    ) -> AnyPolicy:
        """Reads a transformers folder in safetensors. Raises ConfigError for other content, and for a model
        that needs code of its own. ``precision.place`` decides what "auto" means."""
        chosen = place(device, dtype, parameters=parameters_of_files(Path(folder)))
        where = torch.device(chosen.device)
        module = load_module(Path(folder), where, getattr(torch, chosen.dtype))
        return cls(Network(module), Path(folder), where, reason)

    @property
    def notes(self) -> Sequence[str]:
        """Sentences about the ways in which this network is not run, for the log."""
        return self.trust.notes

    @property
    def torch_dtype(self) -> torch.dtype:
        return self.module.dtype

    def save(self, folder: Path) -> None:
        """Writes the base weights (after full-parameter training) and the tokenizer to ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        raw = {
            name.replace(".base_layer.", "."): tensor
            for name, tensor in self.module.state_dict().items()
            if ".lora_" not in name
        }
        save_module(self.module, folder, state_dict=raw)
        config = json.loads((self.folder / "config.json").read_text())  # dropout and noise as they were
        (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        save_tokenizer(self.tokenizer, self.folder, folder)

    def tensors(self) -> Iterator[Tensor]:
        """Yields every distinct weight of the network, without those of adapters."""
        return (tensor for name, tensor in self.module.named_parameters() if ".lora_" not in name)

    def drop_copies(self) -> None:
        """Does nothing: no copy of a weight is kept."""

    # --- adapters ------------------------------------------------------------------------------------

    @property
    def adapters(self) -> Mapping[str, PeftAdapter]:
        return self._adapters.resident

    def new_adapter(
        self,
        name: str,
        rank: int = 16,
        alpha: float = 32.0,
        layers: Sequence[int] | None = None,
        seed: int = 0,
        targets: Sequence[str] | None = None,
        rslora: bool = False,
    ) -> PeftAdapter:
        """Creates an adapter that changes nothing yet; None means all ``layers``, all linear ``targets``."""
        self.refuse_loaded(name)
        return self._adapters.create(name, rank, alpha, layers, seed, targets, rslora)

    def add_adapter(self, name: str, folder: Path) -> PeftAdapter:
        """Loads the peft adapter in ``folder`` and makes it resident under ``name``."""
        self.refuse_loaded(name)
        return self._adapters.load(name, Path(folder))

    def save_adapter(self, name: str, folder: Path) -> None:
        self.adapter(name)
        self._adapters.save(name, Path(folder), base=self.folder.name)

    def remove_adapter(self, name: str) -> None:
        self.adapter(name)
        self._adapters.remove(name)

    def activate(self, name: str | None) -> None:
        """Makes ``name`` the adapter of the passes that follow; None: the network without adapter."""
        if name is not None:
            self.adapter(name)
        self._adapters.activate(name)

    # --- log-probs -----------------------------------------------------------------------------------

    def states(
        self, rows: Sequence[TokenRow], adapter: str | None, *, recompute: bool = False
    ) -> tuple[Wanted, Tensor]:
        """Returns the wanted log-probs of ``rows`` and the last hidden states (wanted, hidden) before them.

        Raises ConfigError if the module cannot ``recompute`` its blocks.
        """
        self.activate(adapter)
        wanted = Wanted(rows, self.device)
        inputs = [row.ids[:-1] for row in rows]  # no token is predicted after the last one
        with recomputing(self.module, recompute and torch.is_grad_enabled()):
            parts = parts_of([len(row) for row in inputs], self.trust.batches, self.trust.padding)
            found = [self._chosen(inputs, part, wanted.places) for part in parts]
        order = torch.tensor([k for places, _ in found for k in places], device=self.device)
        return wanted, torch.cat([states for _, states in found])[order.argsort()]

    def _chosen(
        self, inputs: Sequence[Sequence[int]], part: Sequence[int], places: Sequence[tuple[int, int]]
    ) -> tuple[list[int], Tensor]:
        """Computes the rows ``part`` in one pass; returns which of ``places`` are theirs, and the states that
        predict the tokens there."""
        line_of = {row: line for line, row in enumerate(part)}
        mine = [k for k, (row, _) in enumerate(places) if row in line_of]
        lines = [line_of[places[k][0]] for k in mine]
        states = self.network.states([inputs[row] for row in part])
        return mine, states[lines, [places[k][1] - 1 for k in mine]]

    @torch.no_grad()
    def token_logprobs(
        self, states: Tensor, targets: Tensor, temperature: Tensor, *, permitted: Permitted | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns ``(logp, entropy)`` in nats, both (positions,) float32, without a graph."""
        logp, entropy = temperature.new_empty(2, len(states)).unbind(0)
        for part in self._parts(targets, permitted):
            logp[part.at], entropy[part.at] = self._logprobs(states[part.at], part, temperature[part.at])
        return logp, entropy

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
        """Backpropagates as ``head.backward_logprobs`` does, through the module's own head."""
        leaf = states.detach().requires_grad_()
        every_logp, every_entropy = temperature.new_empty(2, len(states)).unbind(0)
        for part in self._parts(targets, permitted):
            with torch.enable_grad():
                logp, entropy = self._logprobs(leaf[part.at], part, temperature[part.at])
                loss = (slope(logp.detach(), part.at) * logp).sum()
                if entropy_slope is not None:
                    loss = loss + (entropy_slope[part.at] * entropy).sum()
            loss.backward()
            every_logp[part.at], every_entropy[part.at] = logp.detach(), entropy.detach()
        assert leaf.grad is not None
        states.backward(leaf.grad if also is None else leaf.grad + also.to(leaf.grad.dtype))
        return every_logp, every_entropy

    def _parts(self, targets: Tensor, permitted: Permitted | None) -> Iterator[Part]:
        if permitted is None:
            return (Part(at, targets[at]) for at in _chunks(len(targets)))
        refuse_other_vocabulary(permitted, self.shape.vocab)
        return permitted.masked_parts(CHUNK)

    def _logprobs(self, states: Tensor, part: Part, temperature: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.network.head(states).float() / temperature[:, None]
        if part.outside is not None:
            logits = logits.masked_fill(part.outside, float("-inf"))
        every = logits.log_softmax(-1)
        logp = every.gather(1, part.targets[:, None]).squeeze(1)
        if part.outside is not None:
            every = every.masked_fill(part.outside, 0.0)  # exp(0) · 0 adds nothing to the entropy
        return logp, -(every.exp() * every).sum(-1)


def parts_of(lengths: Sequence[int], batches: bool, padding: bool) -> list[list[int]]:
    """Groups rows of these ``lengths`` into batches: all of them, those of one length, or each alone."""
    if batches and padding:
        return [list(range(len(lengths)))] if lengths else []
    if not batches:
        return [[i] for i in range(len(lengths))]
    groups: dict[int, list[int]] = {}
    for i, length in enumerate(lengths):
        groups.setdefault(length, []).append(i)
    return list(groups.values())


def _chunks(count: int) -> Iterator[slice]:
    return (slice(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK))


@torch.no_grad()
def _called(network: Network, vocab: int) -> list[str]:
    """Returns the names of the linear layers that a forward pass calls."""
    names: list[str] = []
    hooks = [
        module.register_forward_hook(lambda *_, name=name: names.append(name))
        for name, module in network.module.named_modules()
        if is_linear(module)
    ]
    try:
        network.logits([[i % vocab for i in range(8)]])
    finally:
        for hook in hooks:
            hook.remove()
    return names
