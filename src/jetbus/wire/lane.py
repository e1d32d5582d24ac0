"""The lane: the way of messages from the buffer of a connection to the bus.

    buffer   | change | change | add | change | chan
                  serve          |       |       waits for its other half
                               Message  serve

``Lane.serve`` cuts the frames of a buffer, checks each message and returns the first one that the bus has to handle.
``Lane.take`` does the same for a text that was cut already. The compiled lane (``_lane.c``) also handles the usual
messages itself: plain changes, sets, calls and results. What is sent, stored and recorded is the same either way.

The compiled lane reads and writes attributes of the bus's classes. They inherit from *cores*: base types with these
attributes. The cores here take their place without a compiler, or if the environment has ``JETBUS_PURE=1``.

Elements and sessions have *flags*, which say what the compiled lane may do with them. Functions of the bus judge that,
see ``bus.usual``. An assignment to an attribute that the judgement depends on makes the compiled core ask again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from jetbus.wire.framing import STREAM, WEBSOCKET

IS_PURE = os.environ.get("JETBUS_PURE", "") not in ("", "0")
"""True if everything is to run in Python, as it does where there is no compiler."""
SHORT_BYTES = 200
"""Length of a text up to which it is read and handled without a look at the clock."""
LONG_BYTES = 64 * 1024
"""Length from which on a text is long: to check and decode it cannot be cut, so that it may have to wait."""

CHANGES, ASKED = 2, 4
"""Flags of an element: changes of its owner are usual; sets or calls of it are."""
SENDS, ASKS, IN_STREAM, IN_WEBSOCKET, OWNS, IS_READY = 2, 4, 8, 16, 32, 64
"""Flags of a session: its changes and results may be usual; its sets and calls may be; it takes frames of a stream or
of a WebSocket; as an owner it takes requests in the classic form; its next message need not wait."""
FRAMING_FLAGS = {STREAM.name: IN_STREAM, WEBSOCKET.name: IN_WEBSOCKET}
"""Flags of the framings that the compiled lane knows, by name."""

Served = tuple[int, int, bytes | None, Any]
"""Position behind the last message that is handled or returned; number of messages handled; text of the message that
the bus has to handle, None if there is none; and what the intake made of it: None for a long text, which is not read
yet, and True for a text that has to wait because the turn is over."""


class PlainLane:
    """The lane in Python: returns every message."""

    def __init__(self, read: Callable[[bytes], Any], clock: Callable[[], float]) -> None:
        self._read = read
        self._clock = clock

    def serve(
        self,
        _session: SessionCore,
        data: bytes,
        at: int,
        turn_ends: float,
        _now: float,
        _record: Any,
        bytes_max: int,
        long_bytes: int,
    ) -> Served:
        """Handle the usual messages of a buffer from a position on; return the first that is not usual."""
        found = STREAM.cut(data, at)
        if found is None or found[1] - found[0] > bytes_max:
            return at, 0, None, None
        start, stop = found
        text = data[start:stop]
        if len(text) > SHORT_BYTES and self._clock() > turn_ends:
            return stop, 0, text, True
        return stop, 0, text, None if len(text) > long_bytes else self._read(text)

    def take(self, _session: SessionCore, text: bytes, _now: float, _record: Any) -> Any:
        """Return what the intake makes of a text; the compiled lane returns None for one that it has handled."""
        return self._read(text)


class ElementCore:
    """Attributes of a state or method."""

    __slots__ = (
        "access",
        "audiences",
        "description",
        "dialect",
        "fetch_only",
        "is_method",
        "meta",
        "number",
        "owner",
        "path",
        "path_json",
        "room",
        "timeout_s",
        "value",
    )

    usual_room: ClassVar[int]
    usual_description: ClassVar[Any]
    usual_dialect: ClassVar[Any]

    def __init__(
        self,
        path: str,
        path_json: bytes,
        value: bytes | None,
        owner: Any,
        is_method: bool = False,
        fetch_only: bool = False,
        access: Any = None,
        dialect: Any = None,
        /,
    ) -> None:
        self.path: Any = path
        self.path_json: Any = path_json
        self.value: Any = value
        self.owner: Any = owner
        self.is_method = is_method
        self.fetch_only = fetch_only
        self.access: Any = access
        self.timeout_s: Any = None
        self.description: Any = self.usual_description
        self.meta: Any = None
        self.dialect: Any = self.usual_dialect if dialect is None else dialect
        self.audiences: Any = ()
        self.number = 0
        self.room = self.usual_room


class SessionCore:
    """Attributes of a connected peer."""

    __slots__ = (
        "account",
        "batches",
        "condition",
        "dialect",
        "framing",
        "fresh",
        "label",
        "outbox",
        "routes",
        "speaks_jsonrpc",
        "wants_outcome",
    )


class RoutesCore:
    """Attributes of the open routes of a bus."""

    _count: int
    _deadline: float
    _bucket: Any


class LevelCore:
    """Attributes of a level of accounts."""

    __slots__ = ("kept_bytes",)


class AccountCore:
    """Attributes of the account of a peer."""

    __slots__ = ("address", "all", "peer")


class AudienceCore:
    """Attributes of an audience."""

    __slots__ = ("head", "lane_framing", "open_pieces")


class OutboxCore:
    """Attributes of an outbox."""

    __slots__ = ("_gather_max", "_gathered_bytes", "_last", "_parts", "slow")


class RouteCore:
    """Attributes of a route."""

    __slots__ = (
        "asked",
        "bucket",
        "by_jsonrpc",
        "id",
        "is_set",
        "kept_bytes",
        "message",
        "opened_us",
        "owner",
        "path",
        "request_id",
        "requested",
        "requester",
    )


compiled: Any = None
"""The module of the compiled lane, None if everything runs in Python."""
if not IS_PURE:
    with suppress(ImportError):
        compiled = import_module("jetbus.wire._lane")
if not TYPE_CHECKING and compiled is not None:
    AudienceCore, ElementCore, OutboxCore = compiled.AudienceCore, compiled.ElementCore, compiled.OutboxCore
    RouteCore, SessionCore = compiled.RouteCore, compiled.SessionCore
    RoutesCore, AccountCore, LevelCore = compiled.RoutesCore, compiled.AccountCore, compiled.LevelCore
