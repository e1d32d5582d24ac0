"""The client's side of a fetch: what it knows, what the consumer has yet to see, and how a reconnect is smoothed
over.

A fetch remembers what it has told. When the connection comes back the daemon tells everything anew; only the
difference is passed on: what changed, came and went meanwhile. The same memory lets a fetch test a rule itself, where
the daemon does not know the rule's words or gets them wrong. Between the connection and the consumer is a queue with
a limit: with the policy ``latest`` a newer event of a path takes the place of an older one that nobody has seen, with
``every`` none is lost and a consumer that falls too far behind is told so.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from typing import Any, Literal, Protocol

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from jetbus.errors import InvalidValue, JetError, NotConnected, TooSlow
from jetbus.peer.daemons import Words
from jetbus.peer.values import decode_or_tell, is_blob, read_value
from jetbus.rules import Rule, Sort
from jetbus.wire import jsonrpc

log = logging.getLogger("jetbus.peer")

Policy = Literal["latest", "every"]
QUEUE_MAX = 100_000


class Event(Struct, frozen=True, gc=False, rename={"kind": "event", "fetch_only": "fetchOnly"}):
    """What happened to a state or method: ``add``, ``change`` or ``remove``. A method has no value.

    The usual notification is read from the wire straight into an event.
    """

    kind: str = ""
    path: str = ""
    value: Any = None
    fetch_only: bool = False
    is_method: bool = False
    problem: JetError | None = None
    """Why the value could not be read: at all, which leaves None, or as the type that was asked for."""
    ts: str = ""
    """When it happened, for events that a fetch with ``since`` replays."""


class Waiter(Protocol):
    """Receiver of a response; an ``asyncio.Future`` is one."""

    def done(self) -> bool: ...

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


class _Told(Struct, gc=False):
    """The parameters of any notification, plain or sorted."""

    path: str = ""
    event: str = ""
    value: Any = UNSET
    fetchOnly: bool = False  # noqa: N815 - the wire's name
    changes: list[Any] | UnsetType = UNSET
    n: int = 0
    ts: str = ""


class _Notification(Struct, gc=False):
    params: _Told


_read_notification = msgspec.json.Decoder(_Notification).decode


class Fetching:
    """One fetch. Fed by the session, emptied by a face, from any thread."""

    def __init__(
        self,
        fetch_id: str,
        rule: Rule,
        *,
        value_type: Any = None,
        policy: Policy = "latest",
        queue_max: int = QUEUE_MAX,
        callback: Callable[[Any], None] | None = None,
        since: Any = None,
    ) -> None:
        if since is not None:
            policy = "every"  # of a replay nothing is left out
        self.id = fetch_id
        self.rule = rule
        self.params: dict[str, Any] = {}
        """The parameters of the request, in words that the daemon understands."""
        self.policy = policy
        self.known: dict[str, Any] = {}
        """The value of every match as last told; ``UNSET`` for a method."""
        self._fetch_only: set[str] = set()
        """The matches that were added as fetchOnly: daemons need not say so again."""
        self.items: list[Event] = []
        """The current list of a sorted fetch."""
        self.conflated = 0
        """How many events a newer one has replaced before anybody saw them."""
        self.ended = False
        self.error: JetError | None = None
        self.complete = False
        """Whether everything that was there at the start has been told."""
        self.wake: Callable[[], None] = lambda: None
        """Called when there is something to take, or when it has ended."""
        self._type = value_type
        self._queue_max = queue_max
        self._callback = callback
        self._since = since
        self._pending: dict[object, Event] | list[Any] = [] if policy == "every" or rule.sort else {}
        self._handed: list[Event] = []
        """What a consumer who waited for it has as good as seen: nothing takes its place any more."""
        self.awaited = False
        """Whether the consumer waits for whatever comes before it takes it."""
        self.waiter: Waiter | None = None
        """Waits for the daemon to accept or refuse the fetch; it is not told of events."""
        self._lock = threading.Lock()
        self._trusting = False
        """Whether the daemon's word on what matches can be taken."""
        self._sorting = False
        """Whether the list is put in order here, since the daemon cannot do it."""
        self._passing = False
        """Whether events can be passed on as they come."""
        self._syncing: set[str] | None = None
        """The paths told since the last (re)connect, until everything has been told."""

    @property
    def typed(self) -> bool:
        """Whether values are read as a type, and may have a problem with it."""
        return self._type is not None

    # -- from the session

    def begin(self, words: Words) -> None:
        """The fetch is about to be sent to a daemon of such words: everything is told anew."""
        self.params, self._trusting = words.ask(self.rule)
        if self.policy == "every":
            self.params["every"] = True
        if words.ours and self.rule.sort is None:
            self.params["together"] = True
        if self._since is not None and not self.complete:
            self.params["since"] = self._since
        self._sorting = self.rule.sort is not None and "sort" not in self.params
        self._passing = False
        self._syncing = set()

    def told_everything(self) -> None:
        """All that is there has been told: what was known and not told again is gone."""
        told, self._syncing = self._syncing, None
        if told is not None:
            for path in [path for path in self.known if path not in told]:
                value = self.known.pop(path)
                if not self._sorting:
                    self._emit([self._event("remove", path, value, False)])
        if self._sorting:
            self._put_in_order()
        self._passing = self._trusting and self._type is None and not self._sorting
        self.complete = True
        self.wake()

    def tell(self, event: Event, text: bytes) -> None:
        """A notification: the event it is, and its text for when it is more than that."""
        if event.value is None:
            self._tell_any(text)
        else:
            self.tell_all([event])

    def tell_all(self, events: list[Event]) -> None:
        """Events that have a value, each of which is all that its notification says."""
        if not self._passing:
            self._pass_on(
                self._check(event.kind.lower(), event.path, read_value(event.value), event.fetch_only, event.ts)
                for event in events
            )
            return
        known, blobs, fetch_only = self.known, False, bool(self._fetch_only)
        for event in events:
            value = event.value
            if type(value) is dict and is_blob(value):
                value, blobs = read_value(value), True
            if event.fetch_only:
                fetch_only = True
            if event.kind == "remove":
                known.pop(event.path, None)
            else:
                known[event.path] = value
        if blobs:
            events = [msgspec.structs.replace(event, value=read_value(event.value)) for event in events]
        if fetch_only:
            events = [
                msgspec.structs.replace(event, fetch_only=self._is_fetch_only(event.kind, event.path, event.fetch_only))
                for event in events
            ]
        self._emit(events)

    def _is_fetch_only(self, kind: str, path: str, said: bool) -> bool:
        """Whether an event is of an element that can only be fetched; some daemons say so in ``add`` only."""
        paths = self._fetch_only
        only = said or (kind != "add" and path in paths)
        if only and kind != "remove":
            paths.add(path)
        else:
            paths.discard(path)
        return only

    def tell_together(self, told: list[Any], blobs: bool) -> None:
        """Changes that came in one message: path, value and fetchOnly of each, one after the other.

        Without ``blobs`` no value stands for bytes.
        """
        paths, values, only = told[::3], told[1::3], told[2::3]
        if blobs:
            values = list(map(read_value, values))
        if not self._passing:
            self._pass_on(self._check("change", *change, "") for change in zip(paths, values, only, strict=True))
            return
        self.known.update(zip(paths, values, strict=True))
        self._emit(list(map(Event, repeat("change"), paths, values, only)))

    def tell_one_by_one(self, params: Raw) -> None:
        """A notification with a value that cannot be read: that one is told as a problem, the others as they are."""
        try:
            self._tell_one_by_one(params)
        except (JetError, KeyError, TypeError, ValueError, msgspec.MsgspecError):
            log.debug("the daemon sent events of %s that are no path and value each", self.id)

    def _tell_one_by_one(self, params: Raw) -> None:
        if bytes(params)[:1] == b"[":
            members = iter(_decode_members(params))
            for path, told, is_fetch_only in zip(members, members, members, strict=True):
                self._tell_decoded("change", jsonrpc.read_text(path, "path"), told, is_fetch_only == TRUE, "")
            return
        fields = jsonrpc.read_fields(params)
        if "changes" in fields:
            entries = [jsonrpc.read_fields(entry) for entry in _decode_members(fields["changes"])]
            changes = [{name: decode_or_tell(raw, _path_in(entry)) for name, raw in entry.items()} for entry in entries]
            self._tell_sorted(_Told(changes=changes, n=jsonrpc.loads(fields.get("n", Raw(b"0")))))
            return
        kind, ts = (jsonrpc.read_text(fields.get(name, Raw(b'""')), name) for name in ("event", "ts"))
        value, only = fields.get("value", ABSENT_VALUE), fields.get("fetchOnly") == TRUE
        self._tell_decoded(kind.lower(), _path_in(fields), value, only, ts)

    def _tell_decoded(self, kind: str, path: str, raw: Raw, fetch_only: bool, ts: str) -> None:
        value = read_value(decode_or_tell(raw, path)) if raw else UNSET
        self._pass_on([self._check(kind, path, value, fetch_only, ts)])

    def _tell_any(self, text: bytes) -> None:
        try:
            told = _read_notification(text).params
        except msgspec.ValidationError:
            self.tell_one_by_one(jsonrpc.decode_envelope(text).params)
            return
        if told.changes is not UNSET:
            self._tell_sorted(told)
        else:
            value = read_value(told.value)
            self._pass_on([self._check(told.event.lower(), told.path, value, told.fetchOnly, told.ts)])

    def _check(self, kind: str, path: str, value: Any, fetch_only: bool, ts: str) -> Event | None:
        """What a notification means to the consumer, by what was told before; None if it is no news."""
        fetch_only = self._is_fetch_only(kind, path, fetch_only)
        known = self.known
        before = known.get(path, ABSENT)
        if kind == "remove" or not (self._trusting or matches(self.rule, path, value)):
            if before is ABSENT:
                return None
            del known[path]
            return self._event("remove", path, before if value is UNSET else value, fetch_only, ts)
        known[path] = value
        if self._syncing is not None:
            self._syncing.add(path)
            if before is not ABSENT and kind == "add" and _same(before, value):
                return None
        return self._event("add" if before is ABSENT else "change", path, value, fetch_only, ts)

    def _pass_on(self, checked: Iterable[Event | None]) -> None:
        news = [event for event in checked if event is not None]
        if not news:
            return
        if not self._sorting:
            self._emit(news)
        elif self._syncing is None:
            self._put_in_order()

    def _put_in_order(self) -> None:
        """Tell the list anew, if it is another one."""
        assert self.rule.sort is not None  # noqa: S101
        items = [self._event("change", path, value, False) for path, value in arranged(self.rule.sort, self.known)]
        if items != self.items or not self.complete:
            self.items = items
            self._put(items)

    def _tell_sorted(self, told: _Told) -> None:
        sort = self.rule.sort
        first = sort.first if sort else 1
        items = list(self.items[: told.n])
        for entry in told.changes if isinstance(told.changes, list) else ():
            index = entry["index"] - first
            value = read_value(entry.get("value", UNSET))
            event = self._event("change", entry["path"], value, entry.get("fetchOnly", False))
            if index < len(items):
                items[index] = event
            else:
                items.append(event)
        if self._syncing is not None and self.complete and items == self.items:
            return
        self.items = items
        self._put(items)

    def accept(self) -> None:
        """Note that the daemon has accepted the fetch."""
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(True)

    def end(self, error: JetError | None = None) -> None:
        """Nothing more will be told."""
        if not self.ended:
            self.error = error
            self.ended = True
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(error or NotConnected("the fetch was closed before the daemon had accepted it"))
        self.wake()

    # -- to the consumer

    def _event(self, kind: str, path: str, value: Any, fetch_only: bool, ts: str = "") -> Event:
        if value is UNSET:
            return Event(kind, path, None, fetch_only, True, ts=ts)
        if isinstance(value, InvalidValue):
            log.warning("a value cannot be read: %s", value)
            return Event(kind, path, None, fetch_only, False, value, ts)
        if self._type is None:
            return Event(kind, path, value, fetch_only, ts=ts)
        try:
            return Event(kind, path, msgspec.convert(value, self._type), fetch_only, ts=ts)
        except msgspec.ValidationError as problem:
            return Event(kind, path, value, fetch_only, False, InvalidValue(path, str(problem)), ts)

    def _emit(self, events: list[Event]) -> None:
        callback = self._callback
        if callback is not None:
            for event in events:  # as call_back does, without the cost of a call for each of them
                try:
                    callback(event)
                except Exception:
                    log.exception("a callback failed")
        elif self.policy == "every":
            self._queue(events)
        else:
            self._conflate(events)

    def _conflate(self, events: list[Event]) -> None:
        with self._lock:
            if self.awaited and len(self._handed) < self._queue_max:
                self._handed += events
            else:
                self._merge_pending(events)
        self.wake()

    def _merge_pending(self, events: list[Event]) -> None:
        pending: Any = self._pending
        put = pending.setdefault
        for event in events:
            older = put(event.path, event)
            if older is event:
                continue
            if (older.kind, event.kind) != ("add", "remove"):
                self.conflated += 1
                pending[event.path] = _merge(older, event)
                continue
            # What was there for a moment only may be a message of its own: nothing takes the place of either event.
            del pending[event.path]
            if len(pending) < self._queue_max:
                pending[object()] = older
                pending[object()] = event
            else:
                self.conflated += 2

    def _put(self, items: list[Event]) -> None:
        """A new list of a sorted fetch; it says all that an older one said."""
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
            pending += entries[: self._queue_max + 1 - len(pending)]
        if len(pending) > self._queue_max:
            self.end(TooSlow(f"{len(pending)} events were not read; read faster, fetch less or use policy 'latest'"))
        else:
            self.wake()

    def take(self, *, awaiting: bool = False) -> list[Any]:
        """Everything that waits to be seen; who is ``awaiting`` more if there is nothing has seen what comes next."""
        with self._lock:
            handed, self._handed = self._handed, []
            pending = self._pending
            self._pending = [] if isinstance(pending, list) else {}
            self.awaited = awaiting and not handed and not pending
        taken = pending if isinstance(pending, list) else list(pending.values())
        return handed + taken if handed and taken else handed or taken


ABSENT: Any = object()
ABSENT_VALUE = Raw(b"")
TRUE = Raw(b"true")
_decode_members = msgspec.json.Decoder(list[Raw]).decode


def _path_in(fields: Mapping[str, Raw]) -> str:
    return jsonrpc.read_text(fields.get("path", Raw(b'""')), "path")


def _same(a: Any, b: Any) -> bool:
    """Whether two values are the same JSON: true is not 1, at any depth."""
    return a is b or (bool(a == b) and jsonrpc.encode(a) == jsonrpc.encode(b))


def matches(rule: Rule, path: str, value: Any) -> bool:
    """Whether a state, or a method whose value is ``UNSET``, is what a rule is about."""
    if not rule.matches_path(path):
        return False
    test = rule.matches_value
    return test is None or (value is not UNSET and not isinstance(value, InvalidValue) and test(value))


def arranged(sort: Sort, values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The window of a sorted fetch, by our own means."""
    readable = [item for item in values.items() if not isinstance(item[1], InvalidValue)]
    ordered = sorted(readable, key=lambda item: sort.key(*item), reverse=sort.descending)
    return ordered[sort.first - 1 : sort.last]


def call_back(callback: Callable[..., Any], *args: Any) -> None:
    """Call what a user gave us; its failure is logged and hurts nobody else."""
    try:
        callback(*args)
    except Exception:
        log.exception("a callback failed")


_MERGED = {
    ("add", "change"): "add",
    ("change", "change"): "change",
    ("change", "remove"): "remove",
    ("remove", "add"): "change",
}


def _merge(older: Event, newer: Event) -> Event:
    """One event for two that nobody has seen yet."""
    kind = _MERGED.get((older.kind, newer.kind), newer.kind)
    if kind == newer.kind:
        return newer
    return Event(kind, newer.path, newer.value, newer.fetch_only, newer.is_method, newer.problem)
