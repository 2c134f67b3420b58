"""The check of a base model's folder: what is refused, and facts about what is not."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from any_networks import KINDS, build
from model_folders import BAD, bad_folder, good_model, sharded, with_config
from safetensors.numpy import load_file, save_file
from transformers import AutoTokenizer

from onward.errors import ConfigError
from onward.lm.chat import Chat
from onward.lm.chat_files import read_chat_files
from onward.lm.model_folder import inspect
from onward.lm.policy import Policy

TOOLS_TEMPLATE = (
    "{%- if tools %}{{ '<|im_start|>system\\n' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    "{{ '<|im_end|>' }}{% endif -%}"
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content + '<|im_end|>' }}"
    "{% endgeneration %}{% else %}{{ message.content + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return good_model(tmp_path_factory.mktemp("models") / "good")


@pytest.mark.parametrize("name", BAD)
def test_a_folder_that_cannot_be_used_is_refused_in_one_sentence(
    good: Path, tmp_path: Path, name: str
) -> None:
    folder = bad_folder(good, tmp_path, name)
    with pytest.raises(ConfigError, match=BAD[name][1]) as caught:
        inspect(folder)
    sentence = str(caught.value)
    assert "\n" not in sentence and sentence.endswith(".") and folder.name in sentence


def test_the_facts_are_those_of_the_network(good: Path) -> None:
    found = inspect(good)
    policy = Policy.load(good)
    assert found.parameters == sum(tensor.numel() for tensor in policy.weights.tensors())
    assert found.parameters == policy.shape.parameters
    assert (found.family, found.path.name, found.dtype) == ("llama", "fast", "F32")
    assert found.disk_bytes == 4 * found.parameters


def test_shards_are_one_model_and_load_to_the_same_weights(good: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(good, tmp_path / "shards")
    sharded(folder)
    one, two = Policy.load(good).weights, Policy.load(folder).weights
    assert all(bool((a == b).all()) for a, b in zip(one.tensors(), two.tensors(), strict=True))
    (folder / "consolidated.safetensors").write_bytes(b"another form of the same weights")  # as Mistral has
    assert inspect(folder).parameters == inspect(good).parameters


def test_a_head_of_its_own_counts_and_a_tied_one_does_not(good: Path, tmp_path: Path) -> None:
    tied = inspect(good).parameters
    folder = shutil.copytree(good, tmp_path / "head")
    tensors = load_file(folder / "model.safetensors")
    head = tensors["model.embed_tokens.weight"]
    save_file(tensors | {"lm_head.weight": head.copy()}, folder / "model.safetensors")
    assert inspect(folder).parameters == tied
    with_config(tie_word_embeddings=False)(folder)
    assert inspect(folder).parameters == tied + head.size


def test_a_folder_of_bfloat16_says_so(good: Path, tmp_path: Path) -> None:
    from safetensors import torch as tensors_of

    folder = shutil.copytree(good, tmp_path / "half")
    path = folder / "model.safetensors"
    tensors_of.save_file(
        {name: tensor.to(torch.bfloat16) for name, tensor in tensors_of.load_file(path).items()}, path
    )
    found = inspect(folder)
    assert (found.dtype, found.disk_bytes) == ("BF16", 2 * found.parameters)


@pytest.mark.parametrize("form", ["file", "entry", "named"])
def test_templates_are_read_and_tried_as_transformers_does(good: Path, tmp_path: Path, form: str) -> None:
    folder = shutil.copytree(good, tmp_path / "tools")
    if form == "file":
        (folder / "chat_template.jinja").write_text(TOOLS_TEMPLATE)
    else:
        (folder / "chat_template.jinja").unlink()
        named = [{"name": "default", "template": TOOLS_TEMPLATE}, {"name": "rag", "template": "{{ 1 }}"}]
        config = json.loads((folder / "tokenizer_config.json").read_bytes())
        config["chat_template"] = TOOLS_TEMPLATE if form == "entry" else named
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    for where, tools in ((good, False), (folder, True)):
        found, chat = read_chat_files(where), Chat(Policy.load(where).tokenizer)
        assert found.shows_tools is chat.has_tool_template is tools
        assert found.opens_answer
        assert found.vocabulary == len(chat.tokenizer)
        ends = chat.tokenizer.convert_tokens_to_ids(list(found.end_of_turn))
        assert tuple(sorted(ends)) == chat.stop_ids


def test_all_ends_of_text_of_the_generation_config_are_listed(good: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(good, tmp_path / "ends")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    assert read_chat_files(folder).end_of_turn == ("<|im_end|>", "<|endoftext|>")


@pytest.mark.parametrize(
    "named_in", ["tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json"]
)
def test_an_end_of_text_is_a_control_token_wherever_it_is_named(
    good: Path, tmp_path: Path, named_in: str
) -> None:
    """It is not marked as special, and the template writes it by name where that is known."""
    folder = shutil.copytree(good, tmp_path / "ends")
    tokenizer = json.loads((folder / "tokenizer.json").read_bytes())
    for token in tokenizer["added_tokens"]:
        token["special"] = token["content"] != "<|im_end|>"
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    name, value = ("eos_token_id", 2) if "tok" not in named_in else ("eos_token", "<|im_end|>")
    for file in ("tokenizer_config.json", "generation_config.json", "config.json"):
        given = json.loads((folder / file).read_bytes())
        given.pop("eos_token", None)
        given.pop("eos_token_id", None)
        (folder / file).write_text(json.dumps(given))
    if named_in == "config.json":
        (folder / "generation_config.json").unlink()
    before = json.loads((folder / named_in).read_bytes()) if (folder / named_in).exists() else {}
    (folder / named_in).write_text(json.dumps(before | {name: value}))
    if name == "eos_token":
        template = (folder / "chat_template.jinja").read_text().replace("'<|im_end|>'", "eos_token")
        (folder / "chat_template.jinja").write_text(template)
    chat = Chat(AutoTokenizer.from_pretrained(folder))
    assert chat.stop_ids == (2,)
    assert inspect(folder).chat.end_of_turn == ("<|im_end|>",)


def test_a_template_that_opens_no_answer_is_reported(good: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(good, tmp_path / "plain")
    template = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    (folder / "chat_template.jinja").write_text(template)
    assert not read_chat_files(folder).opens_answer


def _bare(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name.removeprefix("transformer."): value for name, value in tensors.items()}


def _one_more_layer(tensors: dict[str, Any]) -> dict[str, Any]:
    last = {name: value for name, value in tensors.items() if ".layers.1." in name}
    return tensors | {name.replace(".layers.1.", ".layers.2."): value.copy() for name, value in last.items()}


@pytest.mark.parametrize(
    ("kind", "change"), [*((kind, None) for kind in KINDS), ("gpt2", _bare), ("granite", _one_more_layer)]
)
def test_a_network_of_any_family_is_good_under_the_names_that_its_files_use(
    good: Path, tmp_path: Path, kind: str, change: Callable[[dict[str, Any]], dict[str, Any]] | None
) -> None:
    from onward.lm.any_model.loading import load_module

    folder = build(kind, tmp_path / kind, good)
    path = folder / "model.safetensors"
    if change is not None:
        save_file(change(load_file(path)), path, metadata={"format": "pt"})
    assert inspect(folder).path.name == "transformers"
    assert load_module(folder, torch.device("cpu"), torch.float32)  # transformers takes it too


def test_a_layer_that_is_missing_is_noticed_in_any_family(good: Path, tmp_path: Path) -> None:
    folder = build("mamba", tmp_path / "mamba", good)
    path = folder / "model.safetensors"
    rest = {name: value for name, value in load_file(path).items() if ".layers.1." not in name}
    save_file(rest, path, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match="not those of a language model with 2 layers"):
        inspect(folder)


def test_the_check_loads_neither_torch_nor_transformers() -> None:
    import subprocess

    code = "import sys, onward.lm.model_folder, jinja2; print({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
