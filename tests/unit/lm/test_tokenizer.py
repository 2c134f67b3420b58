"""A folder's tokens are those of its ``tokenizer.json``, whatever the type of the model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from onward.envs import desk
from onward.lm.policy import Policy
from onward.lm.tiny import build_tiny
from onward.lm.tokenizer import load_tokenizer

TEXTS = ['{"tool_name": "response", "tool_args": {"text": "unknown"}}', "Grüße  12\n\n", "don't stop"]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen2 network whose tokenizer splits text as no other does."""
    split = r'"tool_name"|"tool_args"|[0-9]+|.'
    texts = [message["content"] for talk in desk.demonstrations(20) for message in talk]
    return build_tiny(tmp_path_factory.mktemp("own"), texts, hidden=32, layers=1, split=split, family="qwen2")


@pytest.mark.parametrize(
    "kind", ["qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "mistral", "gpt2", "llama"]
)
def test_every_type_of_model_has_the_tokens_of_its_file(own: Path, tmp_path: Path, kind: str) -> None:
    for file in own.glob("tok*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    plain, loaded = Tokenizer.from_file(str(own / "tokenizer.json")), load_tokenizer(tmp_path)
    for text in TEXTS:
        assert (
            loaded.encode(text, add_special_tokens=False) == plain.encode(text, add_special_tokens=False).ids
        )


def test_a_saved_model_names_the_class_of_its_tokenizer_as_its_base_does(own: Path, tmp_path: Path) -> None:
    """Other engines look it up by this name."""
    shutil.copytree(own, tmp_path / "base")
    file = tmp_path / "base" / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "tokenizer_class": "Qwen2Tokenizer"}))
    policy = Policy.load(tmp_path / "base")
    for folder in (tmp_path / "saved", tmp_path / "base"):
        policy.save(folder)
        assert json.loads((folder / file.name).read_text())["tokenizer_class"] == "Qwen2Tokenizer"


def test_a_saved_model_has_the_tokens_of_the_one_that_was_loaded(own: Path, tmp_path: Path) -> None:
    Policy.load(own).save(tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / file).read_bytes() == (own / file).read_bytes()
    plain, again = Tokenizer.from_file(str(own / "tokenizer.json")), Policy.load(tmp_path).tokenizer
    assert [again.encode(text, add_special_tokens=False) for text in TEXTS] == [
        plain.encode(text, add_special_tokens=False).ids for text in TEXTS
    ]
