"""Audiences of fetches that ask where each event is in the journal (``"recorded": true``).

An event is recorded before it is announced, so the last event of the recorder is its record, if it was recorded at all.
An event that the journal leaves out (a repeated value, a sample that is held) has no such member; nor has one of a
daemon without a journal.

    {"path":"a","event":"change","value":7,"recorded":{"seq":12,"ts":"2026-03-01T12:00:00.000000Z","event":"change"}}

``event`` is the name in the journal, which differs for an element that is described anew, or that starts to match.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jetbus.bus.audiences.described import DescribedAudience, DescribedBinaryAudience
from jetbus.schema import write_time

if TYPE_CHECKING:
    from jetbus.bus.ports import EventRecorder
    from jetbus.bus.tree import Element

_DESCRIBES = ("describe", "remove")
"""Events with a record that may have another value than the element."""


class Places:
    """Places of events in the journal, as members of their notifications."""

    def __init__(self, find_record: Callable[[], EventRecorder | None]) -> None:
        self._find_record = find_record
        self._written = -1, b""
        """The instant that was written last, which the events of a turn share, and its text."""
        self.is_present = False
        """True while an element that was there before is announced to a new member: that is not an event."""

    def encode(self, element: Element) -> bytes:
        """Return the place of the last record as a member with a comma in front, if it is of this element."""
        record = None if self.is_present else self._find_record()
        last = None if record is None else record.find_last()
        if last is None or last.path != element.path:
            return b""
        if last.event not in _DESCRIBES and last.value != (element.value or b""):
            return b""
        if self._written[0] != last.ts_us:
            self._written = last.ts_us, write_time(last.ts_us).encode()
        return b',"recorded":{"seq":%d,"ts":"%b","event":"%b"}' % (last.seq, self._written[1], last.event.encode())


class _Recorded(DescribedAudience):
    """Fetches that ask for the place of events in the journal, in whatever form they are sent."""

    __slots__ = ()

    _places: Places

    def __init__(self, places: Places, *fields: Any) -> None:
        super().__init__(*fields)
        self._places = places  # type: ignore[misc]  # the slot is in the classes below

    def _members(self, kind: str, element: Element) -> bytes:
        return super()._members(kind, element) + self._places.encode(element)

    def encode_add(self, element: Element, fetch_id: bytes) -> bytes:
        self._places.is_present = True
        try:
            return super().encode_add(element, fetch_id)
        finally:
            self._places.is_present = False


class RecordedAudience(_Recorded):
    """JSON fetches that ask for the place of events in the journal."""

    __slots__ = ("_places",)


class RecordedBinaryAudience(_Recorded, DescribedBinaryAudience):
    """Binary fetches that ask for the place of events in the journal."""

    __slots__ = ("_places",)
