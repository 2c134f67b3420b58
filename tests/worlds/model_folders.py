"""Model folders that cannot be used, each made from a good one by one change."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file

CORPUS = ["Add 2 and 3.", "What is the capital?"]
Change = Callable[[Path], None]


def good_model(folder: Path) -> Path:
    """Makes a random network of 20,000 parameters with tokenizer and template."""
    from onward.lm.tiny import build_tiny

    return build_tiny(folder, CORPUS, vocab=300, hidden=32, layers=2, heads=2, kv_heads=1, intermediate=64)


def with_config(**change: Any) -> Change:
    """Sets entries of config.json; None removes one."""

    def apply(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_bytes()) | change
        config = {name: value for name, value in config.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(config))

    return apply


def sharded(folder: Path) -> None:
    """Cuts the weights into two files with an index, as transformers does above 5 GB."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    where = {
        name: f"model-0000{1 + (place >= len(names) // 2)}-of-00002.safetensors"
        for place, name in enumerate(names)
    }
    for file in set(where.values()):
        part = {name: tensors[name] for name in names if where[name] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


def _weights(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Change:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        save_file(change(tensors), folder / "model.safetensors", metadata={"format": "pt"})

    return apply


def _cut_off(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])


def _shorter(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])


def _renamed(to: str) -> Change:
    return lambda folder: (folder / "model.safetensors").rename(folder / to) and None


def _missing_shard(folder: Path) -> None:
    sharded(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()


def _lost_tensor(folder: Path) -> None:
    sharded(folder)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_bytes())
    index["weight_map"]["model.layers.9.lost.weight"] = "model-00001-of-00002.safetensors"
    path.write_text(json.dumps(index))


def _without(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def _slow_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")


def _text(name: str, text: str) -> Change:
    return lambda folder: (folder / name).write_text(text) and None


BAD: dict[str, tuple[Change, str]] = {
    "no config": (_without("config.json"), "has no config.json"),
    "broken config": (_text("config.json", '{"model_type": "llama",'), "config.json .* is not a JSON"),
    "config of a list": (_text("config.json", "[1]"), "config.json .* is not a JSON"),
    "pickle only": (_renamed("pytorch_model.bin"), r"pickle only \(pytorch_model.bin\)"),
    "GGUF only": (_renamed("model-q4_k_m.gguf"), r"quantised weights only \(model-q4_k_m.gguf\)"),
    "no weights": (_without("model.safetensors"), "has no weights"),
    "wrong names": (
        _weights(lambda given: {f"transformer.{name}": value for name, value in given.items()}),
        "have no tensor 'model.embed_tokens.weight'",
    ),
    "another network's weights": (with_config(intermediate_size=96), "config and weights are of two models"),
    "too few layers": (with_config(num_hidden_layers=3), "have no tensor 'model.layers.2"),
    "untied without a head": (with_config(tie_word_embeddings=False), "have no tensor 'lm_head.weight'"),
    "no sizes": (with_config(hidden_size=None), "does not tell the sizes .*hidden_size"),
    "model type of a list": (with_config(model_type=[]), "has .* as model_type, where a name is expected"),
    "architectures of a number": (with_config(architectures=5), "has 5 as architectures, where a list"),
    "missing shard": (_missing_shard, "lacks model-00002-of-00002.safetensors"),
    "tensor in no shard": (_lost_tensor, "have no tensor 'model.layers.9.lost.weight'"),
    "header longer than the file": (_cut_off, "are damaged: model.safetensors is not safetensors"),
    "data cut off": (_shorter, "are damaged: model.safetensors is longer or shorter"),
    "not safetensors": (_text("model.safetensors", "version https://git-lfs"), "are damaged"),
    "vision": (with_config(vision_config={"hidden_size": 8}), "also reads images"),
    "encoder": (with_config(architectures=["BertForMaskedLM"]), "BertForMaskedLM.* no causal language model"),
    "encoder and decoder": (with_config(is_encoder_decoder=True), "no causal language model"),
    "classifier": (
        with_config(architectures=["LlamaForSequenceClassification"]),
        "LlamaForSequenceClassification.* no causal language model",
    ),
    "gptq": (with_config(quantization_config={"quant_method": "gptq", "bits": 4}), r"quantised \(gptq\)"),
    "awq": (with_config(quantization_config={"quant_method": "awq"}), r"quantised \(awq\)"),
    "bitsandbytes": (
        with_config(quantization_config={"load_in_4bit": True}), r"quantised \(bitsandbytes\)"
    ),
    "no tokenizer": (_without("tokenizer.json"), "has no tokenizer"),
    "slow tokenizer only": (_slow_tokenizer, "only the slow form"),
    "broken tokenizer": (_text("tokenizer.json", "{}"), "describes no tokenizer"),
    "no template": (_without("chat_template.jinja"), "has no chat template"),
    "broken template": (_text("chat_template.jinja", "{% for x in %}"), "cannot be rendered"),
    "template without ends": (
        _text("chat_template.jinja", "{% for m in messages %}{{ m['content'] }}{% endfor %}"),
        "no control token after an answer",
    ),
}  # fmt: skip
"""Name → (change to a good folder, pattern of the sentence that refuses it)."""


def bad_folders(good: Path, where: Path) -> Iterator[tuple[str, Path, str]]:
    """Yields each bad folder with its name and the pattern of its sentence."""
    for name, (change, sentence) in BAD.items():
        yield name, bad_folder(good, where, name, change), sentence


def bad_folder(good: Path, where: Path, name: str, change: Change | None = None) -> Path:
    """Makes one of ``BAD`` from a copy of ``good``."""
    folder = where / name.replace(" ", "-").replace("'", "")
    shutil.copytree(good, folder)
    (change or BAD[name][0])(folder)
    return folder
