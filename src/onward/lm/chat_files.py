"""Tokenizer and chat template of a model folder, read and tried without transformers.

The template is rendered on two short conversations, as ``chat.Chat`` does it later with transformers. So a
folder whose template cannot be used is refused before anything is loaded.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onward import extras
from onward.errors import ConfigError

TOKENIZER = "tokenizer.json"
_ANSWER = "Zq"
_TALK = [{"role": "user", "content": "A"}, {"role": "assistant", "content": _ANSWER}]
_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up_zq",
        "description": "Looks up.",
        "parameters": {"type": "object", "properties": {}},
    },
}


@dataclass(frozen=True)
class ChatFiles:
    """Facts about the tokenizer and the chat template of a model."""

    vocabulary: int
    """Number of tokens that the tokenizer knows, added ones included."""
    shows_tools: bool
    """True if the template shows tools; otherwise Onward shows them in words."""
    opens_answer: bool
    """True if the template opens the assistant's turn (``add_generation_prompt``)."""
    end_of_turn: tuple[str, ...]
    """Tokens that end an answer: the one after a turn in the template, then the model's own ends of text."""


def read_chat_files(folder: Path) -> ChatFiles:
    """Reads and tries the tokenizer and the template. Raises ConfigError for those that cannot be used."""
    described = _tokenizer(folder)
    config = _tokenizer_config(folder)
    added = [token for token in described.get("added_tokens") or () if isinstance(token, dict)]
    final = _ends_of_text(folder, config, {token["id"]: token["content"] for token in added})
    control = {*final, *(token["content"] for token in added if token.get("special"))}
    render = _Template(folder, _template(folder, config), config)
    ended = render(_TALK)
    after = ended[ended.rfind(_ANSWER) + len(_ANSWER) :]
    places = {after.find(text): text for text in sorted(control, key=len) if text in after}
    if not places:
        raise ConfigError(
            f"The chat template in {folder} puts no control token after an answer: use a model whose "
            f"template ends each turn with one, such as <|im_end|>."
        )
    return ChatFiles(
        vocabulary=_vocabulary(described, added),
        shows_tools=_TOOL["function"]["name"] in render(_TALK[:1], tools=[_TOOL], lenient=True),
        opens_answer=render(_TALK[:1], add_generation_prompt=True) != render(_TALK[:1]),
        end_of_turn=tuple(dict.fromkeys([places[min(places)], *final])),
    )


def json_object(path: Path, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    """Reads a JSON object. Raises ConfigError; a file that is not there is ``missing``, or an error too."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        if missing is not None:
            return missing
        raise ConfigError(
            f"{path.parent} has no {path.name}: give the folder of a model as transformers saves it."
        ) from None
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{path.name} in {path.parent} is not a JSON object: copy the file again.")
    return found


def _tokenizer(folder: Path) -> dict[str, Any]:
    if not (folder / TOKENIZER).is_file():
        there = (folder / "tokenizer.model").is_file()
        found = "only the slow form, tokenizer.model" if there else "no tokenizer"
        raise ConfigError(
            f"{folder} has {found}: save {TOKENIZER} there, with transformers' "
            f"AutoTokenizer.from_pretrained(…).save_pretrained(…)."
        )
    described = json_object(folder / TOKENIZER)
    if not isinstance(described.get("model"), dict):
        raise ConfigError(f"{TOKENIZER} in {folder} describes no tokenizer: copy the file again.")
    return described


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    """Returns the settings with the special tokens that transformers 4 saved in a file of their own. As in
    transformers, that file counts, and first, where the settings list no added tokens."""
    config = json_object(folder / "tokenizer_config.json", missing={})
    if "added_tokens_decoder" in config:
        return config
    return config | json_object(folder / "special_tokens_map.json", missing={})


def _vocabulary(described: Mapping[str, Any], added: Iterable[Mapping[str, Any]]) -> int:
    """Counts the tokens; a vocabulary is a table, or a list of tokens with their scores."""
    own = described["model"].get("vocab") or ()
    return len({one[0] if isinstance(one, list) else one for one in own} | {one["content"] for one in added})


def _template(folder: Path, config: Mapping[str, Any]) -> str:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8", errors="replace")
    given = config.get("chat_template")
    if isinstance(given, list):  # several by name, as older folders have them
        named = {one.get("name"): one.get("template") for one in given if isinstance(one, dict)}
        given = named.get("default")
    if isinstance(given, str) and given.strip():
        return given
    raise ConfigError(
        f"{folder} has no chat template: use the instruct form of the model, or put the template into "
        f"chat_template.jinja there."
    )


def _ends_of_text(folder: Path, config: Mapping[str, Any], names: Mapping[int, str]) -> list[str]:
    """Returns the tokens with which the model's own files end a text."""
    token = config.get("eos_token")
    found = [token.get("content") if isinstance(token, dict) else token]
    where = (folder / name for name in ("generation_config.json", "config.json"))
    ids = next((json_object(path).get("eos_token_id") for path in where if path.is_file()), None)
    found += [names.get(one) for one in (ids if isinstance(ids, list) else [ids]) if isinstance(one, int)]
    return [one for one in found if isinstance(one, str) and one]


class _Template:
    """The chat template, with the environment that transformers gives to one."""

    def __init__(self, folder: Path, source: str, config: Mapping[str, Any]) -> None:
        extras.require("lm", "jinja2", "Reading a chat template")
        from jinja2 import TemplateError, nodes
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        class Generation(Extension):
            """The tag with which transformers marks the assistant's tokens: here its body alone counts."""

            tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

            def parse(self, parser: Any) -> list[nodes.Node]:
                next(parser.stream)
                return parser.parse_statements(("name:endgeneration",), drop_needle=True)

        def refuse(message: str) -> None:
            raise TemplateError(message)

        def as_json(value: Any, ensure_ascii: bool = False, **how: Any) -> str:
            return json.dumps(value, ensure_ascii=ensure_ascii, **how)

        self._folder, self._errors = folder, (TemplateError, ArithmeticError, LookupError, TypeError)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
        )
        environment.filters["tojson"] = as_json
        environment.globals["raise_exception"] = refuse
        environment.globals["strftime_now"] = lambda how: datetime.datetime.now().strftime(how)
        named = ("bos_token", "eos_token", "pad_token", "unk_token")
        tokens = {name: config.get(name) for name in named}
        self._tokens = {
            name: token.get("content") if isinstance(token, dict) else token
            for name, token in tokens.items()
            if token is not None
        }
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise self._refusal(error) from None

    def __call__(self, messages: list[dict[str, Any]], *, lenient: bool = False, **more: Any) -> str:
        """Renders ``messages``. ``lenient``: a template that refuses them gives an empty text."""
        try:
            return self._template.render(
                **self._tokens, messages=messages, **{"add_generation_prompt": False, **more}
            )
        except (*self._errors, AttributeError, ValueError) as error:
            if lenient:
                return ""
            raise self._refusal(error) from None

    def _refusal(self, error: Exception) -> ConfigError:
        why = " ".join(str(error).split())[:120] or type(error).__name__
        return ConfigError(f"The chat template in {self._folder} cannot be rendered ({why}): correct it.")
