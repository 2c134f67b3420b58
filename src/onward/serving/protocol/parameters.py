"""Every request parameter in one table: what is answered, and what is refused with a reason. Pure.

A parameter that cannot be applied exactly is refused by name, never ignored: the behaviour of an agent whose
setting was ignored would be hard to understand. The tables of ``docs/structured-output.md`` are made from
these.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onward.http.app import HttpError
from onward.spelling import closest_name


@dataclass(frozen=True)
class Answered:
    """A parameter that is applied. ``words`` says how."""

    words: str


@dataclass(frozen=True)
class Refused:
    """A parameter that is not applied. ``passes``: its default values, which are accepted beside null and
    empty ones, since clients send them. ``instead``: what to do."""

    passes: tuple[Any, ...] = ()
    instead: str = ""


Table = Mapping[str, Answered | Refused]
_NO_EFFECT = Answered("accepted; changes no answer, here or at any other server")
_IMAGES = "the model has no vision and writes text alone"
_HERE = "this gateway has no such service"
_SHAPE = "use `response_format` with a JSON schema"
SAMPLING: dict[str, Answered | Refused] = {
    "model": Answered("`onward`, a model id that serves now, or an alias of `gateway.model_aliases`"),
    "temperature": Answered("0 to 2; 0 takes the likeliest token"),
    "top_p": Answered("above 0, at most 1"),
    "top_k": Answered("at least 1; -1 means all"),
    "seed": Answered("the same seed and request draw the same tokens; choice `i` of `n` has `seed + i`"),
    "stop": Answered("one text or up to four; see below"),
    "n": Answered("1 to 16 choices; see below. Above 1 not with `stream`"),
    "presence_penalty": Answered("-2 to 2, by OpenAI's formula, on the tokens of the answer"),
    "frequency_penalty": Answered("-2 to 2, by OpenAI's formula, on the tokens of the answer"),
    "logit_bias": Answered("token id → -100 to 100, at most 300 of them"),
    "stream": Answered("tokens as they are sampled; a possible tool call as a whole"),
    "stream_options": Answered("`include_usage`"),
    "user": Answered("names the session"),
    **dict.fromkeys(
        ("metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
         "prompt_cache_retention", "prompt_cache_options", "request_id", "cache_salt", "priority"),
        _NO_EFFECT,
    ),
    "best_of": Refused((1,), "use `n`"),
    "echo": Refused((False,), "put the prompt before the answer in the client"),
    "suffix": Refused(("",), "the model only continues a text"),
    "min_p": Refused((0,), "use `top_p`"),
    **dict.fromkeys(("min_tokens", "top_a", "mirostat", "prompt_logprobs"), Refused((0,))),
    **dict.fromkeys(("xtc_probability", "dry_multiplier"), Refused((0,))),
    **dict.fromkeys(
        ("repetition_penalty", "length_penalty", "typical_p", "tfs_z"),
        Refused((1,), "use `frequency_penalty` or `top_p`"),
    ),
    **dict.fromkeys(("ignore_eos", "use_beam_search", "continue_final_message"), Refused((False,))),
    **dict.fromkeys(
        ("include_stop_str_in_output", "return_token_ids", "add_special_tokens"),
        Refused((False,), "`onward.sampling` has the exact tokens"),
    ),
    **dict.fromkeys(("skip_special_tokens", "spaces_between_special_tokens"), Refused((True,))),
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), Refused((), _SHAPE)),
    **dict.fromkeys(("structured_outputs", "grammar"), Refused((), _SHAPE)),
    "stop_token_ids": Refused((), "use `stop`"),
    **dict.fromkeys(("bad_words", "allowed_token_ids"), Refused((), "use `logit_bias`")),
    "moderation": Refused((), _HERE),
}  # fmt: skip
"""Parameters that mean the same in chat completions and completions."""
CHAT: Table = {
    "messages": Answered("text, or a list of text parts; images and audio are refused by name"),
    "max_tokens": Answered("at least 1; without it the free context, at most 512"),
    "max_completion_tokens": Answered("as `max_tokens`, which it overrides"),
    "tools": Answered("functions; `strict` is enforced by a grammar"),
    "tool_choice": Answered("`auto`, `none`, `required`, a named function, `allowed_tools`"),
    "parallel_tool_calls": Answered("false: one call; a forced answer then contains only one"),
    "response_format": Answered("`text`, `json_object`, `json_schema`; see below"),
    "logprobs": Answered("of the distribution that was sampled"),
    "top_logprobs": Answered("0 to 20, with `logprobs`"),
    **SAMPLING,
    "functions": Refused((), "use `tools`"),
    "function_call": Refused(("auto", "none"), "use `tools` and `tool_choice`"),
    "audio": Refused((), _IMAGES),
    "modalities": Refused((["text"],), _IMAGES),
    "prediction": Refused((), "leave it out: it only saves time elsewhere"),
    "web_search_options": Refused((), _HERE),
    "reasoning_effort": Refused(("none",), "the model's chat template decides"),
    "verbosity": Refused(("medium",), "say it in the messages"),
    **dict.fromkeys(("reasoning", "thinking", "chat_template_kwargs", "documents"), Refused(
        (), "the model's chat template decides")),
    "chat_template": Refused(("",), "the model's chat template decides"),
    "add_generation_prompt": Refused((True,)),
    "plugins": Refused((), _HERE),
}  # fmt: skip
COMPLETIONS: Table = {
    "prompt": Answered("one text, or one list of token ids"),
    "max_tokens": Answered("at least 1; 16 without it, as at OpenAI"),
    "logprobs": Answered("0 to 5 likeliest tokens, of the distribution that was sampled"),
    **SAMPLING,
}
RESPONSES: Table = {
    "input": Answered("text, or items: messages of text, function calls and their outputs"),
    "instructions": Answered("a system message before the input"),
    "max_output_tokens": Answered("at least 16 at OpenAI, at least 1 here"),
    "tools": Answered("functions; `strict` is enforced by a grammar"),
    "tool_choice": Answered("`auto`, `none`, `required`, a named function, `allowed_tools`"),
    "parallel_tool_calls": Answered("as in chat completions"),
    "text": Answered("`format`: `text`, `json_object`, `json_schema`"),
    "top_logprobs": Refused((0,), "use chat completions"),
    "stream": Answered("the events of text and of function calls"),
    **{name: SAMPLING[name] for name in ("model", "temperature", "top_p", "user", "metadata", "store",
                                         "service_tier", "safety_identifier", "prompt_cache_key",
                                         "prompt_cache_retention", "prompt_cache_options", "moderation")},
    "stream_options": Refused(({"include_obfuscation": False},), "leave it out"),
    "include": Refused((), "leave it out: an answer has all its parts"),
    "truncation": Refused(("disabled",), "shorten the input in the client"),
    "background": Refused((False,), "wait for the answer, or stream it"),
    "reasoning": Refused(({"effort": "none"}, {"summary": None}, {"effort": None}),
                         "the model's chat template decides"),
    "previous_response_id": Refused((), "send the earlier items in `input`: answers are not stored here"),
    "conversation": Refused((), "send the earlier items in `input`: answers are not stored here"),
    "prompt": Refused((), "send its text in `instructions`: no prompts are stored here"),
    "image": Refused((), _IMAGES),
    "access_programs": Refused((), _HERE),
    "background_options": Refused((), "wait for the answer, or stream it"),
    "max_tool_calls": Refused((), "count the calls in the client: only functions are called"),
    "context_management": Refused((), "shorten the input in the client"),
}  # fmt: skip
TABLES: dict[str, Table] = {
    "/v1/chat/completions": CHAT, "/v1/completions": COMPLETIONS, "/v1/responses": RESPONSES,
}  # fmt: skip


def refuse(document: Mapping[str, Any], table: Table) -> None:
    """Refuses what would change the answer and cannot be applied. Raises HttpError 400 that names it."""
    for name, value in document.items():
        known = table.get(name)
        if value is None or isinstance(known, Answered):
            continue
        if known is None:
            raise bad(_unknown(name, table), name[:64])
        if value in ([], {}) or any(_equal(value, default) for default in known.passes):
            continue
        given = f" or give {json.dumps(known.passes[0])}" if known.passes and known.passes[0] != "" else ""
        instead = f"; {known.instead.replace('`', chr(39))}" if known.instead else ""
        raise bad(f"{name!r} is not supported: leave it out{given}{instead}. {_SUPPORTED}", name)


def refuse_more(given: Mapping[str, Any], names: Sequence[str], where: str) -> None:
    """Refuses parts of the object ``where`` that are not among ``names``. Raises HttpError 400."""
    for name, value in given.items():
        if name not in names and value is not None:
            raise bad(
                f"'{where}' has {name[:64]!r}, which is not known there: give {', '.join(names)}.", where
            )


_SUPPORTED = (
    "Sampling is set by temperature, top_p, top_k, max_tokens, seed, stop, the two penalties and logit_bias."
)


def _unknown(name: str, table: Table) -> str:
    answered = [known for known, what in table.items() if isinstance(what, Answered)]
    near = closest_name(name, table)
    hint = f"did you mean {near!r}?" if near in answered else "leave it out."
    return f"{name[:64]!r} is not a parameter of this gateway: {hint} Parameters are {', '.join(answered)}."


def _equal(value: Any, default: Any) -> bool:
    """Returns whether they are equal in JSON, where true is not 1."""
    return value == default and isinstance(value, bool) == isinstance(default, bool)


def bad(message: str, param: str) -> HttpError:
    return HttpError(400, message, param=param)


def flag(document: Mapping[str, Any], name: str, default: bool) -> bool:
    value = document.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise bad(f"{name!r} must be true or false.", name)
    return value


def number(document: Mapping[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = document.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise bad(f"{name!r} must be a number from {low:g} to {high:g}.", name)
    return float(value)


def whole(name: str, value: Any, low: int, high: int = 2**63 - 1) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        limit = f"of at least {low}" if high == 2**63 - 1 else f"from {low} to {high}"
        raise bad(f"{name!r} must be a whole number {limit}.", name)
    return value
