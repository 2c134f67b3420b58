"""A document as a list of text leaves, and back. Values and dict keys are leaves; structure never changes.

The walk copies the containers, so the caller's document is untouched. What a dict key says about its
value (``password``) travels down with the walk; the judgement is made in ``engine.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onward.capture.redaction.names import NameClass, secret_class
from onward.errors import RedactionError

MAX_DEPTH = 64
MAX_LEAVES = 500_000
MAX_TEXT = 32 << 20
"""Characters of all leaves together."""

Path = tuple[str | int, ...]

_SCHEMA_TYPES = frozenset(("string", "integer", "number", "boolean", "object", "array", "null"))
_PLAIN = (bool, int, float, type(None))


@dataclass(slots=True)
class Node:
    """One step of a path; the whole path is only built for leaves that change."""

    parent: Node | None
    step: str | int

    def path(self) -> Path:
        steps: list[str | int] = []
        node: Node | None = self
        while node is not None:
            steps.append(node.step)
            node = node.parent
        return tuple(reversed(steps))


@dataclass(slots=True)
class Leaf:
    """One text. ``holder[key]`` is where it goes back; for a key leaf ``holder`` is its dict."""

    text: str
    holder: Any
    key: Any
    node: Node | None
    is_key: bool = False
    governed: NameClass | None = None
    """The class of the secret-named key above this value, if any."""


class Walk:
    """Leaves in document order. ``root`` is a copy that ``write_back`` fills in."""

    def __init__(self, document: Any, fixed_keys: frozenset[str] = frozenset()) -> None:
        self.leaves: list[Leaf] = []
        self._fixed_keys = fixed_keys
        self._size = 0
        self._box: list[Any] = [None]
        self._visit(document, self._box, 0, None, None, 0)

    @property
    def root(self) -> Any:
        return self._box[0]

    def write_back(self) -> None:
        """Put the leaves' texts into the copy; renamed keys keep their order and never merge."""
        renamed: dict[int, tuple[dict[str, Any], dict[str, str]]] = {}
        for leaf in self.leaves:
            if leaf.is_key:
                if leaf.text != leaf.key and leaf.node is not None:
                    leaf.node.step = leaf.text  # a path must not tell what the key was
                    renamed.setdefault(id(leaf.holder), (leaf.holder, {}))[1][leaf.key] = leaf.text
            else:
                leaf.holder[leaf.key] = leaf.text
        for holder, names in renamed.values():
            items = list(holder.items())
            holder.clear()
            for key, value in items:
                name = base = names.get(key, key)
                number = 2
                while name in holder:
                    name, number = f"{base}#{number}", number + 1
                holder[name] = value

    def _add(self, leaf: Leaf) -> None:
        self._size += len(leaf.text)
        if len(self.leaves) >= MAX_LEAVES or self._size > MAX_TEXT:
            raise RedactionError("The document has too much text to be redacted; send it in parts.")
        self.leaves.append(leaf)

    def _visit(
        self, value: Any, holder: Any, key: Any, node: Node | None, governed: NameClass | None, depth: int
    ) -> None:
        kind = type(value)
        if kind is str:
            self._add(Leaf(value, holder, key, node, governed=governed))
            holder[key] = value
        elif kind in _PLAIN:
            if governed == "PASSWORD" and kind is int and value > 9999:
                self._add(Leaf(str(value), holder, key, node, governed=governed))
            holder[key] = value
        elif depth >= MAX_DEPTH:
            raise RedactionError(f"The document nests deeper than {MAX_DEPTH} levels; flatten it.")
        elif isinstance(value, dict):
            copy: dict[str, Any] = {}
            holder[key] = copy
            self._visit_dict(value, copy, node, governed, depth + 1)
        elif isinstance(value, (list, tuple)):
            items: list[Any] = [None] * len(value)
            holder[key] = items
            for i, item in enumerate(value):
                if type(item) in _PLAIN and governed is None:
                    items[i] = item
                else:
                    self._visit(item, items, i, Node(node, i), governed, depth + 1)
        else:
            raise RedactionError(
                f"The document holds a value of type {kind.__name__}; give text, numbers, lists and objects."
            )

    def _visit_dict(
        self,
        value: dict[Any, Any],
        copy: dict[str, Any],
        node: Node | None,
        governed: NameClass | None,
        depth: int,
    ) -> None:
        named = _named_value(value)
        for name, item in value.items():
            if type(name) is not str:
                raise RedactionError("The document has an object with a key that is not text.")
            here = Node(node, name)
            if name not in self._fixed_keys:
                self._add(Leaf(name, copy, name, here, is_key=True))
            below = secret_class(name) or governed
            if name == "value" and named:
                below = named
            if below and isinstance(item, dict) and _is_schema(item):
                below = None
            self._visit(item, copy, name, here, below, depth)


def _named_value(value: dict[Any, Any]) -> NameClass | None:
    """``{"name": "Authorization", "value": …}``: the name stands beside its value."""
    if "value" not in value:
        return None
    for label in ("name", "key", "header"):
        name = value.get(label)
        if type(name) is str:
            return secret_class(name)
    return None


def _is_schema(value: dict[Any, Any]) -> bool:
    """A JSON Schema under ``password`` describes a parameter; it is not a password."""
    kind = value.get("type")
    return "$ref" in value or "anyOf" in value or (type(kind) is str and kind in _SCHEMA_TYPES)
