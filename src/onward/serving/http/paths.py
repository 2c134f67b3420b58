"""Sentences for a path or method that the gateway does not serve: they name what it does serve. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import FastAPI

Served = Mapping[str, frozenset[str]]
"""Path, with names in braces for its variable parts → its methods."""
_CHAT = "/v1/chat/completions"
_OTHER_APIS = {
    "completions": "that part of completions", "responses": "stored responses", "embeddings": "embeddings",
    "audio": "audio", "images": "images", "files": "files", "batches": "batches", "threads": "threads",
    "assistants": "assistants", "moderations": "moderations",
    "fine_tuning": "fine-tuning", "realtime": "the realtime API", "vector_stores": "vector stores",
}  # fmt: skip


def served_by(app: FastAPI) -> Served:
    """Returns the paths of an app without its documentation pages."""
    found: dict[str, frozenset[str]] = {}
    for route in app.routes:
        methods = getattr(route, "methods", None)
        if methods and getattr(route, "include_in_schema", True):
            path = str(getattr(route, "path", "")).replace(":path}", "}")
            found[path] = found.get(path, frozenset()) | (set(methods) - {"HEAD"})
    return found


def not_found(path: str, base_url: str, served: Served) -> str:
    """Returns the sentence for an unknown path: a wrong base URL, another API of OpenAI's, or a list."""
    base, shown = base_url.rstrip("/"), path[:80]
    if path.endswith("/chat/completions") or f"/v1{path}" in served:
        return f"There is no {shown} here: the base URL for an OpenAI client is {base}/v1."
    first = path.removeprefix("/v1/").partition("/")[0]
    if path.startswith("/v1/") and first in _OTHER_APIS:
        return (
            f"There is no {shown} here: this gateway does not serve {_OTHER_APIS[first]}. Use POST {_CHAT}."
        )
    return f"There is no {shown} here. This gateway serves {_listed(served)}."


def wrong_method(method: str, path: str, served: Served) -> str:
    """Returns the sentence for a known path with a method that it does not have."""
    methods = sorted(served.get(path, ()))
    if not methods:
        return f"{method} is not a method of {path[:80]}. This gateway serves {_listed(served)}."
    return f"{method} is not a method of {path[:80]}: use {' or '.join(methods)}."


def _listed(served: Served) -> str:
    ours = {path: methods for path, methods in served.items() if path.startswith("/v1/")}
    return ", ".join(f"{' or '.join(sorted(methods))} {path}" for path, methods in ours.items())
