"""The tokenizer of a model folder: what its ``tokenizer.json`` says, whatever the type of the model.

transformers 5 has classes for some types of models that build parts of a tokenizer themselves. A ``qwen2``
model whose file splits text in another way would get Qwen's own splits: tokens that it was not trained with.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from onward.lm.chat_files import TOKENIZER

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FILES = (
    TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model",
    "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
"""Files of a tokenizer and its chat template."""


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Loads the tokenizer in ``folder``; one without ``tokenizer.json`` by the class of transformers."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if (folder / TOKENIZER).is_file():
        return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, source: Path, folder: Path) -> None:
    """Writes the tokenizer that was loaded from ``source``: its files as they are. transformers 5 would name
    a class of its own in them, which other engines and transformers 4 do not know."""
    if not (source / TOKENIZER).is_file():
        tokenizer.save_pretrained(folder)
        return
    if source.resolve() == folder.resolve():
        return
    for name in FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
