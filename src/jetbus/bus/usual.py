"""Judgement of elements and sessions: may the compiled lane serve them?

The lane does the frequent work for the usual case: classic events, no access lists, no schemas that values are checked
against, no tests of values. Whatever differs from that is handled in Python. This is the one place that knows what
differs. The lane asks when it meets an element or session, and again after each assignment to one of the attributes
that are read here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetbus.bus.account import FREE_BYTES, ROOM_KEPT, ROUTE_BYTES
from jetbus.bus.conditions import GONE, READY
from jetbus.bus.routes import Route
from jetbus.bus.tree import Element, TypedElement
from jetbus.wire.dialects import CLASSIC, NODE_JET_3
from jetbus.wire.lane import ASKED, ASKS, CHANGES, FRAMING_FLAGS, IS_READY, OWNS, SENDS, PlainLane, compiled

if TYPE_CHECKING:
    from jetbus.bus.bus import Bus
    from jetbus.bus.session import Session


def judge_element(element: Element) -> int:
    """Return the flags of an element."""
    if element.access is not None or isinstance(element, TypedElement):
        return 0
    flags = 0
    # Methods have meta data, too, and so never pass for states.
    if element.meta is None and all(one.is_plain and one.lane_framing for one in element.audiences):
        flags |= CHANGES
    if (
        not element.fetch_only
        and element.dialect is CLASSIC
        and element.timeout_s is None
        and element.description.limits is None
    ):
        flags |= ASKED
    return flags


def judge_session(session: Session) -> int:
    """Return the flags of a session."""
    flags = IS_READY if session.condition is READY else 0
    if session.dialect is not CLASSIC and session.dialect is not NODE_JET_3:
        return flags
    if session.batches is None and session.condition is not GONE:
        takes = FRAMING_FLAGS.get(session.framing.name, 0)
        flags |= takes
        # The daemon answers for its own elements; its session has number 0.
        if takes and session.number and session.dialect is CLASSIC and not session.speaks_jsonrpc:
            flags |= OWNS
    if session.condition is READY and not session.fresh:
        flags |= SENDS if session.wants_outcome else SENDS | ASKS
    return flags


def make_lane(bus: Bus) -> PlainLane:
    """Return the lane of a bus, as its limits are now."""
    intake, clock = bus.intake, bus.serving.clock
    if intake.reader is None:
        return PlainLane(intake.read, clock)
    limits = bus.limits
    sizes = (
        *(ROOM_KEPT, ROUTE_BYTES, FREE_BYTES),
        *(limits.routes_max, limits.kept_peer_bytes_max, limits.kept_address_bytes_max, limits.kept_bytes_max),
    )
    lane: PlainLane = compiled.Lane(
        intake.reader, bus.tree.elements, judge_element, judge_session, clock, Route, bus.routes, bus.timeout_s, sizes
    )
    return lane
