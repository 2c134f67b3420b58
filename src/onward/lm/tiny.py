"""A network of about one million parameters with a tokenizer of its own, for tests and the demo.

The tokenizer is trained on the caller's corpus, so the corpus must contain the vocabulary of the tasks. Other
text still works (byte level) but costs many tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from onward.lm.module_saving import save_module

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Control tokens of the chat template, in the order of their ids."""
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def build_tiny(
    folder: Path,
    corpus: Iterable[str],
    seed: int = 0,
    *,
    vocab: int = 1024,
    hidden: int = 128,
    layers: int = 4,
    heads: int = 4,
    kv_heads: int = 2,
    intermediate: int = 384,
    max_positions: int = 2048,
    rope_theta: float = 10000.0,
    split: str | None = None,
    family: Literal["llama", "qwen2"] = "llama",
) -> Path:
    """Writes a randomly initialised network of ``family`` and its ChatML tokenizer to ``folder``.

    ``vocab`` is an upper bound on the byte-level BPE vocabulary (at least 259 is used). ``split`` is a
    regular expression for the pieces inside which BPE may merge (default: GPT-2's words, single digits). If
    it matches whole phrases, frequent phrases become single tokens. The same corpus, sizes, split and seed
    give the same files. Returns ``folder``.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    if split is None:
        pieces = [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    else:
        pieces = [
            pre_tokenizers.Split(Regex(split), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    backend.pre_tokenizer = pre_tokenizers.Sequence(pieces)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(corpus, trainer)
    return save_network(
        folder,
        backend,
        seed,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        intermediate=intermediate,
        max_positions=max_positions,
        rope_theta=rope_theta,
        family=family,
    )


def save_network(
    folder: Path,
    backend: Tokenizer,
    seed: int = 0,
    *,
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    intermediate: int,
    max_positions: int,
    initializer_range: float = 0.02,
    rope_theta: float = 10000.0,
    family: Literal["llama", "qwen2"] = "llama",
) -> Path:
    """Writes a randomly initialised network for the tokenizer ``backend``, whose vocabulary begins with
    ``SPECIAL``, and the ChatML template to ``folder``. Returns ``folder``. ``initializer_range``: standard
    deviation of the weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    folder = Path(folder)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="<|endoftext|>",
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )
    tokenizer.chat_template = CHATML
    config = AutoConfig.for_model(
        family,
        vocab_size=backend.get_vocab_size(),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden // heads,
        intermediate_size=intermediate,
        max_position_embeddings=max_positions,
        initializer_range=initializer_range,
        rope_parameters={"rope_type": "default", "rope_theta": rope_theta},
        tie_word_embeddings=True,
        bos_token_id=backend.token_to_id("<|im_start|>"),
        eos_token_id=backend.token_to_id("<|im_end|>"),
        pad_token_id=backend.token_to_id("<|endoftext|>"),
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
    folder.mkdir(parents=True, exist_ok=True)
    save_module(model, folder)
    tokenizer.save_pretrained(folder)
    return folder
