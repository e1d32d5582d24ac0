"""One browser tab on the bus: a peer that fetches everything and passes on what the tab shows.

Messages are JSON objects in both directions. The browser asks with ``{"id", "method", "params"}`` and is answered with
``{"id", "result"}`` or ``{"id", "error"}``. Without being asked it is sent

    {"status": {...}}                          the connection to the daemon and what the daemon can do
    {"tree": {"add": [[path, flags], ...],     paths that came or whose flags have changed, and paths that went;
              "remove": [...], "reset": true}} with ``reset`` the list begins anew
    {"values": {path: [value, ms, count]}}     watched paths: latest value, when it came, how many events of it the tab
                                               has seen; with 0 the value is older than the tab, and ms its beginning
    {"schemas": {path: schema}}                schemas of watched elements, where they have one
    {"meta": {path: {"ts", "quality",          time and quality of watched values, where their owners state them
              "reason"}}}

Flags are a sum: 1 method, 2 cannot be set or called by this user, 4 an alarm of it is raised; of watched paths also 8
stale, 16 bad, 32 uncertain.

Changes are not passed on one by one. They mark their path, and a flush every ``FLUSH_S`` sends the latest value of each
marked path that is watched: a tab that shows forty rows gets at most forty values twenty times a second, whatever the
bus does, and a hidden tab, which watches nothing, gets nothing.

Subscriptions of a tab, all of one peer that has the login of its browser::

    fetch **                  all elements, values only; kept in ``_rows``     from the first connection on
    fetch $jet/**             the daemon's own states, such as its users       from the first connection on
    fetch of watched paths    schema, time, quality, staleness; jetbus only    follows ``watch``, see ``descriptions``

The peer restores them when the daemon comes back, and reports only differences. So the tab keeps its tree over a
restart of the daemon, and ``reset`` is sent once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from jetbus.errors import Invalid, JetError
from jetbus.journal import BadInstant, JournalError
from jetbus.paths import is_daemons
from jetbus.peer import Event, PeerAsync
from jetbus.peer.restore import Difference, describe_outcome, find_restorable
from jetbus.peer.subscription import matches
from jetbus.peer.values import plain
from jetbus.radar.archive import Moment
from jetbus.radar.descriptions import MARKS, Descriptions
from jetbus.radar.logins import HistorySource, NoHistory
from jetbus.radar.search import find_paths
from jetbus.rules import Rule, rule

log = logging.getLogger("jetbus.radar")

FLUSH_S = 0.05
TREE_CHUNK = 5_000
"""Paths in one message of the tree, so that a page with 100,000 of them can begin to draw."""
WATCHED_MAX = 2_000
"""Paths that one tab may watch at a time; it shows far fewer."""
SEARCH_MAX = 1_000
RESTORE_MAX = 5_000
"""States that are set back at a time."""
RESTORES_AT_A_TIME = 32
"""Sets that wait for their owners side by side."""
METHOD, READ_ONLY, ALARM = 1, 2, 4

_ALARM_PATH = re.compile(r"(?:^|/)alarms/[^/]+/[^/]+/(.+)")
"""Path of an alarm that a pipeline publishes: ``PREFIX/alarms/ALARM/BUS/PATH``; the group is the path it is about."""
USERS, LOGINS = "$jet/users", "$jet/logins"
"""States of the daemon by which a tab knows whether there are users, and whether its own is an administrator."""

Send = Callable[[str], Awaitable[None]]


class TabRequest(msgspec.Struct):
    """A request of the browser."""

    method: str
    id: int | None = None
    params: dict[str, Any] = {}


class BusAddress(NamedTuple):
    """The daemon and how to reach it, as ``PeerAsync`` takes it."""

    url: str | None
    options: dict[str, Any]


class WatchedValue:
    """Value of a path, the time it came, and the number of its events."""

    __slots__ = ("events", "flags", "ms", "value")

    def __init__(self, value: Any, flags: int, ms: int, events: int) -> None:
        self.value = value
        self.flags = flags
        self.ms = ms
        self.events = events

    def show(self) -> list[Any]:
        """Return the row as the browser reads it."""
        return [self.value, self.ms, self.events]


class TabSession:
    """The bus as one tab sees it. ``run`` it next to the loop that feeds ``receive``."""

    def __init__(self, address: BusAddress, send: Send, *, user: str | None, history: HistorySource) -> None:
        self._send = send
        self._user = user
        self._history = history
        self._address = address
        self._peer = self._make_peer()
        self._rows: dict[str, WatchedValue] = {}
        self._watched: set[str] = set()
        self._marked: set[str] = set()
        self._alarms: dict[str, set[str]] = {}
        """Alarms that are raised, by the path they are about."""
        self._is_complete = False
        """True once all that was on the bus before this session is known, so that each further add is a new element."""
        self._is_jetbus = False
        self._descriptions = Descriptions(self._note_marks, self._due_now)
        self._added: dict[str, int] = {}
        self._removed: set[str] = set()
        self._reset = True
        self._due = asyncio.Event()
        self._status_due = True
        self._failure = ""
        self._methods: dict[str, Callable[..., Awaitable[Any]]] = {
            "watch": self._watch,
            "search": self._search,
            "get": self._get,
            "set": self._set,
            "call": self._call,
            "compare": self._compare,
            "restore": self._restore,
        }

    # -- the bus

    def _make_peer(self) -> PeerAsync:
        url, options = self._address
        return PeerAsync(url, name="radar", on_loss=self._on_loss, on_return=self._on_return, **options)

    def _on_loss(self) -> None:
        self._failure = "the connection to the daemon was lost"
        self._mark_status()

    def _on_return(self) -> None:
        self._failure = ""
        self._mark_status()

    async def run(self) -> None:
        """Connect, then flush what has changed until cancelled."""
        connecting = asyncio.create_task(self._connect())
        try:
            while True:
                await self._due.wait()
                self._due.clear()
                await self._flush()
                # After the flush: the first change after a silence goes out at once, only those that follow wait.
                await asyncio.sleep(FLUSH_S)
        finally:
            connecting.cancel()
            with contextlib.suppress(asyncio.CancelledError, JetError, OSError):
                await connecting
            await self._peer.close()

    async def _connect(self) -> None:
        """Connect and fetch, trying again while the daemon is away; the peer itself comes back from then on."""
        peer, wait_s = self._peer, 0.2
        while True:
            try:
                await peer.connect()
                break
            except (OSError, JetError) as problem:
                self._failure = str(problem)
                self._mark_status()
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, 5.0)
        self._failure = ""
        self._mark_status()
        # Without schema and meta, so that changes come many to a message; ``descriptions`` asks for these.
        fetches = [peer.fetch("**", callback=self._on_event)]
        # A fetch of its own, because ``**`` leaves out the states of the daemon.
        fetches.append(peer.fetch("$jet/**", callback=self._on_event))
        for fetch in fetches:
            await fetch.ready()
        self._is_complete = True

    def _on_event(self, event: Event) -> None:
        path, kind = event.path, event.kind
        if kind == "change":
            row = self._rows.get(path)
            if row is None:
                return
            row.value, row.ms = event.value, _now_ms()
            row.events += 1
            if path in self._watched:
                self._mark(path)
        elif kind == "add":
            if path in (USERS, LOGINS):
                self._mark_status()
            flags = METHOD * event.is_method | READ_ONLY * event.fetch_only | ALARM * (path in self._alarms)
            self._rows[path] = WatchedValue(event.value, flags, _now_ms(), int(self._is_complete))
            # Gone and back between two flushes: all that the tab has to hear of are the new flags.
            self._removed.discard(path)
            self._added[path] = flags
            self._mark(path)
        else:
            self._rows.pop(path, None)
            self._descriptions.forget(path)
            # Before its first list the tab knows no path, so one that has come and gone need not be removed there.
            # Later on, ``_added`` may also hold new flags of a path that the tab knows.
            if self._added.pop(path, None) is None or self._reset is False:
                self._removed.add(path)
            self._due.set()
        if "alarms/" in path:
            self._note_alarm(path, None if kind == "remove" else event.value)

    def _note_alarm(self, path: str, value: Any) -> None:
        """Flag the path that a published alarm is about, while any of its alarms is raised."""
        found = _ALARM_PATH.search(path)
        if found is None:
            return
        about = found[1]
        raised = self._alarms.setdefault(about, set())
        if isinstance(value, dict) and value.get("what") == "raised":
            raised.add(path)
        else:
            raised.discard(path)
        if not raised:
            del self._alarms[about]
        self._change_flags(about, ALARM, ALARM * bool(raised))

    def _note_marks(self, path: str, marks: int) -> None:
        self._change_flags(path, MARKS, marks)

    def _change_flags(self, path: str, mask: int, flags: int) -> None:
        """Set those flags of a path that a mask names, and tell the tab if that changes any."""
        row = self._rows.get(path)
        if row is None or row.flags & mask == flags:
            return
        row.flags = self._added[path] = row.flags & ~mask | flags
        self._due.set()

    def _due_now(self) -> None:
        self._due.set()

    def _mark(self, path: str) -> None:
        self._marked.add(path)
        self._due.set()

    def _mark_status(self) -> None:
        self._status_due = True
        self._due.set()

    # -- the browser

    async def _flush(self) -> None:
        """Send what has changed since the last flush."""
        if self._status_due:
            self._status_due = False
            await self._send_json({"status": await self._describe()})
        while self._added or self._removed or self._reset:
            added = dict(list(self._added.items())[:TREE_CHUNK])
            for path in added:
                del self._added[path]
            # Taken out before anything is awaited: events that come during the sending belong to the next message.
            removed, self._removed = self._removed, set()
            message = {"add": list(added.items()), "remove": list(removed), "reset": self._reset}
            self._reset = False
            await self._send_json({"tree": message})
        # Marks of paths that are not watched are dropped: ``watch`` marks each new path, and so sends its latest value.
        marked, self._marked = self._marked & self._watched, set()
        for name, news in self._descriptions.take().items():
            await self._send_json({name: news})
        values = {path: self._rows[path].show() for path in marked if path in self._rows}
        if values:
            await self._send_json({"values": values})

    async def _describe(self) -> dict[str, Any]:
        connected = self._peer.connected
        daemon: dict[str, Any] = {}
        # In a thread, because the first question opens the journal.
        has_history = await asyncio.to_thread(self._history.is_there)
        if connected:
            with contextlib.suppress(JetError):
                daemon = await self._peer.info()
                self._is_jetbus = daemon.get("name") == "jetbus"
                self._follow_descriptions()
        has_users = bool(self._rows[USERS].value) if USERS in self._rows else _wants_login(daemon)
        return {
            "connected": connected,
            "problem": self._failure,
            "daemon": daemon,
            "user": self._user,
            "users": has_users,
            # Only administrators may see the logins; a daemon without users makes no difference between people.
            "admin": LOGINS in self._rows or (USERS in self._rows and not has_users),
            "history": has_history,
        }

    async def receive(self, text: str) -> None:
        """Handle one message of the browser and answer it."""
        try:
            request = msgspec.json.decode(text, type=TabRequest)
        except msgspec.MsgspecError as problem:
            await self._send_json({"error": {"message": f"this is not a request: {problem}"}})
            return
        try:
            method = self._methods.get(request.method)
            if method is None:
                raise Invalid(f"there is no method {request.method}; there are {', '.join(self._methods)}")
            answer = {"result": await method(**request.params)}
        except TypeError as problem:
            # Parameters that the method does not have, or that are missing.
            answer = {"error": {"type": "Invalid", "message": f"{request.method}: {problem}"}}
        except JetError as problem:
            answer = {"error": {"type": type(problem).__name__, "message": str(problem), "data": problem.data}}
        if request.id is not None:
            await self._send_json({"id": request.id, **answer})

    async def _send_json(self, message: dict[str, Any]) -> None:
        await self._send(msgspec.json.encode(message, enc_hook=_encode_other).decode())

    async def _watch(self, paths: list[str]) -> None:
        if len(paths) > WATCHED_MAX:
            raise Invalid(f"a tab watches at most {WATCHED_MAX} paths, not {len(paths)}")
        wanted = set(paths)
        for path in wanted - self._watched:
            self._mark(path)
        self._watched = wanted
        self._follow_descriptions()

    def _follow_descriptions(self) -> None:
        """Ask our own daemon about the watched paths; others do not know what to answer."""
        if self._is_jetbus and self._peer.connected:
            self._descriptions.follow(self._peer, self._watched)

    async def _search(self, text: str, limit: int = SEARCH_MAX) -> dict[str, Any]:
        # Over what the session knows already: a search asks nothing of the bus.
        values = ((path, row.value, bool(row.flags & METHOD)) for path, row in self._rows.items())
        found = find_paths(text, values)
        return {"paths": found[: min(limit, SEARCH_MAX)], "total": len(found)}

    async def _get(self, path: str) -> Any:
        row = self._rows.get(path)
        return None if row is None else row.show()

    async def _set(self, path: str, value: Any, timeout_s: float | None = None) -> dict[str, Any]:
        result = await self._peer.set(path, value, timeout_s=timeout_s)
        return {"adapted": result.adapted, "warning": result.warning}

    async def _call(self, path: str, args: Any = None, timeout_s: float | None = None) -> Any:
        started = time.perf_counter()
        if isinstance(args, dict):
            result = await self._peer.call(path, timeout_s=timeout_s, **args)
        else:
            result = await self._peer.call(path, *(args or ()), timeout_s=timeout_s)
        return {"result": result, "ms": (time.perf_counter() - started) * 1000}

    # -- the way back

    async def _compare(self, rule: str, instant: Moment) -> dict[str, Any]:
        """Return the states that a set could bring back to the value that they had at an instant."""
        found = await self._find_restorable(rule, instant)
        rows = [{"path": path, "now": plain(now), "then": then} for path, now, then in found[:RESTORE_MAX]]
        return {"differences": rows, "total": len(found)}

    async def _restore(self, rule: str, instant: Moment, paths: list[str]) -> dict[str, str]:
        """Set these paths back to their value at an instant, and return what became of each."""
        if len(paths) > RESTORE_MAX:
            raise Invalid(f"at most {RESTORE_MAX} states are set back at a time, not {len(paths)}")
        wanted = set(paths)
        # Compared anew: a state may have changed since the user has seen the differences.
        found = [one for one in await self._find_restorable(rule, instant) if one.path in wanted]
        slots = asyncio.Semaphore(RESTORES_AT_A_TIME)

        async def set_back(difference: Difference) -> str:
            async with slots:
                try:
                    return describe_outcome(await self._peer.set(difference.path, difference.after))
                except JetError as refusal:
                    return describe_outcome(refusal)

        outcomes = await asyncio.gather(*map(set_back, found))
        same = dict.fromkeys(wanted - {one.path for one in found}, "already as it was")
        return {**same, **{one.path: outcome for one, outcome in zip(found, outcomes, strict=True)}}

    async def _find_restorable(self, text: str, instant: Moment) -> list[Difference]:
        wanted = rule(text)
        now = {path: row.value for path, row in self._rows.items() if self._may_restore(wanted, path, row)}
        try:
            then = await asyncio.to_thread(lambda: self._history.get().read_values(instant, text))
        except (NoHistory, BadInstant, JournalError) as problem:
            raise Invalid(str(problem)) from None
        return list(find_restorable(now, then))

    @staticmethod
    def _may_restore(wanted: Rule, path: str, row: WatchedValue) -> bool:
        return not row.flags & (METHOD | READ_ONLY) and not is_daemons(path) and matches(wanted, path, row.value)


def _wants_login(daemon: dict[str, Any]) -> bool:
    """Return True for a daemon of others that can log users in; whether it has any it does not tell."""
    features = daemon.get("features")
    return daemon.get("name") != "jetbus" and isinstance(features, dict) and features.get("authentication") is True


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _encode_other(value: Any) -> Any:
    """Return the JSON for bytes, with their type, or for a value that cannot be read, the reason."""
    return plain(value) if isinstance(value, bytes) else {"error": str(value)}
