"""Audiences of fetches that ask for schemas or meta data.

They are audiences of their own, so that all other fetches are sent the same bytes at the same cost as without
them. An event is encoded as usual and then extended::

    JSON      {"path":"a","event":"change","value":7        ,"ts":"2026-03-01T12:00:00.000000Z","quality":"bad"    }
    2012      {"event":"change","path":"a","data":{"value":7     ,"quality":"bad"     }}
    binary    kind and flag | path | value      | JSON object

Schemas come with ``add``, and with a ``change`` of the schema. Peers of 2012 are told them without asking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetbus.bus.audiences.audience import Audience
from jetbus.bus.audiences.binary import BinaryAudience
from jetbus.bus.descriptions import Asked
from jetbus.bus.replay import PastElement
from jetbus.rules import Rule
from jetbus.wire import binary
from jetbus.wire.dialects import Dialect
from jetbus.wire.framing import Framing
from jetbus.wire.notifications import add_members, add_timestamp

if TYPE_CHECKING:
    from jetbus.bus.access import Auth
    from jetbus.bus.tree import Element


class DescribedAudience(Audience):
    """JSON fetches that ask for schemas or meta data."""

    __slots__ = ()

    asked: Asked

    def __init__(
        self,
        fetch_id: bytes,
        rule: Rule,
        dialect: Dialect,
        framing: Framing,
        auth: Auth | None,
        every: bool,
        asked: Asked,
    ) -> None:
        super().__init__(fetch_id, rule, dialect, framing, auth, every)
        self.key = (*self.key, asked)
        self.is_plain = self.is_raw = False
        self.wants_schema = self.wants_schema or asked.schema
        self.wants_meta = asked.meta
        self.asked = asked
        if self.sorted_matches is not None:
            self.sorted_matches.asked = asked

    def encode_tail(self, kind: str, element: Element) -> bytes:
        return self._extend(super().encode_tail(kind, element), self._members(kind, element))

    def _members(self, kind: str, element: Element) -> bytes:
        """Return the requested parts as members, each with a comma in front."""
        if kind == "remove":
            return b""
        return self.asked.encode(element, schema=kind != "change" and not self.dialect.has_nodes)

    def _extend(self, tail: bytes, members: bytes) -> bytes:
        return add_members(tail, members, self.dialect.tail_end)

    def encode_past(self, kind: str, element: PastElement, _fetch_id: bytes) -> bytes:
        tail = self.dialect.encode_tail(kind, element, element.fetch_only)
        tail = self._extend(tail, self._past_members(kind, element, time=False))
        return self.frame(add_timestamp(tail, self.asked.choose_time(element)))

    def _past_members(self, kind: str, element: PastElement, *, time: bool) -> bytes:
        if kind == "remove":
            return b""
        return self.asked.encode_past(element, schema=kind == "add" and not self.dialect.has_nodes, time=time)

    def on_described(self, element: Element, data: bytes) -> None:
        if self.dialect.has_nodes:
            members = self.asked.encode(element, schema=False)
            super().on_described(element, data[:-1] + members + b"}" if data != b"{}" else data)
        else:
            super().on_described(element, data)

    def _send_described(self, element: Element) -> None:
        tail = Audience.encode_tail(self, "change", element)
        self.send("described", element.path, self._extend(tail, self._members("described", element)))


class DescribedBinaryAudience(DescribedAudience, BinaryAudience):
    """Binary fetches that ask for schemas or meta data."""

    __slots__ = ()

    def _extend(self, tail: bytes, members: bytes) -> bytes:
        return tail + binary.encode_members(members) if members else tail

    def _number(self, kind: str, element: Element) -> int:
        number = super()._number("change" if kind == "described" else kind, element)
        return number | binary.DESCRIBED if self._members(kind, element) else number

    def encode_past(self, kind: str, element: PastElement, fetch_id: bytes) -> bytes:
        number = binary.NOTIFICATIONS[kind] | (binary.FETCH_ONLY if element.fetch_only else 0)
        members = self._past_members(kind, element, time=True)
        tail = self.dialect.encode_tail(kind, element, element.fetch_only)
        if members:
            number, tail = number | binary.DESCRIBED, self._extend(tail, members)
        ts = binary.encode_instant(element.ts) if element.ts else b""
        return self._encode_event((number, tail + ts), fetch_id)

    def _send_described(self, element: Element) -> None:
        tail = Audience.encode_tail(self, "change", element)
        members = self._members("described", element)
        self.send_body(self._number("described", element), "described", element.path, self._extend(tail, members))
