"""What the bus tells whoever keeps a record of it: every add, change and remove, and how sets and calls ended.

The record itself is elsewhere; the bus only has to be quick about telling it. ``change`` is the busy one and is called
directly. What the daemon says of itself is not recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from jetbus.wire import binary

if TYPE_CHECKING:
    from jetbus.bus.routes import Route
    from jetbus.bus.tree import Element


class Record(Protocol):
    """Who keeps the record. Values and details are JSON texts."""

    @property
    def now_us(self) -> int:
        """The instant that is recorded, in microseconds."""

    def change(self, path: str, value: bytes, peer: str, /) -> None:
        """A state has a new value."""

    def append(
        self,
        event: str,
        kind: str | None = None,
        path: str | None = None,
        value: bytes | None = None,
        peer: str | None = None,
        detail: bytes | None = None,
        /,
    ) -> None:
        """Anything else has happened."""


def kind_of(element: Element) -> str:
    """The kind of an element, in the words of the record."""
    return "method" if element.is_method else "state"


def tell_add(record: Record, element: Element) -> None:
    """A new element, with what its owner said about it."""
    told: dict[str, Any] = {}
    if element.fetch_only:
        told["fetchOnly"] = True
    if element.access is not None:
        told["access"] = element.access.wire()
    if element.timeout_s is not None:
        told["timeout"] = element.timeout_s
    if element.dialect.is_binary and element.body[0] not in (binary.NONE, binary.JSON):
        told["type"] = binary.mime_of(element.body)
    detail = msgspec.json.encode(told) if told else None
    record.append("add", kind_of(element), element.path, element.value, element.owner.label, detail)


def tell_remove(record: Record, element: Element) -> None:
    """An element is gone; its last value goes with it."""
    record.append("remove", kind_of(element), element.path, element.value, element.owner.label)


def tell_asked(record: Record, route: Route, error: Any = None) -> None:
    """A set or call has been answered: by its owner, or by the bus in its place."""
    told: dict[str, Any] = {"outcome": "ok", "us": record.now_us - route.opened_us, "owner": route.owner.label}
    if not route.request_id:
        told = {"outcome": "sent", "owner": route.owner.label}  # nobody waits for an answer
    elif error is not None:
        fields = error if isinstance(error, dict) else {"message": str(error)}
        told |= {"outcome": "error", "code": fields.get("code"), "error": fields.get("message")}
        if "data" in fields:
            told["data"] = fields["data"]
    event, kind = ("set", "state") if route.is_set else ("call", "method")
    record.append(event, kind, route.path, route.asked or None, route.requester.label, msgspec.json.encode(told))
