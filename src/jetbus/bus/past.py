"""Fetch and get that begin in the past: what the record tells, turned into what a fetch would have been told then.

A fetch with ``since`` is told the matches of that instant, then everything that happened to them, then goes on live.
The record is read aside, up to a *moment*; what happens after the moment is kept in memory until the record is read:

    since               the moment                              the fetch is joined
      |--- record, read aside ---|--- kept in memory ---------------|--- live --->

Nothing is missing and nothing told twice: what was kept is told, and the fetch joined, within one turn of the bus.
Whatever the record does not have, because it is kept in samples or has gaps, is made good there. No disk is waited for
on the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from jetbus.errors import Invalid, InvalidRule, JetError
from jetbus.rules import Rule
from jetbus.wire import binary, jsonrpc
from jetbus.wire.dialects import NO_MEMBERS

if TYPE_CHECKING:
    from jetbus.bus.access import Auth
    from jetbus.bus.audience import Audience
    from jetbus.bus.bus import Bus
    from jetbus.bus.session import Session


class Then(NamedTuple):
    """A state or method as it once was; a leaf in the eyes of a dialect."""

    path: str
    path_json: bytes
    value: bytes | None
    fetch_only: bool = False
    ts: str = ""
    schema: bytes | None = None
    others: Mapping[str, bytes] = NO_MEMBERS

    @property
    def key(self) -> bytes:
        return binary.key(self.path)

    @property
    def body(self) -> bytes:
        return binary.EMPTY_BODY if self.value is None else binary.body_of(self.value)


class Happened(NamedTuple):
    """One event of the record that concerns the tree. Without a path everything went: the daemon started or stopped."""

    kind: str
    ts: str
    path: str = ""
    value: bytes | None = None
    fetch_only: bool = False


class Begun(NamedTuple):
    """A fetch that has been joined: its audience and id, and its response, before or after the first events."""

    audience: Audience
    fetch_id: bytes
    response: bytes
    events_first: bool


Write = Callable[[list[Then]], bytes]
"""What was found -> the response."""


class Moment(Protocol):
    """A moment up to which the record is being brought up to date."""

    def wait(self) -> int:
        """Wait, aside, until all before the moment is on record; gives the last seq of that."""

    def end(self) -> list[Happened]:
        """Tell what has happened since, if that was asked for. Does not block; call it once."""


class Past(Protocol):
    """Journal that answers queries about the past. ``as_of`` and ``since`` block, so threads call them."""

    def check(self, auth: Auth | None, instant: Any, /) -> None:
        """Refuse whoever may not look back, and what is no instant."""

    def as_of(self, instant: Any, rule: Rule, /) -> list[Then]:
        """What the path rule matched at an instant."""

    def since(self, instant: Any, rule: Rule, last_seq: int, /) -> list[Happened]:
        """Return the tree at an instant and the events since then, up to a seq."""

    def bring_up_to_date(self, rule: Rule | None = None, /) -> Moment:
        """Have all that has happened put on record; with a rule, what happens to its paths later is kept."""


class Replay:
    """Turns what happened into what is told, as the value tests of a rule have it."""

    def __init__(self, rule: Rule) -> None:
        self._test = rule.matches_value
        self.known: dict[str, Then] = {}
        """What matches, as far as told."""
        self._fetch_only: dict[str, bool] = {}

    def tell(self, events: Iterable[Happened]) -> Iterator[tuple[str, Then]]:
        """What is to be told of these events."""
        for event in events:
            if not event.path:
                for path in list(self.known):
                    yield "remove", self.known.pop(path)._replace(ts=event.ts)
            else:
                yield from self._tell(event)

    def _tell(self, event: Happened) -> Iterator[tuple[str, Then]]:
        path = event.path
        before = self.known.get(path)
        if event.kind == "remove":
            self._fetch_only.pop(path, None)
            if before is not None:
                yield "remove", self.known.pop(path)._replace(ts=event.ts)
            return
        if event.kind == "add":
            self._fetch_only[path] = event.fetch_only
        only = self._fetch_only.get(path, False)
        now = Then(path, jsonrpc.encode(path), event.value, only, event.ts)
        if self._matches(event.value):
            self.known[path] = now
            yield ("add" if before is None else "change"), now
        elif before is not None:
            del self.known[path]
            yield "remove", now

    def _matches(self, value: bytes | None) -> bool:
        return self._test is None or (value is not None and self._test(jsonrpc.loads(value)))

    def make_good(self, present: Iterable[Then]) -> Iterator[tuple[str, Then]]:
        """What is still to be told so that what was told ends in the present."""
        there = {then.path: then for then in present}
        for path in [path for path in self.known if path not in there]:
            yield "remove", self.known.pop(path)._replace(ts="")
        for path, then in there.items():
            before = self.known.get(path)
            if before is None or before.value != then.value:
                yield ("add" if before is None else "change"), then


def passing(rule: Rule, then: Iterable[Then]) -> list[Then]:
    """Those whose value the rule matches."""
    test = rule.matches_value
    return [one for one in then if test is None or (one.value is not None and test(jsonrpc.loads(one.value)))]


def entry(then: Then) -> bytes:
    """One entry of a get that looks back."""
    told: dict[str, Any] = {"path": msgspec.Raw(then.path_json), "event": "add"}
    if then.value is not None:
        told["value"] = msgspec.Raw(then.value)
    if then.fetch_only:
        told["fetchOnly"] = True
    return jsonrpc.encode({**told, "ts": then.ts})


def with_ts(tail: bytes, ts: str) -> bytes:
    """The tail of a JSON notification with the instant at which it happened."""
    return tail if not ts else tail[:-2] + b',"ts":"' + ts.encode() + b'"}}'


# -- services


def asked_instant(bus: Bus, session: Session, params: dict[str, Any]) -> Any:
    """The instant at which a fetch or get is to begin, or None for the present."""
    instant = params.get("since", params.get("asOf"))
    if instant is not None:
        _past(bus).check(session.auth, instant)
    return instant


def get_then(bus: Bus, session: Session, request_id: bytes, rule: Rule, instant: Any, write: Write) -> None:
    """Answer what a rule matched at an instant."""
    past = _past(bus)
    if rule.sort is not None:
        raise InvalidRule("sort", "a sorted get shows the present only; leave out asOf, or sort")

    def done(outcome: Any) -> None:
        if isinstance(outcome, JetError):
            bus.release(session, request_id, outcome)
            return
        if request_id and not session.gone:
            session.send(write(passing(rule, outcome)))
        bus.release(session, b"", b"")

    moment = past.bring_up_to_date()

    def read() -> list[Then]:
        moment.wait()
        return past.as_of(instant, rule)

    bus.hold(session, read, done, bus.past_worker)


def fetch_since(
    bus: Bus, session: Session, request_id: bytes, rule: Rule, instant: Any, begin: Callable[[], Begun]
) -> None:
    """Replay what has happened since an instant, then go on live. ``begin`` joins the fetch."""
    past = _past(bus)
    if rule.sort is not None:
        raise InvalidRule("sort", "a sorted fetch shows the present only; leave out since, or sort")
    moment = past.bring_up_to_date(rule)

    def read() -> tuple[Replay, list[tuple[str, Then]]]:
        replay = Replay(rule)
        return replay, list(replay.tell(past.since(instant, rule, moment.wait())))

    def join(outcome: Any) -> None:
        try:
            kept = moment.end()
            if session.gone:
                return
            if isinstance(outcome, JetError):
                raise outcome
            replay, told = outcome
            told.extend(replay.tell(kept))
            begun = begin()
        except JetError as error:
            bus.release(session, request_id, error)
            return
        _tell(bus, session, replay, told, begun)
        bus.release(session, b"", b"")

    bus.hold(session, read, join, bus.past_worker)


def _tell(bus: Bus, session: Session, replay: Replay, told: list[tuple[str, Then]], begun: Begun) -> None:
    audience, fetch_id, response, events_first = begun
    if response and not events_first:
        session.send(response)
    present = [
        Then(element.path, element.path_json, element.value, element.fetch_only_for(audience.auth))
        for element in bus.fetches.present(audience)
    ]
    tells_methods = audience.dialect.tells_methods
    for kind, then in (*told, *replay.make_good(present)):
        if tells_methods or then.value is not None:
            session.outbox.put(audience.then(kind, then, fetch_id))
    if response and events_first:
        session.send(response)


def _past(bus: Bus) -> Past:
    if bus.past is None:
        raise Invalid("asOf", "this daemon keeps no journal; start it with --journal DIR")
    return bus.past
