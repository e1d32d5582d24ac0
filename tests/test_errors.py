"""Errors of the bus as objects: what becomes of them between processes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from jetbus import errors
from jetbus.bridge.status import SameBus
from jetbus.errors import JetError, from_wire

MADE: dict[type[JetError], Callable[[], JetError]] = {
    errors.JetError: lambda: JetError("text", {"a": 1}),
    errors.ParseError: lambda: errors.ParseError("{"),
    errors.InvalidRequest: lambda: errors.InvalidRequest([1]),
    errors.UnknownService: lambda: errors.UnknownService("fly"),
    errors.Reserved: lambda: errors.Reserved("a/b", 3.0),
    errors.AddNotAllowed: lambda: errors.AddNotAllowed("a/b", "ann", ["crew"]),
    errors.LoginRefused: lambda: errors.LoginRefused(user_known=False),
    errors.AlreadyFetching: errors.AlreadyFetching,
    errors.OwnerLost: errors.OwnerLost,
    errors.LimitReached: lambda: errors.LimitReached("peers_max", 3, "too many peers"),
    errors.TimedOut: lambda: errors.TimedOut({"path": "a/b"}),
    errors.Refused: lambda: errors.Refused("too fast", {"message": "slow down"}, code=7),
    errors.NotConnected: lambda: errors.NotConnected("gone"),
    errors.ConnectionLost: lambda: errors.ConnectionLost("gone"),
    errors.MessageTooLong: lambda: errors.MessageTooLong("a/b", 600),
    errors.InvalidValue: lambda: errors.InvalidValue("a/b", "not a number"),
    errors.TooSlow: lambda: errors.TooSlow("too slow"),
}
"""How to make the errors that are not made of a subject, or of a text."""
WIRE: dict[str, Any] = {
    "not found": {"code": -32602, "message": "Invalid params", "data": {"pathNotExists": "a/b"}},
    "timed out": {"code": -32001, "message": "Response Timeout", "data": {"path": "a/b"}},
    "limit of a daemon": {"code": -32603, "message": "Internal error", "data": {"reason": "routing table full"}},
    "an owner's": {"code": 17, "message": "jammed", "data": [1, {"a": None}]},
}


def make(kind: type[JetError]) -> JetError:
    return MADE[kind]() if kind in MADE else kind("a/b")


def find_kinds() -> list[type[JetError]]:
    return [JetError, SameBus, *(kind for name in errors.__all__ if _is_error(kind := getattr(errors, name)))]


def _is_error(member: Any) -> bool:
    return isinstance(member, type) and issubclass(member, JetError) and member is not JetError


@pytest.mark.parametrize("kind", find_kinds(), ids=lambda kind: kind.__name__)
def test_an_error_survives_pickling(kind: type[JetError]) -> None:
    """An error that another process sends is the same: its type, text, path, code and data, and how it is written."""
    check_copies(make(kind))


@pytest.mark.parametrize("name", WIRE)
def test_an_error_from_the_wire_survives_pickling(name: str) -> None:
    """So is one that a daemon or an owner has sent."""
    check_copies(from_wire(WIRE[name]))


def check_copies(error: JetError) -> None:
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301
        assert type(other) is type(error)
        assert (str(other), other.path, other.data, other.args) == (str(error), error.path, error.data, error.args)
        assert other.wire() == error.wire()
        assert vars(other) == vars(error)
