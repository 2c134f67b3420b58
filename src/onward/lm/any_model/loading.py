"""Loads a folder with the classes of transformers, and refuses what would be computed wrongly.

Code that comes with a model is never run. A tensor that the files lack is an error: transformers would only
warn and draw it at random.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from onward.errors import ConfigError
from onward.lm.chat_files import json_object

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

UNBOUNDED = 1 << 20
"""Positions of a network that states no limit."""
_RANDOM = ("drop", "jitter")
"""Parts of the names of settings that make a forward pass in training random."""


def load_module(folder: Path, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """Returns the model in ``folder`` in evaluation mode, its weights without gradients. Raises ConfigError
    with one sentence for a folder that cannot be run."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    _refuse(folder)
    logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        _without_chance(config)
        with torch.inference_mode(False):  # in-place writes must be counted in any mode
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
    except Exception as error:  # each family checks its configuration in its own way, or not at all
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise ConfigError(
            f"transformers cannot load the model in {folder} ({why}): give a folder that "
            f"AutoModelForCausalLM loads."
        ) from None
    module, found = loaded
    missing = sorted(found["missing_keys"]) + sorted(str(one) for one in found["mismatched_keys"])
    if missing:
        raise ConfigError(
            f"The weights in {folder} lack {len(missing)} tensors of the network, {missing[0]!r} the first: "
            f"the files are incomplete or of another network."
        )
    return module.to(device).eval().requires_grad_(False)


def _refuse(folder: Path) -> None:
    """Raises ConfigError for a folder without configuration or safetensors, one that needs code of its own,
    and a quantised one."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    config = json_object(folder / "config.json")
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        own = " and would run code of its own, which Onward never does" if "auto_map" in config else ""
        raise ConfigError(
            f"The model in {folder} is of type {kind!r}, which transformers does not know{own}: use a model "
            f"whose type transformers has."
        )
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ConfigError(
            f"The model in {folder} is of type {kind!r}, which is no causal language model: use one that "
            f"predicts the next token."
        )
    if config.get("quantization_config"):
        raise ConfigError(
            f"The model in {folder} is quantised, so its weights cannot be trained here: use the same model "
            f"in float32 or bfloat16."
        )
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(f"{folder} has no .safetensors file: convert the weights to safetensors first.")


def _without_chance(config: PretrainedConfig) -> None:
    """Sets dropout and noise to zero, and turns off outputs that only cost time."""
    for one in (config, config.get_text_config()):
        for name, value in vars(one).items():
            if isinstance(value, float) and any(part in name for part in _RANDOM):
                setattr(one, name, 0.0)
        if getattr(one, "output_router_logits", False):
            one.output_router_logits = False


def parameters_of_files(folder: Path) -> int:
    """Estimates the number of weights from the bytes of the files, as if they were float32."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors")) // 4


def max_positions(config: PretrainedConfig) -> int:
    """Returns the most tokens of a row. A rotary scheme that changes with the length of the longest row of a
    batch is used only below the length at which it begins to change."""
    text = config.get_text_config()
    limit = getattr(text, "max_position_embeddings", None) or UNBOUNDED
    rope = getattr(text, "rope_parameters", None) or {}
    schemes = [rope, *(one for one in rope.values() if isinstance(one, dict))]
    for one in schemes:
        if one.get("rope_type") in ("longrope", "dynamic"):
            original = one.get("original_max_position_embeddings") or getattr(
                text, "original_max_position_embeddings", None
            )
            limit = min(limit, int(original or limit))
    return int(limit)
