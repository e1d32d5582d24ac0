"""Recorded events: how adds, removes and the outcomes of sets and calls are written to the journal.

Changes of states are so frequent that the bus calls ``EventRecorder.note`` directly. The daemon's own states are not
recorded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw

from jetbus.json_types import ErrorObject, JsonObject
from jetbus.wire import binary

if TYPE_CHECKING:
    from jetbus.bus.bus import Bus
    from jetbus.bus.ports import EventRecorder
    from jetbus.bus.routes import Route
    from jetbus.bus.tree import Element


def name_kind(element: Element) -> str:
    """Return the kind of an element as the journal names it."""
    return "method" if element.is_method else "state"


def record_add(record: EventRecorder, element: Element, *, again: bool = False) -> None:
    """Record an element with its properties; ``again`` marks one that existed before, after a gap."""
    encoded = _encode_detail(element, {"again": True} if again else {})
    fields = "add", name_kind(element), element.path, element.value, element.owner.label, encoded
    if element.meta is None:
        record.append(*fields)
    else:
        record.append(*fields, element.meta.source_us, element.meta.quality)


def record_description(record: EventRecorder, element: Element) -> None:
    """Record an element that its owner describes anew; its value is recorded on its own."""
    # The detail is complete, so that readers need no earlier event to know the element.
    detail = _encode_detail(element, {})
    record.append("describe", name_kind(element), element.path, None, element.owner.label, detail)


def _encode_detail(element: Element, detail: JsonObject) -> bytes | None:
    """Encode all that the journal keeps of an element beside its value; None if there is nothing."""
    if element.fetch_only:
        detail["fetchOnly"] = True
    if element.access is not None and (lists := element.access.wire()):
        detail["access"] = lists
    if element.timeout_s is not None:
        detail["timeout"] = element.timeout_s
    if element.dialect.is_binary and element.body[0] not in (binary.NONE, binary.JSON):
        detail["type"] = binary.read_mime(element.body)
    if element.schema is not None:
        detail["schema"] = Raw(element.schema)
    return msgspec.json.encode(detail) if detail else None


def record_remove(record: EventRecorder, element: Element) -> None:
    """Record the removal of an element, with its last value."""
    record.append("remove", name_kind(element), element.path, element.value, element.owner.label)


def record_present(record: EventRecorder, bus: Bus, paths: Iterable[str]) -> None:
    """Record the present elements at these paths after their events were dropped."""
    for path in paths:
        element = bus.tree.elements.get(path)
        if element is None:
            record.append("remove", None, path)
        elif not bus.builtin.owns(element):
            record_add(record, element, again=True)


def record_outcome(record: EventRecorder, route: Route, error: ErrorObject | str | None = None) -> None:
    """Record a set or call when it is answered, by its owner or by the bus in its place."""
    detail: JsonObject = {"outcome": "ok", "us": record.now_us - route.opened_us, "owner": route.owner.label}
    if not route.request_id:
        detail = {"outcome": "sent", "owner": route.owner.label}  # the requester wants no answer
    elif error is not None:
        fields = error if isinstance(error, dict) else {"message": str(error)}
        detail |= {"outcome": "error", "code": fields.get("code"), "error": fields.get("message")}
        if "data" in fields:
            detail["data"] = fields["data"]
    event, kind = ("set", "state") if route.is_set else ("call", "method")
    record.append(event, kind, route.path, route.asked or None, route.requester.label, msgspec.json.encode(detail))
