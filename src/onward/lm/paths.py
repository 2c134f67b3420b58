"""Loading of a model and its sampler on the path that ``model_path`` chooses, with the reason for users."""

from __future__ import annotations

from pathlib import Path

from onward.errors import ConfigError
from onward.lm.any_model.loading import parameters_of_files
from onward.lm.any_model.policy import AnyPolicy
from onward.lm.any_model.sampler import AnySampler
from onward.lm.chat_files import json_object
from onward.lm.model import LanguageModel, TokenSampler
from onward.lm.model_path import AskedPath, ModelPath, path_of
from onward.lm.policy import Policy
from onward.lm.sampler import Sampler
from onward.lm.sizes import Sizes


def choose(folder: Path, asked: AskedPath = "auto") -> ModelPath:
    """Returns the path for the model in ``folder``. Raises ConfigError without a configuration."""
    return path_of(json_object(folder / "config.json"), asked)


def parameters(folder: Path) -> int:
    """Returns the number of weights, or an estimate of it for a family that our own forward does not know."""
    try:
        return Sizes.read(folder).parameters
    except ConfigError:
        return parameters_of_files(folder)


def load(
    folder: Path, *, device: str = "cpu", dtype: str = "float32", path: AskedPath = "auto"
) -> LanguageModel:
    """Loads the model in ``folder`` on the path that ``choose`` returns. Raises ConfigError with one sentence
    for a folder that neither path can run."""
    folder = Path(folder)
    found = choose(folder, path)
    if found.name == "fast":
        return Policy.load(folder, device=device, dtype=dtype)
    return AnyPolicy.load(folder, device=device, dtype=dtype, reason=found.reason)


def sampler(
    policy: LanguageModel,
    max_batch: int = 64,
    max_context: int = 2048,
    *,
    prefix_cache_bytes: int = 512 << 20,
) -> TokenSampler:
    """Returns a sampler for ``policy``; only that of our own forward stores prefixes."""
    if isinstance(policy, Policy):
        return Sampler(policy, max_batch, max_context, prefix_cache_bytes=prefix_cache_bytes)
    assert isinstance(policy, AnyPolicy)
    return AnySampler(policy, max_batch, max_context)


def described(policy: LanguageModel) -> str:
    """Returns a sentence about the path of ``policy`` and its reason."""
    how = "Onward's own forward" if policy.path == "fast" else "the modules of transformers (the slower path)"
    return f"The model runs by {how}, since {policy.reason}."
