"""What the bus tells whoever keeps a record of it: every add, change and remove, and how sets and calls ended.

The record itself is elsewhere; the bus only has to be quick about telling it. ``note`` is the busy one and is called
directly. What the daemon says of itself is not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from jetbus.wire import binary

if TYPE_CHECKING:
    from jetbus.bus.bus import Bus
    from jetbus.bus.routes import Route
    from jetbus.bus.tree import Element


class Record(Protocol):
    """Who keeps the record. Values and details are JSON texts."""

    @property
    def now_us(self) -> int:
        """The instant that is recorded, in microseconds."""

    @property
    def note(self) -> Callable[[tuple[str, bytes, str]], None]:
        """What to call with path, value and peer when a state has a new value; another one after each commit."""

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


def tell_add(record: Record, element: Element, *, again: bool = False) -> None:
    """A new element, with what its owner said about it; or one that is there already, told again."""
    told: dict[str, Any] = {"again": True} if again else {}
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


def tell_again(record: Record, bus: Bus, paths: Iterable[str]) -> None:
    """What these paths are now: the record has missed something about them."""
    for path in paths:
        element = bus.tree.elements.get(path)
        if element is None:
            record.append("remove", None, path)
        elif not bus.own.has(element):
            tell_add(record, element, again=True)


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
