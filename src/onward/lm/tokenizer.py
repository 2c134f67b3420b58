"""The tokenizer of a model folder: what its ``tokenizer.json`` says, whatever the type of the model.

transformers 5 has classes for some types of models that build parts of a tokenizer themselves. A ``qwen2``
model whose file splits text in another way would get Qwen's own splits: tokens that it was not trained with.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from onward.lm.chat_files import TOKENIZER

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Loads the tokenizer in ``folder``; one without ``tokenizer.json`` by the class of transformers."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if (folder / TOKENIZER).is_file():
        return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
