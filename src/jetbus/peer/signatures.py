"""Signatures in which every option has its name, for ``help()``, completion and the reference.

Options that many methods share are written once: as a ``TypedDict`` (``Described``), or as the keywords of a function
(``rule``). The methods take them as ``**options``, which alone would hide their names. Nothing here changes a call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any, ForwardRef, TypeVar, is_typeddict

F = TypeVar("F", bound=Callable[..., Any])


def show_options(source: Any = None, *, without: tuple[str, ...] = ()) -> Callable[[F], F]:
    """Decorate a function to show the options of ``source`` by name in the place of its ``**options``.

    Positional arguments that it takes only to refuse them, ``*misplaced``, are hidden.
    """

    def decorate(function: F) -> F:
        shown = inspect.signature(function)
        kept = [
            parameter
            for parameter in shown.parameters.values()
            if parameter.kind not in (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL)
        ]
        names = {parameter.name for parameter in kept}.union(without)
        options = [option for option in _get_options(source) if option.name not in names]
        function.__signature__ = Signature(  # type: ignore[attr-defined]
            [*kept, *options], return_annotation=shown.return_annotation
        )
        return function

    return decorate


def _get_options(source: Any) -> list[Parameter]:
    if source is None:
        return []
    if is_typeddict(source):
        return [
            Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=_show_type(kind))
            for name, kind in source.__annotations__.items()
        ]
    parameters = inspect.signature(source).parameters.values()
    return [parameter for parameter in parameters if parameter.kind is Parameter.KEYWORD_ONLY]


def _show_type(kind: Any) -> Any:
    """Return the type of an option as it is written, like those of all others."""
    return f"{kind.__forward_arg__} | None" if isinstance(kind, ForwardRef) else kind
