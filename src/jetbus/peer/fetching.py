"""The client's side of a fetch: what it knows, what the consumer has yet to see, and how a reconnect is smoothed
over.

A fetch remembers what it has told. When the connection comes back the daemon tells everything anew; only the
difference is passed on: what changed, came and went meanwhile. The same memory lets a fetch test a rule itself, where
the daemon does not know the rule's words or gets them wrong. Between the connection and the consumer is a queue with
a limit: with the policy ``latest`` a newer event of a path takes the place of an older one that nobody has seen, with
``every`` none is lost and a consumer that falls too far behind is told so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from jetbus.errors import InvalidValue, JetError, TooSlow
from jetbus.rules import Rule, write_rule

Policy = Literal["latest", "every"]
QUEUE_MAX = 100_000


class Told(Struct, gc=False):
    """The parameters of a notification, plain or sorted."""

    path: str = ""
    event: str = ""
    value: Any = UNSET
    fetchOnly: bool = False  # noqa: N815 - the wire's name
    changes: list[Any] | UnsetType = UNSET
    n: int = 0


class Event(Struct, frozen=True, gc=False):
    """What happened to a state or method: ``add``, ``change`` or ``remove``. A method has no value."""

    kind: str
    path: str
    value: Any = None
    fetch_only: bool = False
    is_method: bool = False
    problem: JetError | None = None
    """Why the value could not be read as the type that was asked for."""


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
    ) -> None:
        self.id = fetch_id
        self.rule = rule
        self.params, self._told_all = write_rule(rule)
        if policy == "every":
            self.params["every"] = True
        self.policy = policy
        self.known: dict[str, Any] = {}
        """The value of every match as last told; ``UNSET`` for a method."""
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
        self._pending: dict[str, Event] | list[Any] = [] if policy == "every" or rule.sort else {}
        self._lock = threading.Lock()
        self._trusting = self._told_all
        """Whether the daemon's word on what matches can be taken."""
        self._syncing: set[str] | None = None
        """The paths told since the last (re)connect, until everything has been told."""

    # -- from the session

    def begin(self, *, daemon_is_ours: bool) -> None:
        """The fetch has been sent to a daemon: everything is told anew."""
        self._trusting = self._told_all and daemon_is_ours
        self._syncing = set()

    def told_everything(self) -> None:
        """All that is there has been told: what was known and not told again is gone."""
        told, self._syncing = self._syncing, None
        if told is not None and self.rule.sort is None:
            for path in [path for path in self.known if path not in told]:
                self._emit("remove", path, self.known.pop(path), False)
        self.complete = True
        self.wake()

    def tell(self, told: Told) -> None:
        """A notification."""
        if told.changes is not UNSET:
            self._tell_sorted(told)
        elif self._trusting and self._syncing is None:
            kind, path, value = told.event, told.path, told.value
            if kind == "remove":
                self.known.pop(path, None)
            else:
                self.known[path] = value
            self._emit(kind, path, value, told.fetchOnly)
        else:
            self._tell_checked(told.event.lower(), told.path, told.value, told.fetchOnly)

    def _tell_checked(self, kind: str, path: str, value: Any, fetch_only: bool) -> None:
        known = self.known
        before = known.get(path, ABSENT)
        if kind == "remove" or not (self._trusting or self._matches(path, value)):
            if before is not ABSENT:
                del known[path]
                self._emit("remove", path, value, fetch_only)
            return
        known[path] = value
        if self._syncing is not None:
            self._syncing.add(path)
            if before is not ABSENT and kind == "add" and _same(before, value):
                return
        self._emit("add" if before is ABSENT else "change", path, value, fetch_only)

    def _matches(self, path: str, value: Any) -> bool:
        if not self.rule.matches_path(path):
            return False
        test = self.rule.matches_value
        return test is None or (value is not UNSET and test(value))

    def _tell_sorted(self, told: Told) -> None:
        sort = self.rule.sort
        first = sort.first if sort else 1
        items = list(self.items[: told.n])
        for entry in told.changes if isinstance(told.changes, list) else ():
            index = entry["index"] - first
            event = self._event("change", entry["path"], entry.get("value", UNSET), entry.get("fetchOnly", False))
            if index < len(items):
                items[index] = event
            else:
                items.append(event)
        if self._syncing is not None and self.complete and items == self.items:
            return
        self.items = items
        self._put(items)

    def end(self, error: JetError | None = None) -> None:
        """Nothing more will be told."""
        self.ended = True
        self.error = error
        self.wake()

    # -- to the consumer

    def _event(self, kind: str, path: str, value: Any, fetch_only: bool) -> Event:
        if value is UNSET:
            return Event(kind, path, None, fetch_only, True)
        if self._type is None:
            return Event(kind, path, value, fetch_only)
        try:
            return Event(kind, path, msgspec.convert(value, self._type), fetch_only)
        except msgspec.ValidationError as problem:
            return Event(kind, path, value, fetch_only, False, InvalidValue(path, str(problem)))

    def _emit(self, kind: str, path: str, value: Any, fetch_only: bool) -> None:
        event = self._event(kind, path, value, fetch_only)
        if self._callback is not None:
            self._callback(event)
            return
        pending = self._pending
        if isinstance(pending, list):
            self._put(event)
            return
        with self._lock:
            pending = self._pending
            assert isinstance(pending, dict)  # noqa: S101
            older = pending.get(path)
            if older is not None:
                self.conflated += 1
                event = _merge(older, event)  # type: ignore[assignment]
            if event is None:
                del pending[path]
            else:
                pending[path] = event
            first = len(pending) == 1
        if first:
            self.wake()

    def _put(self, event: Any) -> None:
        if self._callback is not None:
            self._callback(event)
            return
        with self._lock:
            pending = self._pending
            assert isinstance(pending, list)  # noqa: S101
            if self.policy == "latest" and pending:
                self.conflated += 1
                pending.clear()  # only a sorted fetch comes here: its newest list says it all
            pending.append(event)
            first, full = len(pending) == 1, len(pending) > self._queue_max
        if full and not self.ended:
            self.end(TooSlow(f"{len(pending)} events were not read; read faster, fetch less or use policy 'latest'"))
        elif first:
            self.wake()

    def take(self) -> list[Any]:
        """Everything that waits to be seen."""
        with self._lock:
            pending = self._pending
            self._pending = [] if isinstance(pending, list) else {}
        return pending if isinstance(pending, list) else list(pending.values())


ABSENT: Any = object()


def _same(a: Any, b: Any) -> bool:
    """Whether two values are the same JSON: true is not 1, but 1.0 may be 1."""
    return type(a) is type(b) and bool(a == b) if isinstance(a, bool) or isinstance(b, bool) else bool(a == b)


_MERGED = {
    ("add", "change"): "add",
    ("change", "change"): "change",
    ("change", "remove"): "remove",
    ("remove", "add"): "change",
}


def _merge(older: Event, newer: Event) -> Event | None:
    """One event for two that nobody has seen yet; None where the newer one undoes the older one."""
    if (older.kind, newer.kind) == ("add", "remove"):
        return None
    kind = _MERGED.get((older.kind, newer.kind), newer.kind)
    if kind == newer.kind:
        return newer
    return Event(kind, newer.path, newer.value, newer.fetch_only, newer.is_method, newer.problem)
