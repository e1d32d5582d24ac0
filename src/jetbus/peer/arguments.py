"""Checks of the arguments that programs give a peer, with advice for those that cannot work.

A wrong argument is found where it is given. Otherwise a callback that cannot be called would only fail with its first
event, perhaps days later, and on another thread than the one that has made the mistake. Nothing here knows the bus.
"""

from __future__ import annotations

import builtins
from typing import Any, get_args

import msgspec


def check_function(function: object, option: str, advice: str) -> None:
    """Raise ``TypeError`` unless an argument can be called."""
    if not callable(function):
        raise TypeError(f"{option} is {function!r}, which cannot be called; {advice}")


def refuse_positional(url: object, misplaced: tuple[object, ...]) -> None:
    """Raise ``TypeError`` if more than the address of a daemon was given by position."""
    if not misplaced:
        return
    if isinstance(url, str) and isinstance(misplaced[0], int) and "://" not in url:
        raise TypeError(f"host and port are one text, the address of the daemon: use 'jet://{url}:{misplaced[0]}'")
    raise TypeError(f"only the address of the daemon has no name; give {misplaced[0]!r} by name, as in name='pump'")


def check_callback(callback: object, option: str) -> None:
    """Raise ``TypeError`` unless a callback is a function or None."""
    if callback is not None:
        check_function(callback, option, "give a function, or leave it out")


def check_type(value_type: Any) -> None:
    """Raise ``TypeError`` unless values can be converted to a type; None stands for no type."""
    if value_type is None:
        return
    if isinstance(value_type, str):
        named = getattr(builtins, value_type, None)
        meant = f"type={value_type}" if isinstance(named, type) else "for instance type=int"
        raise TypeError(f"type is the text {value_type!r}; give the type itself, {meant}")
    try:
        msgspec.json.Decoder(value_type)
    except TypeError as problem:
        text = str(problem).rstrip(".").partition("\n")[0]
        raise TypeError(
            f"values cannot be converted to type={value_type!r} ({text}); give a type such as int, list[float],"
            " a dataclass or a TypedDict"
        ) from None


def refuse_pickling() -> tuple[Any, ...]:
    """Raise ``TypeError`` instead of the error of a lock deep inside of a peer."""
    raise TypeError("a peer cannot be sent to another process; create one there, and send it paths and values")


def check_choice(chosen: object, option: str, choices: Any) -> None:
    """Raise ``ValueError`` unless a word is one of those of a ``Literal``."""
    words = get_args(choices)
    if chosen not in words:
        raise ValueError(f"{option} is {chosen!r}; use {' or '.join(map(repr, words))}")
