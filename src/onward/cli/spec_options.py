"""Options of a command made from the fields of a pydantic class, see ``training.spec.numbers.Option``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, get_args, get_type_hints

import typer
from pydantic import BaseModel

from onward.training.spec.numbers import DATA, LEARNING, NETWORK, PLAYING, RUN, bounds, options
from onward.training.spec.recipes import Recipe

_SIGNS = {"gt": "<", "ge": "<=", "lt": "<", "le": "<="}
_PANELS = (DATA, NETWORK, LEARNING, RUN, PLAYING)


def with_options(*kinds: type[BaseModel]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replaces ``**numbers`` of a command by one option for each field of ``kinds`` that has one."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        signature = inspect.signature(command)
        own = [
            parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            for name, parameter in signature.parameters.items()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        every = sorted([*own, *(made for kind in kinds for made in _parameters(kind))], key=_place)
        command.__signature__ = signature.replace(parameters=every)  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in every}
        return command

    return decorate


def given(ctx: typer.Context, name: str) -> bool:
    """True if the option was on the command line."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _parameters(kind: type[BaseModel]) -> Iterator[inspect.Parameter]:
    for name, option in options(kind).items():
        field = kind.model_fields[name]
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
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _range(limits: dict[str, float]) -> str:
    """Returns the placeholder of a number, such as ``0<X<=1``, ``0<=X`` or ``X``."""
    low = [f"{at:g}{_SIGNS[key]}" for key, at in limits.items() if key in ("gt", "ge")]
    return "".join([*low, "X", *(f"{_SIGNS[key]}{limits[key]:g}" for key in ("lt", "le") if key in limits)])


def _place(parameter: inspect.Parameter) -> int:
    info = next(iter(get_args(parameter.annotation)[1:]), None)
    return -1 if info is None else _PANELS.index(info.rich_help_panel)
