"""What a client asks of an owner: the parameters of a set and of a call, and what the answer to a set means."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from jetbus.peer.values import plain_args, read_value


class SetResult(Struct, frozen=True):
    """The answer to a set: the owner's warning when it has adapted the value, the value when that was asked for."""

    value: Any = None
    warning_code: int | None = None
    warning: str | None = None

    @property
    def adapted(self) -> bool:
        """Whether the owner took another value than asked for."""
        return self.warning_code is not None


def read_set_result(result: Any) -> SetResult:
    """The answer to a set, whichever library the owner uses."""
    if result is None or result is True or result == DONE:
        return SET_DONE
    warning = result.get("warning") if isinstance(result, dict) else None
    if isinstance(result, dict) and result.keys() == _NODE_JET_3:
        return SET_DONE
    if isinstance(warning, dict):
        return SetResult(None, warning.get("code"), warning.get("message"))
    return SetResult(read_value(result))


def read_set_value(result: Any) -> SetResult:
    """The answer to a set that asked for the value."""
    return SetResult(read_value(result))


SET_DONE = SetResult()
"""What nearly every set ends in."""
DONE: dict[str, Any] = {}
"""How our owners answer it."""
_NODE_JET_3 = {"path", "value"}
"""The members of what owners of node-jet 3 answer."""


class SetParams(Struct, gc=False, omit_defaults=True):
    """The parameters of a set; the value is plain."""

    path: str
    value: Any
    timeout: float | None = None
    valueAsResult: bool = False  # noqa: N815 - the wire's name


def call_args(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a method is called with, as JSON can tell it."""
    if args and kwargs:
        raise TypeError("a Jet method takes positional or keyword arguments, not both")
    return plain_args(kwargs or args)


class CallParams(Struct, gc=False, omit_defaults=True):
    """The parameters of a call; the arguments are plain."""

    path: str
    args: Any
    timeout: float | None = None
