"""Base of every document: how it is read and written, and which fields it tolerates."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, SkipValidation

from onward.clock import read_time, utc_text
from onward.contracts.base import Part
from onward.contracts.codec import canonical_json


def _moment(text: str) -> str:
    given = read_time(text)
    return text if datetime.fromisoformat(text).tzinfo else utc_text(given)


BEGINNING = "1970-01-01T00:00:00.000Z"
"""Time before every trajectory."""

T = TypeVar("T")

Loose = Annotated[T, SkipValidation]
"""A value that is read as it is: its reader checks it, or no one reads it."""

EmptyList = BeforeValidator(lambda value: value or [])
"""null counts as an empty list."""

EmptyObject = BeforeValidator(lambda value: value or {})
"""null counts as an empty object."""

Moment = Annotated[str, AfterValidator(_moment)]
"""A time in ISO 8601; one without an offset is read as UTC."""

NotNegative = Annotated[float, Field(ge=0)]

Truth = Annotated[bool, BeforeValidator(bool)]
"""Any JSON value, read as Python's truth of it."""


class Piece(Part):
    """A part of a document. Immutable like the document itself: a change is a copy (``model_copy``)."""

    model_config = ConfigDict(frozen=True)

    def with_unknown_fields(self, before: Part) -> Self:
        """Returns a copy with the undeclared fields of ``before``, at every level: a newer version wrote
        them. Parts in lists are matched by their position."""
        changes: dict[str, Any] = {
            name: value
            for name, value in (before.__pydantic_extra__ or {}).items()
            if name not in type(self).model_fields
        } | (self.__pydantic_extra__ or {})
        for name in type(self).model_fields:
            now = getattr(self, name)
            kept = _with_unknown_fields(now, getattr(before, name, None))
            if kept is not now:
                changes[name] = kept
        return self.model_copy(update=changes) if changes else self


def _with_unknown_fields(now: Any, before: Any) -> Any:
    if isinstance(now, Piece) and isinstance(before, Part):
        return now.with_unknown_fields(before)
    if isinstance(now, list) and isinstance(before, list) and any(isinstance(item, Piece) for item in now):
        older = [*before, *[None] * len(now)]
        return [_with_unknown_fields(item, older[index]) for index, item in enumerate(now)]
    return now


class Document(Piece):
    """The value of one key."""

    BUCKET: ClassVar[str]
    KEY: ClassVar[str] = ""
    """Key of this type; for a type with many keys, the prefix that they share (maybe empty)."""

    @classmethod
    def load(cls, data: bytes) -> Self:
        """Reads a stored value. Raises ValueError for whatever is no document of this type (pydantic's
        ValidationError for a wrong shape)."""
        try:
            document = cls.model_validate(json.loads(data))
            document.check()
            return document
        except (TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            raise ValueError(f"It is no {cls.__name__} ({type(error).__name__}).") from None

    def check(self) -> None:
        """Raises ValueError, KeyError or TypeError for a stored document that its readers could not use,
        beyond what the types say."""

    def own_key(self) -> str | None:
        """Returns the key under which this document belongs, if it names itself. Under another key it is
        unreadable: its writer would change another record."""
        return None

    def may_stand_in(self) -> bool:
        """Returns whether this older value of its key counts while the newest one cannot be read."""
        return True

    def dump(self) -> bytes:
        """Returns the value to store: canonical JSON, without the optional fields that were never set."""
        return canonical_json(self)


class Record(Document):
    """A full record: every field is written, also one that is null."""

    def dump(self) -> bytes:
        return canonical_json(self.model_dump(mode="json"))
