"""Events of fetches, and the notifications that they are made of.

The usual notification is decoded from the wire straight into an ``Event``; ``subscription`` decides which of them the
consumer sees.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from jetbus.errors import JetError
from jetbus.json_types import Json
from jetbus.schema import GOOD, Quality, Schema, read_quality, read_schema


class Receipt:
    """Moment at which messages arrived together. All receipts are equal: events are compared without it."""

    __slots__ = ("at_s",)

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Receipt)

    def __hash__(self) -> int:
        return 0


_NO_RECEIPT = Receipt(0.0)
"""Receipt of an event that was made by hand."""

# The events of one receipt share it, and a datetime is made only when it is read, so the time of an event costs a few
# nanoseconds. A context variable, because peers in several threads receive at once, and because its ``get`` is the
# cheapest call that a decoder can make for a field that the wire does not have.
current_receipt: ContextVar[Receipt] = ContextVar("receipt", default=_NO_RECEIPT)


def note_receipt() -> None:
    """Note that messages have arrived now; events that are made next in this thread refer to it."""
    current_receipt.set(Receipt(time.time()))


_RENAMED = {
    "kind": "event",
    "fetch_only": "fetchOnly",
    "receipt": "(received)",
    "told_schema": "schema",
    "told_quality": "quality",
    "told_record": "recorded",
}


class Recorded(NamedTuple):
    """Place of an event in the daemon's journal."""

    seq: int
    ts: str
    event: str
    """Name of the event there: ``add``, ``change``, ``remove`` or ``describe``."""


class Event(Struct, frozen=True, gc=False, rename=_RENAMED):
    """Event of a state or method: ``add``, ``change`` or ``remove``. Methods are without a value.

    The usual notification is decoded from the wire straight into an event.
    """

    kind: str = ""
    path: str = ""
    value: Any = None
    fetch_only: bool = False
    receipt: Any = field(default_factory=current_receipt.get)
    """The ``Receipt`` of the message; daemons send no member of its name."""
    is_method: bool = False
    is_node: bool = False
    """True if a node appeared or vanished, for a fetch with ``nodes``; nodes are without a value."""
    problem: JetError | None = None
    """Why the value could not be read: at all, which leaves None, or as the type that was asked for."""
    ts: str = ""
    """When it happened, for events that a fetch with ``since`` replays; with ``meta``, when its owner measured it."""
    stale: bool = False
    """True if the owner has not changed the state for as long as its schema allows, for a fetch with ``meta``."""
    told_schema: Json = UNSET
    """Schema of the state as its owner wrote it, for a fetch with ``schema``; ``schema`` is easier to use."""
    told_quality: Json = None
    """Quality of the value as its owner wrote it, for a fetch with ``meta``; ``quality`` is easier to use."""
    told_record: Json = None
    """Place in the journal as the daemon wrote it, for a fetch with ``recorded``; ``recorded`` is easier to use."""

    @property
    def recorded(self) -> Recorded | None:
        """Place in the journal: ``seq``, ``ts`` and ``event``; None if it has none, or the fetch did not ask."""
        told = self.told_record
        return Recorded(told["seq"], told["ts"], told["event"]) if isinstance(told, dict) else None

    @property
    def schema(self) -> Schema | None:
        """Description of the state or method; None if it has none, or the fetch did not ask."""
        told = self.told_schema
        return None if told is UNSET else read_schema(told if isinstance(told, str | dict) else None)

    @property
    def quality(self) -> Quality:
        """Trust in the value: ``level`` and ``reason``. Good if the owner does not say otherwise."""
        try:
            return GOOD if self.told_quality is None else read_quality(self.told_quality)
        except ValueError:
            return GOOD

    @property
    def received(self) -> datetime:
        """Time at which this peer received it, in UTC."""
        at_s = self.receipt.at_s if isinstance(self.receipt, Receipt) else 0.0
        return datetime.fromtimestamp(at_s, UTC)

    def __repr__(self) -> str:
        fields = (f"{name}={getattr(self, name)!r}" for name in self._shown_fields())
        return f"Event({', '.join(fields)})"

    def _shown_fields(self) -> list[str]:
        told = [name for name, default in _ASKED if getattr(self, name) != default]
        return [name for name in self.__struct_fields__ if name in told or name not in _RARELY_SHOWN]


_ASKED: list[tuple[str, Any]] = [
    ("stale", False),
    ("told_schema", UNSET),
    ("told_quality", None),
    ("told_record", None),
]
"""Fields that only fetches have that ask for them, with the values that say nothing."""
_RARELY_SHOWN = {"receipt", *(name for name, _ in _ASKED)}


class Notification(Struct, gc=False):
    """Parameters of any notification of a fetch, plain or sorted."""

    path: str = ""
    event: str = ""
    value: Json = UNSET
    fetchOnly: bool = False  # noqa: N815 - the wire's name
    changes: list[Json] | UnsetType = UNSET
    n: int = 0
    type: str = ""
    """``node`` for the event of a node."""
    ts: str = ""
    stale: bool = False
    told_schema: Json = field(default=UNSET, name="schema")
    told_quality: Json = field(default=None, name="quality")
    told_record: Json = field(default=None, name="recorded")


# -- parts of descriptions

About = tuple[Json, Json, bool]
"""Schema, quality and staleness of a state, as they were told."""
NO_DESCRIPTION: About = (UNSET, None, False)


def is_described(event: Event) -> bool:
    """Return True if an event has a schema or a quality, or says that its state is stale."""
    return event.told_schema is not UNSET or event.told_quality is not None or event.stale


def add_description(event: Event, about: About, record: Json = None) -> Event:
    schema, quality, stale = about
    return msgspec.structs.replace(event, told_schema=schema, told_quality=quality, stale=stale, told_record=record)


# -- events that are replaced

_MERGED = {
    ("add", "change"): "add",
    ("change", "change"): "change",
    ("change", "remove"): "remove",
    ("remove", "add"): "change",
}


def merge_events(older: Event, newer: Event) -> Event:
    """Return one event for two that the consumer has not seen yet."""
    kind = _MERGED.get((older.kind, newer.kind), newer.kind)
    if kind == newer.kind:
        return newer
    return msgspec.structs.replace(newer, kind=kind)
