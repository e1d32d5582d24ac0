"""The bus as one login sees it, kept once for all its tabs.

A mirror is one peer with two fetches::

    fetch **         all elements, values only; kept in ``rows``     from the first connection on
    fetch $jet/**    the daemon's own states, such as its users      from the first connection on

The peer restores them when the daemon comes back, and reports only differences. Tabs attach to the mirror, read its
rows, and are told which paths came, changed or went. So the memory of Radar grows with the bus and with the number of
logins, not with the number of tabs. The mirror closes with its last tab.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from typing import Any, Protocol

from jetbus.errors import JetError
from jetbus.peer import Event, PeerAsync

METHOD, READ_ONLY, ALARM = 1, 2, 4
"""Flags of a path: a method, cannot be set or called by this user, an alarm of it is raised."""
USERS, LOGINS = "$jet/users", "$jet/logins"
"""States of the daemon that show whether there are users, and whether this login is an administrator's."""
RETRY_S, RETRY_S_MAX = 0.2, 5.0
"""Wait before the first connection is tried again: the first one, and the longest."""

_ALARM_PATH = re.compile(r"(?:^|/)alarms/[^/]+/[^/]+/(.+)")
"""Path of an alarm that a pipeline publishes: ``PREFIX/alarms/ALARM/BUS/PATH``; the group is the path it is about."""


class MirrorRow:
    """Value and flags of a path, the time the value came, and the number of its events that the mirror has seen."""

    __slots__ = ("events", "flags", "ms", "value")

    def __init__(self, value: Any, flags: int, ms: int, events: int) -> None:
        self.value = value
        self.flags = flags
        self.ms = ms
        self.events = events

    def show(self) -> list[Any]:
        """Return the row as the browser reads it."""
        return [self.value, self.ms, self.events]


class Onlooker(Protocol):
    """A tab, as the mirror knows it."""

    def note_value(self, path: str) -> None:
        """A watched path has a new value."""

    def note_element(self, path: str) -> None:
        """A path came, or its flags have changed."""

    def note_removal(self, path: str) -> None:
        """A path went."""

    def note_status(self) -> None:
        """The connection to the daemon came or went, or the daemon's users are known."""


class BusMirror:
    """All elements of a bus with their latest values, for the tabs of one login."""

    def __init__(self, url: str | None, options: dict[str, Any]) -> None:
        """Follow the bus at a URL; the options are those of its peer."""
        self.rows: dict[str, MirrorRow] = {}
        self.peer = PeerAsync(url, name="radar", on_loss=self._on_loss, on_return=self._on_return, **options)
        self.problem = ""
        """Reason why there is no connection to the daemon, or empty."""
        self.is_closed = False
        self._tabs: dict[Onlooker, None] = {}
        self._watchers: dict[str, set[Onlooker]] = {}
        """Tabs by the paths that they watch."""
        self._alarms: dict[str, set[str]] = {}
        """Alarms that are raised, by the path they are about."""
        self.is_complete = False
        """True once all that was on the bus before is known, so that each further add is a new element."""
        self._connecting: asyncio.Task[None] | None = None

    def attach(self, tab: Onlooker) -> None:
        """Tell a tab of everything from now on; the first one makes the mirror connect."""
        self._tabs[tab] = None
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())

    async def detach(self, tab: Onlooker, watched: set[str]) -> None:
        """Let a tab go, and close with the last one."""
        self.watch(tab, watched, set())
        del self._tabs[tab]
        if self._tabs:
            return
        self.is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            with contextlib.suppress(asyncio.CancelledError, JetError, OSError):
                await self._connecting
        await self.peer.close()

    def watch(self, tab: Onlooker, before: set[str], wanted: set[str]) -> None:
        """Tell a tab of new values of the wanted paths, in place of those before."""
        for path in before - wanted:
            watchers = self._watchers[path]
            watchers.discard(tab)
            if not watchers:
                del self._watchers[path]
        for path in wanted - before:
            self._watchers.setdefault(path, set()).add(tab)

    async def read_info(self) -> dict[str, Any]:
        """Return the daemon's states about itself; nothing while there is no connection."""
        if self.peer.connected:
            with contextlib.suppress(JetError):
                return await self.peer.info()
        return {}

    # -- the bus

    def _on_loss(self) -> None:
        self._note_problem("the connection to the daemon was lost")

    def _on_return(self) -> None:
        self._note_problem("")

    def _note_problem(self, text: str) -> None:
        self.problem = text
        self._note_status()

    def _note_status(self) -> None:
        for tab in self._tabs:
            tab.note_status()

    async def _connect(self) -> None:
        """Connect and fetch, trying again while the daemon is away; the peer itself comes back from then on."""
        peer, wait_s = self.peer, RETRY_S
        while True:
            try:
                await peer.connect()
                break
            except (OSError, JetError) as problem:
                self._note_problem(str(problem))
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, RETRY_S_MAX)
        self._note_problem("")
        # Without schema and meta, so that changes come many to a message; ``watched`` asks for these.
        # The daemon's states need a fetch of their own, because ``**`` leaves them out.
        fetches = [peer.fetch("**", callback=self._on_event), peer.fetch("$jet/**", callback=self._on_event)]
        for fetch in fetches:
            await fetch.ready()
        self.is_complete = True
        # Whether a daemon of another make has users is seen by the elements that it has shown.
        self._note_status()

    def _on_event(self, event: Event) -> None:
        path, kind = event.path, event.kind
        if kind == "change":
            row = self.rows.get(path)
            if row is None:
                return
            row.value, row.ms = event.value, _now_ms()
            row.events += 1
            for tab in self._watchers.get(path, ()):
                tab.note_value(path)
        elif kind == "add":
            flags = METHOD * event.is_method | READ_ONLY * event.fetch_only | ALARM * (path in self._alarms)
            self.rows[path] = MirrorRow(event.value, flags, _now_ms(), int(self.is_complete))
            for tab in self._tabs:
                tab.note_element(path)
            for tab in self._watchers.get(path, ()):
                tab.note_value(path)
            if path in (USERS, LOGINS):
                self._note_status()
        else:
            self.rows.pop(path, None)
            for tab in self._tabs:
                tab.note_removal(path)
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
        row = self.rows.get(about)
        if row is not None and bool(row.flags & ALARM) != bool(raised):
            row.flags ^= ALARM
            for tab in self._tabs:
                tab.note_element(about)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
