"""The peer's side of a fetch: the reported events, those that the consumer has yet to see, and the way between them.

A ``Subscription`` lies between the session, which feeds it notifications, and a handle, which empties it::

    session --> receive_*() --> [reconnect: only the difference] --> [queue: merge or count] --> take() --> handle

**Reconnect.** A subscription remembers the value of every match (``known``). On a new connection the daemon reports
everything from the start. Until that is complete, an ``add`` of a path with the value that is known is dropped,
one with another value becomes a ``change``, and in the end every known path that was not reported again becomes a
``remove``::

    known before          a=1  b=2  c=3
    daemon reports        add a=1   add b=5   add d=4
    consumer sees                   change b=5  add d=4  remove c

There is no message for completeness. The session sends an ``info`` request right after the fetch: daemons answer in
order, so its response comes after everything that was there (``finish_sync``).

**Rules.** The same memory lets a subscription apply a rule itself where the daemon does not know its operators or gets
them wrong; ``compat`` has the table. The daemon is then asked for more than was wanted, and the rest is left out here.

**Slow consumers.** The queue has a limit. With the policy ``latest`` an event replaces an older one of the same path
that has not been read, so the queue never holds more than one event per path::

    add + change -> add     change + change -> change     change + remove -> remove     remove + add -> change

An ``add`` followed by a ``remove`` is kept as two events: a state that exists for a moment may be a message of its own.
With the policy ``every`` nothing is replaced, and a consumer that falls too far behind gets ``TooSlow``.

**Fast path.** Once everything has been reported, nothing has to be tested or converted, and events pass through as the
codec decoded them (``_passes_through``). A fetch that asks for schemas and qualities stays on it: states without either
have no entry in ``_about``, and their events are not copied.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import UNSET, Raw

from jetbus.errors import InvalidValue, JetError, NotConnected, NotState, TooSlow
from jetbus.json_types import Json, JsonObject
from jetbus.peer.arguments import check_callback, check_choice, check_type
from jetbus.peer.callbacks import await_outcome, call_back
from jetbus.peer.compat import Features
from jetbus.peer.events import (
    NO_DESCRIPTION,
    About,
    Event,
    Notification,
    add_description,
    current_receipt,
    is_described,
    merge_events,
)
from jetbus.peer.values import decode_or_explain, is_blob, read_value
from jetbus.rules import Rule, Sort
from jetbus.wire import jsonrpc

if TYPE_CHECKING:
    from jetbus.peer.requests import Waiter

log = logging.getLogger("jetbus.peer")

Policy = Literal["latest", "every"]
QUEUE_MAX = 100_000


class Subscription:
    """One fetch. Fed by the session, emptied by a handle, from any thread."""

    def __init__(
        self,
        fetch_id: str,
        rule: Rule,
        *,
        value_type: Any = None,
        policy: Policy = "latest",
        queue_max: int = QUEUE_MAX,
        callback: Callable[[Any], Any] | None = None,
        since: str | int | None = None,
        schema: bool = False,
        meta: bool = False,
        recorded: bool = False,
        nodes: bool = False,
    ) -> None:
        check_choice(policy, "policy", Policy)
        check_callback(callback, "callback")
        check_type(value_type)
        if since is not None:
            policy = "every"  # a replay is complete or useless
        self.id = fetch_id
        self.rule = rule
        self.params: JsonObject = {}
        """Parameters of the request, limited to those that the daemon understands."""
        self.policy = policy
        self.known: dict[str, Any] = {}
        """Last reported value of every match; ``UNSET`` for a method."""
        self._fetch_only: set[str] = set()
        """Matches that were added as fetchOnly: some daemons say so in ``add`` only."""
        self.items: list[Event] = []
        """The current list of a sorted fetch."""
        self.conflated = 0
        """Number of events that a newer one replaced before the consumer saw them."""
        self.ended = False
        self.error: JetError | None = None
        self.complete = False
        """True if everything that was there at the start has been reported."""
        self.wake: Callable[[], None] = lambda: None
        """Called when there is something to take, or when the fetch has ended."""
        self._type = value_type
        self._queue_max = queue_max
        self._callback = callback
        self._since = since
        wishes = ("schema", schema), ("meta", meta), ("recorded", recorded)
        self._asked = {name: True for name, wanted in wishes if wanted}
        """Parameters that ask for more than paths and values."""
        self.wants_nodes = nodes
        self._nodes: set[str] = set()
        """Nodes that the consumer knows."""
        self._reported_nodes: set[str] = set()
        """Nodes reported on this connection, until everything has been reported."""
        self._about: dict[str, About] = {}
        """Schema, time and quality last received of every match, if the fetch asks for them."""
        self._pending: dict[object, Event] | list[Any] = [] if policy == "every" or rule.sort else {}
        self._delivered: list[Event] = []
        """Events for a consumer that was waiting when they came; it counts as having seen them, so none is replaced."""
        self.awaited = False
        """True if the consumer waits for the next event."""
        self.waiter: Waiter | None = None
        """Waits for the daemon to accept or refuse the fetch."""
        # Guards the queue, which the session of a blocking peer fills in another thread than the consumer empties it.
        self._lock = threading.Lock()
        self._trusts_daemon = False
        """True if the daemon applies the whole rule, and applies it correctly."""
        self._sorts_itself = False
        """True if the list is sorted here, since the daemon cannot do it."""
        self._passes_through = False
        """True if events need neither test nor conversion."""
        self._reported: set[str] | None = None
        """Paths reported on this connection, until everything has been reported; then None."""

    @property
    def is_typed(self) -> bool:
        """True if values are converted to a type, which can fail."""
        return self._type is not None

    # -- from the session

    def start(self, features: Features) -> None:
        """Prepare for a daemon with these features, which will report everything from the start."""
        self.params, self._trusts_daemon = features.translate(self.rule)
        if self.policy == "every":
            # Else the daemon, too, would leave out changes for a peer that reads slowly.
            self.params["every"] = True
        if features.is_jetbus and self.wants_nodes:
            self.params["nodes"] = True
        if features.is_jetbus and self._asked:
            self.params |= self._asked
        elif features.is_jetbus and self.rule.sort is None:
            # Flat lists of many changes; a fetch that asks for more than values gets them one by one.
            self.params["together"] = True
        # Only until it was complete once: after a reconnect a replay would repeat events that the consumer has seen.
        if self._since is not None and not self.complete:
            self.params["since"] = self._since
        self._sorts_itself = self.rule.sort is not None and "sort" not in self.params
        self._passes_through = False
        # Until everything is reported again each event is compared with the known values; see ``_check``.
        self._reported, self._reported_nodes = set(), set()

    def finish_sync(self) -> None:
        """Note that everything has been reported: known elements that were not reported again are gone."""
        reported, self._reported = self._reported, None
        if reported is not None:
            for path in [path for path in self.known if path not in reported]:
                value, about = self.known.pop(path), self._about.pop(path, NO_DESCRIPTION)
                if not self._sorts_itself:
                    self._emit([add_description(self._make_event("remove", path, value, False), about)])
            for node in sorted(self._nodes - self._reported_nodes, key=len, reverse=True):
                self._receive_node("remove", node)
        if self._sorts_itself:
            self._emit_sorted()
        self._passes_through = self._trusts_daemon and self._type is None and not self._sorts_itself
        self.complete = True
        self.wake()

    def receive_events(self, events: list[Event]) -> None:
        """Take in events that have a value."""
        if not self._passes_through:
            self._emit_checked(
                self._check(event.kind.lower(), event.path, read_value(event.value), event.fetch_only, event.ts, event)
                for event in events
            )
            return
        if self._asked:
            events = self._add_schemas(events)
        known, has_blobs, has_fetch_only = self.known, False, bool(self._fetch_only)
        # One pass finds out whether any event has bytes or is fetchOnly. Both are rare, so events are usually passed on
        # as they are, without a copy.
        for event in events:
            value = event.value
            if type(value) is dict and is_blob(value):
                value, has_blobs = read_value(value), True
            if event.fetch_only:
                has_fetch_only = True
            if event.kind == "remove":
                known.pop(event.path, None)
            else:
                known[event.path] = value
        if has_blobs:
            events = [msgspec.structs.replace(event, value=read_value(event.value)) for event in events]
        if has_fetch_only:
            events = [
                msgspec.structs.replace(event, fetch_only=self._is_fetch_only(event.kind, event.path, event.fetch_only))
                for event in events
            ]
        self._emit(events)

    def _add_schemas(self, events: list[Event]) -> list[Event]:
        """Return events with the schemas of their states, and remember these schemas."""
        about = self._about
        # Most states have neither schema nor quality. Then this is all that asking costs.
        if not about and not any(map(is_described, events)):
            return events
        return [self._add_schema(event) if event.path in about or is_described(event) else event for event in events]

    def _add_schema(self, event: Event) -> Event:
        schema, _, _ = self._remember_about(event.kind, event.path, event)
        return event if event.told_schema is schema else msgspec.structs.replace(event, told_schema=schema)

    def receive_changes(self, changes: list[Json], has_blobs: bool) -> None:
        """Take in changes of one message, a flat list: path, value and fetchOnly of each."""
        paths, values, fetch_only = changes[::3], changes[1::3], changes[2::3]
        if has_blobs:
            values = list(map(read_value, values))
        if not self._passes_through:
            self._emit_checked(
                self._check("change", *change, "") for change in zip(paths, values, fetch_only, strict=True)
            )
            return
        self.known.update(zip(paths, values, strict=True))
        self._emit(list(map(Event, repeat("change"), paths, values, fetch_only, repeat(current_receipt.get()))))

    def receive_notification(self, notification: Notification) -> None:
        """Take in a notification of any kind: of a state, of a method, or of a sorted list."""
        if notification.changes is not UNSET:
            self._receive_sorted(notification)
            return
        if notification.type == "node":
            self._receive_node(notification.event.lower(), notification.path)
            return
        kind, value = notification.event.lower(), read_value(notification.value)
        path, fetch_only, ts = notification.path, notification.fetchOnly, notification.ts
        self._emit_checked([self._check(kind, path, value, fetch_only, ts, notification)])

    def _receive_node(self, kind: str, path: str) -> None:
        """Take in the event of a node; after a reconnect the consumer hears only of differences."""
        if kind == "add":
            self._reported_nodes.add(path)
        if (kind == "add") is (path in self._nodes):
            return
        if kind == "add":
            self._nodes.add(path)
        else:
            self._nodes.discard(path)
            self._reported_nodes.discard(path)
        self._emit([Event(kind, path, is_node=True)])

    def receive_raw(self, params: Raw) -> None:
        """Take in a notification with a value that cannot be read; the values beside it are not lost."""
        try:
            self._receive_raw(params)
        except (JetError, KeyError, TypeError, ValueError, msgspec.MsgspecError):
            log.debug("ignored a notification of fetch %s that is not made of paths and values", self.id)

    def _receive_raw(self, params: Raw) -> None:
        if bytes(params)[:1] == b"[":
            members = iter(_decode_members(params))
            for path, value, mark in zip(members, members, members, strict=True):
                self._receive_raw_value("change", jsonrpc.read_text(path, "path"), value, mark == _TRUE, "")
            return
        fields = jsonrpc.read_fields(params)
        if "changes" in fields:
            entries = [jsonrpc.read_fields(entry) for entry in _decode_members(fields["changes"])]
            changes = [
                {name: decode_or_explain(raw, _read_path(entry)) for name, raw in entry.items()} for entry in entries
            ]
            self._receive_sorted(Notification(changes=changes, n=jsonrpc.loads(fields.get("n", Raw(b"0")))))
            return
        kind, ts = (jsonrpc.read_text(fields.get(name, Raw(b'""')), name) for name in ("event", "ts"))
        value, fetch_only = fields.get("value", _NO_VALUE), fields.get("fetchOnly") == _TRUE
        self._receive_raw_value(kind.lower(), _read_path(fields), value, fetch_only, ts)

    def _receive_raw_value(self, kind: str, path: str, raw: Raw, fetch_only: bool, ts: str) -> None:
        value = read_value(decode_or_explain(raw, path)) if raw else UNSET
        self._emit_checked([self._check(kind, path, value, fetch_only, ts)])

    def _receive_sorted(self, notification: Notification) -> None:
        sort = self.rule.sort
        first = sort.first if sort else 1
        # ``n`` is the new length of the list; entries that are not mentioned stay at their index.
        items = list(self.items[: notification.n])
        for entry in notification.changes if isinstance(notification.changes, list) else ():
            index = entry["index"] - first
            value = read_value(entry.get("value", UNSET))
            event = self._make_event("change", entry["path"], value, entry.get("fetchOnly", False))
            if self._asked:
                about = entry.get("schema", UNSET), entry.get("quality"), entry.get("stale", False)
                event = add_description(msgspec.structs.replace(event, ts=entry.get("ts", "")), about)
            if index < len(items):
                items[index] = event
            else:
                items.append(event)
        if self._reported is not None and self.complete and items == self.items:
            return  # the same list again, after a reconnect
        self.items = items
        self._emit_list(items)

    def _check(
        self, kind: str, path: str, value: Any, fetch_only: bool, ts: str, told: Event | Notification | None = None
    ) -> Event | None:
        """Return the event of a notification for the consumer; None if the consumer knows it already."""
        if not self._asked or told is None:
            return self._check_value(kind, path, value, fetch_only, ts)
        before = self._about.get(path, NO_DESCRIPTION)
        about = self._remember_about(kind, path, told)
        is_news = self._reported is not None and about != before
        event = self._check_value(kind, path, value, fetch_only, ts, is_news=is_news)
        return None if event is None else add_description(event, about, told.told_record)

    def _remember_about(self, kind: str, path: str, told: Event | Notification) -> About:
        """Return schema, quality and staleness after a notification, and keep them unless there are none."""
        # Only ``add`` and a change of the schema have the schema; the consumer gets it with every event.
        schema = told.told_schema
        if schema is UNSET and kind != "add":
            schema = self._about.get(path, NO_DESCRIPTION)[0]
        about = schema, told.told_quality, told.stale
        if kind == "remove" or about == NO_DESCRIPTION:
            self._about.pop(path, None)
        else:
            self._about[path] = about
        return about

    def _check_value(
        self, kind: str, path: str, value: Any, fetch_only: bool, ts: str, *, is_news: bool = False
    ) -> Event | None:
        fetch_only = self._is_fetch_only(kind, path, fetch_only)
        known = self.known
        before = known.get(path, _ABSENT)
        # To the consumer, a value that no longer matches is a removal, whatever the daemon calls it.
        if kind == "remove" or not (self._trusts_daemon or matches(self.rule, path, value)):
            if before is _ABSENT:
                return None
            del known[path]
            return self._make_event("remove", path, before if value is UNSET else value, fetch_only, ts)
        known[path] = value
        if self._reported is not None:
            self._reported.add(path)
            # After a reconnect the daemon reports everything again; the consumer hears only of differences.
            if before is not _ABSENT and kind == "add" and not is_news and _is_same_json(before, value):
                return None
        # The kind follows from the knowledge of the consumer: a change of a path that was left out until now is an add.
        return self._make_event("add" if before is _ABSENT else "change", path, value, fetch_only, ts)

    def _is_fetch_only(self, kind: str, path: str, is_marked: bool) -> bool:
        """Return True if an event is of a state or method that this peer can only fetch; remember it from ``add``."""
        paths = self._fetch_only
        fetch_only = is_marked or (kind != "add" and path in paths)
        if fetch_only and kind != "remove":
            paths.add(path)
        else:
            paths.discard(path)
        return fetch_only

    def confirm(self) -> None:
        """Note that the daemon has accepted the fetch."""
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(True)

    def end(self, error: JetError | None = None) -> None:
        """End the fetch; the consumer gets the queued events, then the error."""
        if not self.ended:
            # The first reason counts. Later ones, such as a close after ``TooSlow``, say less.
            self.error = error
            self.ended = True
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(error or NotConnected("the fetch was closed before the daemon accepted it"))
        self.wake()

    # -- to the consumer

    def _make_event(self, kind: str, path: str, value: Any, fetch_only: bool, ts: str = "") -> Event:
        if value is UNSET:
            return Event(kind, path, None, fetch_only, is_method=True, ts=ts)
        if isinstance(value, InvalidValue):
            log.warning("cannot read a value: %s", value)
            return Event(kind, path, None, fetch_only, problem=value, ts=ts)
        if self._type is None:
            return Event(kind, path, value, fetch_only, ts=ts)
        try:
            return Event(kind, path, msgspec.convert(value, self._type), fetch_only, ts=ts)
        except msgspec.ValidationError as error:
            return Event(kind, path, value, fetch_only, problem=InvalidValue(path, str(error)), ts=ts)

    def _emit_checked(self, checked: Iterable[Event | None]) -> None:
        events = [event for event in checked if event is not None]
        if not events:
            return
        if not self._sorts_itself:
            self._emit(events)
        elif self._reported is None:
            self._emit_sorted()

    def _emit_sorted(self) -> None:
        """Sort the known elements and emit the list, unless it is the same as before."""
        assert self.rule.sort is not None  # noqa: S101
        window = sort_window(self.rule.sort, self.known)
        items = [self._make_event("change", path, value, False) for path, value in window]
        if items != self.items or not self.complete:
            self.items = items
            self._emit_list(items)

    def _emit(self, events: list[Event]) -> None:
        callback = self._callback
        if callback is not None:
            for event in events:  # the same as ``call_back``, without the cost of a call for each event
                try:
                    outcome = callback(event)
                    if outcome is not None:
                        await_outcome(outcome)
                except Exception:
                    log.exception("a callback failed")
        elif self.policy == "every":
            self._queue(events)
        else:
            self._conflate(events)

    def _conflate(self, events: list[Event]) -> None:
        with self._lock:
            # A consumer waits for these very events, so they count as seen and are not merged with later ones.
            if self.awaited and len(self._delivered) < self._queue_max:
                self._delivered += events
            else:
                self._merge_pending(events)
        self.wake()

    def _merge_pending(self, events: list[Event]) -> None:
        pending: Any = self._pending
        put = pending.setdefault
        for event in events:
            # A path may be a node and a state at once, each with events of its own.
            key = ("node", event.path) if event.is_node else event.path
            older = put(key, event)
            if older is event:
                continue
            if event.is_node and older.kind == "remove":
                self.conflated += 2  # it is there again, as the consumer knows it
                del pending[key]
                continue
            if (older.kind, event.kind) != ("add", "remove"):
                self.conflated += 1
                pending[key] = merge_events(older, event)
                continue
            # Both stay, under keys of their own, so that later events of the path replace neither.
            del pending[key]
            if len(pending) < self._queue_max:
                pending[object()] = older
                pending[object()] = event
            else:
                self.conflated += 2

    def _emit_list(self, items: list[Event]) -> None:
        """Emit a new list of a sorted fetch; it makes every older one superfluous."""
        if self._callback is not None:
            call_back(self._callback, items)
            return
        if self.policy == "latest":
            with self._lock:
                pending: Any = self._pending
                self.conflated += len(pending)
                pending.clear()
        self._queue([items])

    def _queue(self, entries: list[Any]) -> None:
        if self.ended:
            return
        with self._lock:
            pending: Any = self._pending
            # One more than allowed is kept, as proof that the limit was crossed.
            pending += entries[: self._queue_max + 1 - len(pending)]
        if len(pending) > self._queue_max:
            self.end(
                TooSlow(
                    f"more than {self._queue_max} events of a fetch are unread; read faster, fetch less,"
                    " raise queue_max or use policy 'latest'"
                )
            )
        else:
            self.wake()

    def take(self, *, awaiting: bool = False) -> list[Any]:
        """Empty the queue. A consumer that is ``awaiting`` more counts as having seen the next event."""
        with self._lock:
            delivered, self._delivered = self._delivered, []
            pending = self._pending
            self._pending = [] if isinstance(pending, list) else {}
            # Only a consumer that leaves with nothing is about to wait.
            self.awaited = awaiting and not delivered and not pending
        events = pending if isinstance(pending, list) else list(pending.values())
        return delivered + events if delivered and events else delivered or events


_ABSENT: Any = object()
_NO_VALUE = Raw(b"")
_TRUE = Raw(b"true")
_decode_members = msgspec.json.Decoder(list[Raw]).decode


def _read_path(fields: Mapping[str, Raw]) -> str:
    return jsonrpc.read_text(fields.get("path", Raw(b'""')), "path")


def _is_same_json(a: Any, b: Any) -> bool:
    """Compare two values as JSON, where true is not 1, at any depth."""
    # Most values differ, which ``==`` finds out cheaply; only equal ones are encoded to tell true from 1.
    return a is b or (bool(a == b) and jsonrpc.encode(a) == jsonrpc.encode(b))


def matches(rule: Rule, path: str, value: Any) -> bool:
    """Return True if a rule matches a state, or a method, which has the value ``UNSET``."""
    if not rule.matches_path(path):
        return False
    test = rule.matches_value
    return test is None or (value is not UNSET and not isinstance(value, InvalidValue) and test(value))


def convert_value(value: Any, value_type: Any, path: str) -> Any:
    """Return the value of a state as a type; raise the error of a method, or of a value that cannot be read."""
    if value is UNSET:
        raise NotState(path)
    if isinstance(value, InvalidValue):
        raise value
    if value_type is None:
        return value
    try:
        return msgspec.convert(value, value_type)
    except msgspec.ValidationError as error:
        raise InvalidValue(path, str(error)) from None


def sort_window(sort: Sort, values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Sort states as a daemon does for a sorted fetch and return the part that was asked for."""
    readable = [item for item in values.items() if not isinstance(item[1], InvalidValue)]
    ordered = sorted(readable, key=lambda item: sort.key(*item), reverse=sort.descending)
    return ordered[sort.first - 1 : sort.last]
