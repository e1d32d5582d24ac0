"""Fetch and get that start in the past.

A fetch with ``since`` first gets the matches at that instant as adds, then every event since, then goes on live. All of
it is read from the journal page by page, in a thread, and the next page is read when the peer has taken the one before:
a peer that reads nothing costs the daemon one page.

No event may be missing or sent twice where the past meets the present, although reading takes a while and the bus goes
on meanwhile. The last page is therefore read up to a *seam*, and events after the seam are collected in memory:

    since                                    seam                             the fetch joins
      |-- page -|-- page -|-- page -|-- page --|---- collected in memory -------|---- live ---->

Then the collected events are sent and the fetch joins its audience within one step. If the page up to the seam is not
the last one after all, or more is collected than may be kept, that is discarded: the journal has it, and a later page
brings it. Where the fetch joins, ``MatchReplay.catch_up`` corrects whatever the journal does not have, because a path
is recorded in samples or events were dropped. The event loop never waits for the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from jetbus.bus.tasks import READ, Step, Work
from jetbus.errors import Invalid, InvalidRule, JetError
from jetbus.json_types import Json, JsonObject
from jetbus.rules import Rule
from jetbus.wire import binary, jsonrpc
from jetbus.wire.dialects import NO_MEMBERS

if TYPE_CHECKING:
    from jetbus.bus.bus import Bus
    from jetbus.bus.fetches import PendingFetch
    from jetbus.bus.ports import History, Seam
    from jetbus.bus.session import Session
    from jetbus.bus.tree import Element


class PastElement(NamedTuple):
    """A state or method as it was at an instant, in the form that dialects encode."""

    path: str
    path_json: bytes
    value: bytes | None
    fetch_only: bool = False
    ts: str = ""
    schema: bytes | None = None
    others: Mapping[str, bytes] = NO_MEMBERS
    source_us: int | None = None
    """Time of the value by its owner, in microseconds since 1970; None if the owner has left it out."""
    quality: bytes | None = None
    """Quality of the value as JSON; None if the owner has left it out."""

    @property
    def key(self) -> bytes:
        """The path as the binary protocol has it."""
        return binary.encode_key(self.path)

    @property
    def body(self) -> bytes:
        """The value as the binary protocol has it."""
        return binary.EMPTY_BODY if self.value is None else binary.from_json(self.value)


def to_past(element: Element, fetch_only: bool) -> PastElement:
    """Return an element as it is now in the form of past ones."""
    meta = element.meta
    return PastElement(
        element.path,
        element.path_json,
        element.value,
        fetch_only,
        schema=element.schema,
        others=element.others,
        source_us=None if meta is None else meta.source_us,
        quality=None if meta is None else meta.quality,
    )


class PastEvent(NamedTuple):
    """A recorded event of the tree. Without a path it clears the tree: the daemon started or stopped."""

    kind: str
    ts: str
    path: str = ""
    value: bytes | None = None
    fetch_only: bool = False
    schema: bytes | None = None
    """Description of the element, of an add or describe; None if it has none or the event is another one."""
    source_us: int | None = None
    quality: bytes | None = None


Notification = tuple[str, PastElement]
"""The kind of a notification (add, change or remove) and its element."""
WriteResponse = Callable[[list[PastElement]], bytes]
"""Function that encodes the response to a get."""


PAST_ELEMENT_BYTES = 500
"""An element of the past with a short path, beside its value."""


class MatchReplay:
    """Turns recorded events into notifications, applying the value tests of a rule."""

    def __init__(self, rule: Rule) -> None:
        self._test = rule.matches_value
        self.known: dict[str, PastElement] = {}
        """The elements that match after all notifications so far."""
        self._fetch_only: dict[str, bool] = {}

    def convert(self, events: Iterable[PastEvent]) -> Iterator[Notification]:
        """Yield the notifications for these events."""
        for event in events:
            if not event.path:
                for path in list(self.known):
                    yield "remove", self.known.pop(path)._replace(ts=event.ts)
            else:
                yield from self._convert_one(event)

    def _convert_one(self, event: PastEvent) -> Iterator[Notification]:
        path = event.path
        before = self.known.get(path)
        if event.kind == "remove":
            self._fetch_only.pop(path, None)
            if before is not None:
                yield "remove", self.known.pop(path)._replace(ts=event.ts)
            return
        if event.kind == "describe":
            # Told with the next event of the element: its value has not changed.
            if before is not None:
                self.known[path] = before._replace(schema=event.schema)
            return
        # Changes are recorded without fetchOnly; the add of the element had it.
        if event.kind == "add":
            self._fetch_only[path] = event.fetch_only
        fetch_only = self._fetch_only.get(path, False)
        schema = event.schema if event.kind == "add" or before is None else before.schema
        now = PastElement(path, jsonrpc.encode(path), event.value, fetch_only, event.ts, schema)
        if event.source_us is not None or event.quality is not None:
            now = now._replace(source_us=event.source_us, quality=event.quality)
        # A change can start a match of an element, which is its add, or end it, which is its remove.
        if self._matches(event.value):
            self.known[path] = now
            yield ("add" if before is None else "change"), now
        elif before is not None:
            del self.known[path]
            yield "remove", now

    def _matches(self, value: bytes | None) -> bool:
        return self._test is None or (value is not None and self._test(jsonrpc.loads(value)))

    @property
    def known_bytes(self) -> int:
        """Bytes of the elements that match."""
        return sum(PAST_ELEMENT_BYTES + len(element.value or b"") for element in self.known.values())

    def catch_up(self, present: Iterable[PastElement]) -> Iterator[Notification]:
        """Yield the notifications that lead from the replayed elements to the present ones."""
        elements = {element.path: element for element in present}
        for path in [path for path in self.known if path not in elements]:
            yield "remove", self.known.pop(path)._replace(ts="")
        for path, element in elements.items():
            before = self.known.get(path)
            # Equal values need no event, wherever they come from; the last one of the journal is often the present one.
            if before is None or before.value != element.value:
                yield ("add" if before is None else "change"), element


def filter_by_value(rule: Rule, elements: Iterable[PastElement]) -> list[PastElement]:
    """Return the elements that pass the value tests of a rule."""
    test = rule.matches_value
    return [one for one in elements if test is None or (one.value is not None and test(jsonrpc.loads(one.value)))]


# -- services


def read_past_instant(bus: Bus, session: Session, params: JsonObject) -> Json:
    """Return the instant at which a fetch or get starts, None for the present; refuse users without permission."""
    instant = params.get("since", params.get("asOf"))
    if instant is not None:
        _require_history(bus).check(session.auth, instant)
    return instant


def get_past(bus: Bus, session: Session, request_id: bytes, rule: Rule, instant: Json, write: WriteResponse) -> None:
    """Answer a get with the elements that matched a rule at an instant."""
    history = _require_history(bus)
    if rule.sort is not None:
        raise InvalidRule("sort", "a sorted get shows the present only; leave out asOf, or sort")
    # The seam is set now, in the turn of the request: later events are not part of the answer.
    seam = history.bring_up_to_date()

    def read() -> bytes:
        # Values are tested and the response is encoded in the thread, too: there may be a hundred thousand of them.
        seam.wait()
        return write(filter_by_value(rule, history.as_of(instant, rule)))

    def steps() -> Generator[Step]:
        reading = Work(bus.history_worker, read)
        yield reading
        response = reading.result()
        if request_id:
            session.send(response)

    bus.serving.begin_task(session, request_id, steps())


def replay(bus: Bus, session: Session, instant: Json, fetch: PendingFetch) -> Generator[Step]:
    """Send the events since an instant at the speed at which the peer reads them, then go on live."""
    history, rule = _require_history(bus), fetch.rule
    if rule.sort is not None:
        raise InvalidRule("sort", "a sorted fetch shows the present only; leave out since, or sort")
    response, events_first = fetch.response, fetch.events_first
    past, matches = history.since(instant, rule), MatchReplay(rule)
    has_begun, kept_bytes = False, 0
    # From here on events that match are collected, until ``end``.
    seam: Seam | None = history.bring_up_to_date(rule)
    try:
        while True:
            reading = Work(bus.history_worker, partial(past.read_page, seam))
            yield reading
            events, is_last = reading.result()
            del reading
            if response and not (events_first or has_begun):
                session.send(response)
            has_begun = True
            yield from _send(session, fetch, matches.convert(events))
            # Nothing of a page is kept while the peer takes its time to read it, apart from the last values.
            del events
            session.account.charge(matches.known_bytes - kept_bytes)
            kept_bytes = matches.known_bytes
            if seam is not None:
                ended, seam = seam, None
                collected = ended.end()
                if is_last and collected is not None:
                    _join(session, matches, collected, fetch)
                    break
            yield READ
            if is_last:
                seam = history.bring_up_to_date(rule)
    except JetError as error:
        if not has_begun or events_first:
            raise
        # The request is answered already; a peer that went on would miss events.
        bus.serving.refuse(session, f"the past cannot be replayed any further: {error}; fetch again")
    finally:
        # In any case, also for a session that is gone: collecting must not outlive the fetch.
        if seam is not None:
            seam.end()
        session.account.note(-kept_bytes)
    if response and events_first:
        session.send(response)


def _send(session: Session, fetch: PendingFetch, notifications: Iterable[Notification]) -> Iterator[None]:
    """Send notifications of the past, one in each step."""
    for kind, element in notifications:
        if fetch.has_methods or element.value is not None:
            session.outbox.put(fetch.encode_past(kind, element))
        yield


def _join(session: Session, matches: MatchReplay, collected: list[PastEvent], fetch: PendingFetch) -> None:
    """Join the audience, and send the differences between the replayed past and the present."""
    # One step of the bus: no event can come between these notifications and the first live one.
    notifications = list(matches.convert(collected))
    audience, elements = fetch.join_unprepared()
    present = [to_past(element, element.fetch_only_for(audience.auth)) for element in elements]
    for _ in _send(session, fetch, (*notifications, *matches.catch_up(present))):
        pass


def _require_history(bus: Bus) -> History:
    if bus.history is None:
        raise Invalid("asOf", "this daemon keeps no journal; start it with --journal DIR")
    return bus.history
