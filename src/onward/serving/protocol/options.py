"""Parameters that few calls have: stop texts, penalties, log-probs, forced calls, forms of answers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onward.capture.conversations.answers import MAX_DEPTH
from onward.serving.engines import AnswerOptions
from onward.serving.protocol.parameters import bad, flag, number, refuse_more, whole
from onward.serving.protocol.tools import ToolChoice, is_unfit

MAX_STOPS = 4
MAX_STOP = 128
"""UTF-8 bytes of one stop text. At each token the sampler decodes as many tokens as the longest has bytes."""
MAX_BIAS = 300
MAX_CHOICES = 16
_NAMES = frozenset(
    ("stop", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs", "top_logprobs",
     "response_format", "prompt")
)  # fmt: skip


def read_options(
    document: dict[str, Any],
    tools: Sequence[dict[str, Any]] = (),
    choice: ToolChoice | None = None,
    *,
    parallel: bool = True,
    top_logprobs: int | None = None,
    prompt: str | list[int] | None = None,
) -> AnswerOptions | None:
    """Returns the options of a request, or None if it has none of them. Raises HttpError 400."""
    names = choice.names if choice is not None else frozenset()
    is_strict = any(tool["function"].get("strict") for tool in tools if tool["function"]["name"] in names)
    must_call = choice is not None and choice.must_call
    if not (is_strict or must_call or prompt is not None or _NAMES & document.keys()):
        return None
    schema, any_object = _schema(document.get("response_format"))
    options = AnswerOptions(
        stop=stops(document.get("stop")),
        presence_penalty=number(document, "presence_penalty", 0.0, -2.0, 2.0),
        frequency_penalty=number(document, "frequency_penalty", 0.0, -2.0, 2.0),
        logit_bias=_bias(document.get("logit_bias")),
        top_logprobs=top_logprobs,
        must_call=must_call,
        parallel=parallel and not (choice is not None and choice.is_single),
        callable=sorted(names) if is_strict or must_call or schema is not None else None,
        schema=schema,
        any_object=any_object,
        prompt=prompt,
    )
    return None if options == AnswerOptions(parallel=options.parallel) else options


def stops(given: Any) -> list[str]:
    """Returns the stop texts."""
    if given is None or given == "":
        return []
    texts = [given] if isinstance(given, str) else given
    if (
        not isinstance(texts, list)
        or len(texts) > MAX_STOPS
        or not all(
            isinstance(text, str) and 0 < len(text.encode("utf-8", "surrogatepass")) <= MAX_STOP
            for text in texts
        )
    ):
        raise bad(
            f"'stop' must be a text, or a list of at most {MAX_STOPS} texts, of 1 to {MAX_STOP} UTF-8 bytes.",
            "stop",
        )
    return texts


def chat_logprobs(document: dict[str, Any]) -> int | None:
    """Returns the number of likeliest tokens beside each token; None if no log-probs are wanted."""
    if "logprobs" not in document and "top_logprobs" not in document:
        return None
    wanted = flag(document, "logprobs", False)
    count = whole("top_logprobs", document.get("top_logprobs"), 0, 20)
    if count and not wanted:
        raise bad("'top_logprobs' needs 'logprobs': give true.", "top_logprobs")
    return count or 0 if wanted else None


def usage_in_stream(document: dict[str, Any]) -> bool:
    """Returns whether a stream ends with a chunk that holds the usage."""
    given = document.get("stream_options")
    if given is None:
        return False
    if not isinstance(given, dict):
        raise bad("'stream_options' must be an object.", "stream_options")
    for name, value in given.items():
        if name != "include_usage" and value not in (None, False):
            problem = f"'stream_options.{name[:64]}' is not supported: use 'include_usage'."
            raise bad(problem, "stream_options")
    return flag(given, "include_usage", False)


def choices(document: dict[str, Any], stream: bool) -> int:
    """Returns ``n``, the number of choices."""
    if "n" not in document:
        return 1
    count = whole("n", document.get("n"), 1, MAX_CHOICES) or 1
    if count > 1 and stream:
        raise bad("'n' above 1 is not supported with 'stream': make several calls, or do not stream.", "n")
    return count


def _bias(given: Any) -> dict[str, float]:
    if given is None:
        return {}
    if not isinstance(given, dict) or len(given) > MAX_BIAS:
        raise bad(f"'logit_bias' must be an object of at most {MAX_BIAS} token ids.", "logit_bias")
    bias: dict[str, float] = {}
    for token, value in given.items():
        is_id = token.isascii() and token.isdigit() and len(token) < 10
        is_value = isinstance(value, int | float) and not isinstance(value, bool) and -100 <= value <= 100
        if not is_id or not is_value:
            raise bad("'logit_bias' must map token ids to numbers from -100 to 100.", "logit_bias")
        if value:  # 0 changes nothing, so the tokens stay samples of the policy alone
            bias[str(int(token))] = float(value)
    return bias


def _schema(given: Any) -> tuple[dict[str, Any] | None, bool]:
    """Returns the schema of a ``response_format``, and whether it only asks for some object."""
    if given is None or given == {}:
        return None, False
    kind = given.get("type") if isinstance(given, dict) else None
    if not isinstance(given, dict) or kind not in ("text", "json_object", "json_schema"):
        raise bad("'response_format' must have the type text, json_object or json_schema.", "response_format")
    if kind != "json_schema":
        refuse_more(given, ("type",), "response_format")
        return ({"type": "object"}, True) if kind == "json_object" else (None, False)
    inner = given
    if "json_schema" in given:
        refuse_more(given, ("type", "json_schema"), "response_format")
        inner = given["json_schema"]
    if isinstance(inner, dict):  # the responses API has the schema in the format itself
        names = ("name", "description", "schema", "strict")
        refuse_more(inner, names if inner is not given else ("type", *names), "response_format")
    schema = inner.get("schema") if isinstance(inner, dict) else None
    if not isinstance(schema, dict) or is_unfit(schema, MAX_DEPTH):
        raise bad(
            f"'response_format' must hold a JSON Schema of at most {MAX_DEPTH} levels as its 'schema'.",
            "response_format",
        )
    return schema, False
