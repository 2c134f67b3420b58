"""Options of a command that are made from the fields of a class."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints

import typer


def with_options(
    name: str,
    options: Iterable[Parameter],
    *,
    build: Callable[..., Any] | None = None,
    order: Callable[[Parameter], int] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorates a command: ``options`` take the place of its parameter ``name``.

    ``build`` makes the value of the parameter from them. Without it the command receives each one, as
    ``**name``. ``order`` sorts all options of the command.
    """
    options = list(options)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        parameters: list[Parameter] = []
        for own in signature(command).parameters.values():
            if own.name == name:
                parameters += options
            else:
                parameters.append(own.replace(annotation=hints[own.name], kind=Parameter.KEYWORD_ONLY))
        if order is not None:
            parameters.sort(key=order)

        @wraps(command)
        def run(**given: Any) -> None:
            if build is not None:
                given[name] = build(**{option.name: given.pop(option.name) for option in options})
            command(**given)

        run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def was_given(ctx: typer.Context, name: str) -> bool:
    """True if the option was on the command line."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
