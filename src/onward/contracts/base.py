"""Base of every message of the bus: two base classes, the strict scalar types, field makers.

The models follow JSON Schema's idea of a type, not pydantic's: "1" is no number, true is no integer, 1.0 is
an integer. A field made with ``optional`` may be None in Python and is left out of the JSON. One made with
``nullable`` is written as null. One made with ``own_field`` is in an open part of a published schema: on
decoding, a value of another shape is kept unchanged but read as None.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import (
    AllowInfNan,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PlainSerializer,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic.types import Strict
from pydantic_core import PydanticCustomError

from onward.clock import utc_text
from onward.ids import ID_PATTERN, is_id

KEEP_FOREIGN = {"foreign": "keep"}
"""Validation context of the decoder: values of another shape in an ``own_field`` are kept, not refused."""

MAX_FAULTS = 100
"""Faults of one value that are examined one by one; a hostile message can have a million."""

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)", re.ASCII)


def _timestamp(value: object) -> datetime:
    if isinstance(value, str):
        text = value.upper()
        if not _RFC3339.fullmatch(text):
            raise PydanticCustomError("timestamp", "should be an RFC 3339 date-time with an offset")
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise PydanticCustomError("timestamp", "should be a date-time that exists") from None
    elif isinstance(value, datetime):
        moment = value
    else:
        raise PydanticCustomError("timestamp", "should be an RFC 3339 date-time with an offset")
    if moment.tzinfo is None:
        raise PydanticCustomError("timestamp", "should be a date-time with an offset")
    try:
        moment = moment.astimezone(UTC)
    except OverflowError:
        raise PydanticCustomError("timestamp", "should be a date-time within the years 1 to 9999") from None
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _id(value: object) -> object:
    if isinstance(value, str) and not is_id(value):
        raise PydanticCustomError("id", "should be 1 to 128 letters, digits, '_' or '-'")
    return value


def _whole(value: object) -> object:
    return int(value) if type(value) is float and value.is_integer() else value


Text = Annotated[str, Strict()]
Flag = Annotated[bool, Strict()]
Number = Annotated[float, Strict(), AllowInfNan(False)]
"""A finite number; true and "1" are refused."""
Share = Annotated[Number, Field(ge=0, le=1)]
"""A number in [0, 1]."""
_COUNT = Annotated[int, Field(ge=0)]
_POSITIVE = Annotated[int, Field(ge=1)]
Count = Annotated[int, Strict(), Field(ge=0), BeforeValidator(_whole, json_schema_input_type=_COUNT)]
"""An integer in JSON Schema's sense, 0 or more: 3 and 3.0, not true and not "3"."""
Positive = Annotated[int, Strict(), Field(ge=1), BeforeValidator(_whole, json_schema_input_type=_POSITIVE)]
"""An integer in JSON Schema's sense, 1 or more."""
TokenId = Annotated[int, Strict(), Field(ge=0)]
Object = dict[Text, Any]
T = TypeVar("T")
ListOf = Annotated[list[T], Field(fail_fast=True)]
"""A list that is refused at its first bad item."""
Id = Annotated[
    str,
    BeforeValidator(_id, json_schema_input_type=str),
    Strict(),
    WithJsonSchema({"type": "string", "pattern": f"^{ID_PATTERN.pattern}$"}),
]
"""An id that may become a path, a subject token or a key (``onward.ids``). UUIDs qualify."""
SessionId = Annotated[str, Strict(), StringConstraints(min_length=1, max_length=512)]
"""Any text of 1 to 512 characters: it comes from the agent and is never used unchanged as a key."""
Timestamp = Annotated[
    datetime,
    BeforeValidator(_timestamp, json_schema_input_type=str),
    PlainSerializer(utc_text, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""An aware datetime in UTC, cut to milliseconds; text in RFC 3339 on the wire."""


class Shape:
    """Form of a field in JSON: the facts that the schema generator and the encoder need beyond its type."""

    def __init__(self, *, nullable: bool = False, ours: bool = False) -> None:
        self.nullable = nullable
        self.ours = ours

    def __call__(self, schema: dict[str, Any]) -> None:
        """Turns pydantic's schema of an optional field (default null, anyOf null) into JSON Schema's own."""
        if schema.get("default", ...) is None:
            del schema["default"]
        members = schema.pop("anyOf", None)
        if members is None:
            members = [{key: schema.pop(key) for key in list(schema) if key not in _ANNOTATIONS}]
        if not self.nullable:
            members = [member for member in members if member != {"type": "null"}]
        if self.ours:
            members.append(True)
        if len(members) == 1:
            schema.update(members[0])
        else:
            schema["anyOf"] = members


_ANNOTATIONS = frozenset({"title", "description", "examples", "default"})


def required(description: str, **more: Any) -> Any:
    return Field(description=description, **more)


def optional(description: str, **more: Any) -> Any:
    """Makes a field that is absent in JSON if it is None in Python."""
    return Field(default=None, description=description, json_schema_extra=Shape(), **more)


def nullable(description: str, **more: Any) -> Any:
    """Makes a field that is null in JSON if it is set to None in Python."""
    return Field(default=None, description=description, json_schema_extra=Shape(nullable=True), **more)


def own_field(description: str, **more: Any) -> Any:
    """Makes an optional field of Onward's own, in a part that the published schema leaves open."""
    return Field(default=None, description=description, json_schema_extra=Shape(ours=True), **more)


class Part(BaseModel):
    """A nested object. Open: undeclared fields are kept."""

    model_config = ConfigDict(extra="allow", validate_assignment=True, hide_input_in_errors=True)

    null_fields: ClassVar[frozenset[str]] = frozenset()
    """Fields that may be written as null."""
    our_fields: ClassVar[frozenset[str]] = frozenset()
    """Fields of Onward's own in an open part of a published schema."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        shapes = {name: field.json_schema_extra for name, field in cls.model_fields.items()}
        cls.null_fields = frozenset(n for n, s in shapes.items() if isinstance(s, Shape) and s.nullable)
        cls.our_fields = frozenset(n for n, s in shapes.items() if isinstance(s, Shape) and s.ours)


class ExtendedPart(Part):
    """A nested object of a published schema to which Onward adds its own fields."""

    @model_validator(mode="wrap")
    @classmethod
    def _keep_foreign_values(
        cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Self:
        if info.context is not KEEP_FOREIGN or not isinstance(data, dict):
            return handler(data)
        foreign = {name for name in cls.our_fields if data.get(name, ...) is None}
        try:
            known = handler(_without(data, foreign))
        except ValidationError as error:
            if error.error_count() > len(cls.our_fields) * MAX_FAULTS:
                raise
            faulty = {str(fault["loc"][0]) if fault["loc"] else "" for fault in error.errors()}
            if not faulty <= cls.our_fields:
                raise
            foreign |= faulty
            known = handler(_without(data, foreign))
        if known.__pydantic_extra__ is not None:
            known.__pydantic_extra__.update({key: data[key] for key in foreign})
        return known


def _without(data: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in names} if names else data


class Message(Part):
    """A whole message. Closed: an undeclared field is refused."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, hide_input_in_errors=True)
