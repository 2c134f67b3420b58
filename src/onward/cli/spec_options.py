"""Options of a command made from the fields of a pydantic class, see ``training.spec.numbers.Option``."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import Parameter
from typing import Annotated, get_args

import typer
from pydantic import BaseModel

from onward.training.spec.numbers import DATA, LEARNING, NETWORK, PLAYING, RUN, bounds, options
from onward.training.spec.recipes import Recipe

_SIGNS = {"gt": "<", "ge": "<=", "lt": "<", "le": "<="}
_PANELS = (DATA, NETWORK, LEARNING, RUN, PLAYING)


def spec_options(*kinds: type[BaseModel]) -> Iterator[Parameter]:
    """Yields an option for each field of ``kinds`` that has one."""
    fields = [
        (kind.model_fields[name], name, option) for kind in kinds for name, option in options(kind).items()
    ]
    for field, name, option in fields:
        limits, types = bounds(field), (field.annotation, *get_args(field.annotation))
        plain = next((one for one in (int, float, bool) if one in types), str)
        made = typer.Option(
            option.name,
            help=field.description,
            rich_help_panel=option.panel,
            min=limits.get("ge") if plain is int else None,
            metavar=_range(limits) if plain is float else None,
        )
        default = None if field.is_required() or name in Recipe.__dataclass_fields__ else field.default
        annotation = Annotated[plain | None, made] if default is None else Annotated[plain, made]
        yield Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def by_panel(option: Parameter) -> int:
    """Returns the place of an option's panel in the help; arguments come first."""
    info = next(iter(get_args(option.annotation)[1:]), None)
    return -1 if info is None else _PANELS.index(info.rich_help_panel)


def _range(limits: dict[str, float]) -> str:
    """Returns the placeholder of a number, such as ``0<X<=1``, ``0<=X`` or ``X``."""
    low = [f"{at:g}{_SIGNS[key]}" for key, at in limits.items() if key in ("gt", "ge")]
    return "".join([*low, "X", *(f"{_SIGNS[key]}{limits[key]:g}" for key in ("lt", "le") if key in limits)])
