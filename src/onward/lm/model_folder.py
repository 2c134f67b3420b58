"""The one check of a base model's folder, for every part that is given one. It needs no torch.

It reads configuration, headers of the weights, tokenizer and template, and no weights. So a folder that
cannot work is refused in one sentence, before anything slow starts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onward.errors import ConfigError
from onward.lm.any_model.stored_sizes import EMBEDDING, LAYER, StoredSizes
from onward.lm.chat_files import ChatFiles, json_object, read_chat_files
from onward.lm.families.table import FAMILIES, completed
from onward.lm.model_path import AskedPath, ModelPath, expected_tensors, path_of
from onward.lm.sizes import NetworkSizes, Sizes
from onward.lm.weight_files import Stored, stored_tensors

_OTHER_INPUTS = {
    "vision_config": "images", "image_token_id": "images", "image_token_index": "images",
    "audio_config": "sound", "video_token_id": "videos",
}  # fmt: skip
"""Entries of a configuration that a model with more than text has."""
_CAUSAL = re.compile(r"ForCausalLM|LMHead")


@dataclass(frozen=True)
class ModelFolder:
    """A folder with a base model that can be served and trained, as far as its files say."""

    folder: Path
    config: Mapping[str, Any]
    path: ModelPath
    tensors: Mapping[str, Stored]
    chat: ChatFiles

    @property
    def family(self) -> str:
        """``model_type`` of the configuration: llama, qwen2 …"""
        return str(self.config.get("model_type"))

    @property
    def parameters(self) -> int:
        """Number of weights. A head that is tied to the embedding counts once, also where both are stored."""
        again = (
            self.tensors.get("lm_head.weight") if completed(self.config)[1]["tie_word_embeddings"] else None
        )
        return sum(one.count for one in self.tensors.values()) - (again.count if again else 0)

    def sizes(self, path: AskedPath = "auto") -> NetworkSizes:
        """Returns the sizes of the network for estimates, on the path that it runs by."""
        if path_of(self.config, path).name == "fast":
            return Sizes.from_config(self.config)
        return StoredSizes.of(self.config, self.tensors, self.parameters)

    @property
    def dtype(self) -> str:
        """Format of most of the weights on disk: F32, BF16 …"""
        sizes: Counter[str] = Counter()
        for one in self.tensors.values():
            sizes[one.dtype] += one.size
        return sizes.most_common(1)[0][0]

    @property
    def disk_bytes(self) -> int:
        """Bytes of the weights on disk."""
        return sum(one.size for one in self.tensors.values())


def inspect(folder: Path) -> ModelFolder:
    """Checks the folder and returns what it holds. Raises ConfigError with the first reason why the model
    cannot be used, and what to do."""
    if not folder.is_dir():
        raise ConfigError(f"There is no folder {folder}: give the folder of a model.")
    config = json_object(folder / "config.json")
    _refuse_other_types(folder, config)
    _refuse_quantised(folder, config)
    _refuse_other_kinds(folder, config)
    _refuse_unknown_sizes(folder, config)
    path = path_of(config)
    tensors = stored_tensors(folder)
    _refuse_other_tensors(folder, config, tensors)
    return ModelFolder(folder, config, path, tensors, read_chat_files(folder))


def _refuse_other_types(folder: Path, config: Mapping[str, Any]) -> None:
    for name, kind, expected in (("model_type", str, "a name"), ("architectures", list, "a list of names")):
        given = config.get(name)
        if given is not None and not isinstance(given, kind):
            raise ConfigError(
                f"config.json in {folder} has {given!r} as {name}, where {expected} is expected: copy the "
                f"file again."
            )


def _refuse_quantised(folder: Path, config: Mapping[str, Any]) -> None:
    given = config.get("quantization_config") or config.get("compression_config")
    if not given:
        return
    method = given.get("quant_method") if isinstance(given, dict) else None
    raise ConfigError(
        f"The weights in {folder} are quantised ({method or 'bitsandbytes'}), and only plain ones can be "
        f"trained: give the folder of the original model."
    )


def _refuse_other_kinds(folder: Path, config: Mapping[str, Any]) -> None:
    kind = config.get("model_type") or "of an unknown type"
    other = next((what for name, what in _OTHER_INPUTS.items() if config.get(name) is not None), None)
    if other is not None:
        raise ConfigError(
            f"The model in {folder} ({kind}) also reads {other}, and only text can be trained: give the "
            f"folder of a language model."
        )
    classes = [name for name in config.get("architectures") or () if isinstance(name, str)]
    if config.get("is_encoder_decoder") or (classes and not any(map(_CAUSAL.search, classes))):
        raise ConfigError(
            f"The model in {folder} ({classes[0] if classes else kind}) is no causal language model, which "
            f"writes a text from left to right: give the folder of one."
        )


def _refuse_unknown_sizes(folder: Path, config: Mapping[str, Any]) -> None:
    if config.get("model_type") not in FAMILIES:
        return  # transformers has defaults that are not known here
    try:
        Sizes.from_config(config)
    except (KeyError, ValueError, TypeError, ZeroDivisionError) as error:
        raise ConfigError(
            f"config.json in {folder} does not tell the sizes of its network ({type(error).__name__}: "
            f"{error}): copy the file again."
        ) from None


def _refuse_other_tensors(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Stored]) -> None:
    """Raises ConfigError if the names or shapes of the weights are not those of the configured network."""
    for name, shape in expected_tensors(config).items():
        if name not in tensors:
            raise ConfigError(
                f"The weights in {folder} have no tensor {name!r}, which a {config.get('model_type')} "
                f"network needs: give a folder as transformers saves it."
            )
        if tensors[name].shape != shape:
            raise ConfigError(
                f"The tensor {name!r} in {folder} has shape {tensors[name].shape}, and config.json says "
                f"{shape}: config and weights are of two models."
            )
    layers = {int(found[1]) for name in tensors if (found := LAYER.search(name))}
    wanted = config.get("num_hidden_layers", config.get("n_layer"))
    # More layers are no error: some folders have a layer that predicts further tokens and is not loaded.
    if not any(map(EMBEDDING.search, tensors)) or (type(wanted) is int and len(layers) < wanted):
        first = min(tensors, default="none")
        raise ConfigError(
            f"The weights in {folder} ({len(tensors)} tensors, the first is {first!r}) are not those of a "
            f"language model with {wanted} layers, as config.json says: give a folder as transformers "
            f"saves it."
        )
