"""The projection of a recording onto a bus: the elements that a player owns at the moment.

Adds, changes and removes are sent in the order of the calls, without waiting for each response. After every
``SETTLE_EVENTS`` of them the player makes one request, and its response says that the daemon has handled all before; so
the daemon is never flooded, however fast the replay. Without a connection the peer keeps changes, and adds wait.

Removes need care to keep their place in that order. Adds and changes are sent by plain calls, but a remove can only be
awaited, so each runs as a task, and has sent nothing before the event loop gets its turn. ``_flush_removes`` gives it
that turn before the next message; otherwise the add that follows a remove in the recording would be sent before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple, cast

import msgspec

from jetbus.errors import JetError, NotConnected, Occupied
from jetbus.json_types import JsonObject
from jetbus.peer.aio import MethodAsync, PeerAsync, StateAsync
from jetbus.player.recording import RecordedEvent

log = logging.getLogger("jetbus.player")

SETTLE_EVENTS = 500
RETRY_S, RETRIES_MAX = 0.25, 20
"""Interval and number of attempts to add paths that are occupied after a reconnect."""

Answer = Callable[[str, Any], Awaitable[Any]]
"""Function that answers a call, given the recorded path of the method and the arguments."""

_READ_ONLY = cast(Callable[[Any], Any], None)
"""A state without a setter is read-only."""


class ProjectedElement(NamedTuple):
    """An element on the bus, with the kind and detail of its add."""

    element: StateAsync | MethodAsync
    is_method: bool
    detail: str | None


class Projection:
    """The elements of a recording that are on the bus."""

    def __init__(self, peer: PeerAsync, prefix: str, answer: Answer) -> None:
        self._peer = peer
        self._prefix = prefix
        self._answer = answer
        self._elements: dict[str, ProjectedElement] = {}
        self._online = asyncio.Event()
        self._removing: set[asyncio.Task[None]] = set()
        self._unsent = False
        """True if the task of a remove has not sent it yet."""
        self._unsettled = 0
        self._formerly_refused: set[str] = set()
        """Paths that were not accepted, of elements that are not shown any more."""

    def __len__(self) -> int:
        return len(self._elements)

    @property
    def refused(self) -> list[str]:
        """Recorded paths that the bus has not accepted."""
        return [path for path, shown in self._elements.items() if not shown.element.added]

    @property
    def refused_count(self) -> int:
        """Number of paths that the bus has not accepted so far, whether they would still be shown or not."""
        return len(self._formerly_refused.union(self.refused))

    # -- the connection

    def on_loss(self) -> None:
        """Hold adds back: the connection is lost."""
        self._online.clear()

    async def on_return(self) -> None:
        """Repeat the adds that were in flight when the connection was lost. The peer adds the rest by itself."""
        self._online.set()
        for _ in range(RETRIES_MAX):
            if not await self._retry_adds():
                return
            # Often the daemon has not noticed the loss of the previous connection yet.
            await asyncio.sleep(RETRY_S)

    async def _retry_adds(self) -> bool:
        """Add the elements that were not accepted; return whether a path is still occupied."""
        occupied = False
        for path in self.refused:
            # Each add below waits, and meanwhile an element may have been removed or accepted.
            shown = self._elements.get(path)
            if shown is not None and not shown.element.added:
                try:
                    await shown.element.add()
                except Occupied:
                    occupied = True
                except JetError as problem:
                    log.error("cannot add %s again: %s", shown.element.path, problem)
        return occupied

    # -- events

    async def show(self, event: RecordedEvent) -> None:
        """Add an element, or set the value of a state that exists."""
        assert event.path is not None  # noqa: S101
        await self._flush_removes()
        shown = self._elements.get(event.path)
        if event.event in ("describe", "past"):
            self._show_more(shown, event)
            await self._settle_when_due()
            return
        # The kind and the properties of an element cannot be changed on the bus, so it is added anew.
        if shown is not None and event.event == "add" and not _same_element(shown, event):
            self._start_remove(event.path)
            await self._flush_removes()
            shown = None
        if shown is None:
            await self._add(event)
        elif isinstance(shown.element, StateAsync) and event.value is not None:
            shown.element.change(_raw(event.value), **_read_stamp(event))
        await self._settle_when_due()

    def _show_more(self, shown: ProjectedElement | None, event: RecordedEvent) -> None:
        """Describe a state anew, or send a value of an earlier time; nothing happens if the state is not there."""
        if shown is None or not isinstance(shown.element, StateAsync):
            return
        if event.event == "describe":
            shown.element.describe(**_read_schema(event.detail))
            # The next add of this path is compared with the new description.
            self._elements[event.path or ""] = shown._replace(detail=event.detail)
        elif event.value is not None and event.source_us is not None:
            shown.element.change(_raw(event.value), **_read_stamp(event), past=True)

    async def _add(self, event: RecordedEvent) -> None:
        assert event.path is not None  # noqa: S101
        while True:
            # The peer keeps changes until it is connected again, but refuses adds.
            await self._online.wait()
            try:
                self._elements[event.path] = self._new(event.path, event)
            except NotConnected:
                self._online.clear()
            else:
                return

    def _new(self, path: str, event: RecordedEvent) -> ProjectedElement:
        there, options = self._prefix + path, _options(event.detail) | _read_schema(event.detail)
        if event.kind == "method":
            return ProjectedElement(self._peer.method(there, **options)(self._make_responder(path)), True, event.detail)
        value = _raw(event.value or "null")
        state = self._peer.state(there, value, **options)(_READ_ONLY)
        # The peer adds a state without source time and quality; a change right after it has them.
        if stamp := _read_stamp(event):
            state.change(value, **stamp)
        return ProjectedElement(state, False, event.detail)

    def _make_responder(self, path: str) -> Callable[..., Awaitable[Any]]:
        async def answer(*args: Any, **kwargs: Any) -> Any:
            return await self._answer(path, kwargs or list(args))

        return answer

    async def remove(self, path: str) -> None:
        """Remove an element, if it exists."""
        self._start_remove(path)
        await self._settle_when_due()

    def _start_remove(self, path: str) -> None:
        shown = self._elements.pop(path, None)
        if shown is not None and not shown.element.added:
            self._formerly_refused.add(path)
        elif shown is not None:
            task = asyncio.create_task(_remove(shown.element))
            # The event loop itself has only weak references to tasks.
            self._removing.add(task)
            task.add_done_callback(self._removing.discard)
            self._unsent = True

    async def clear(self) -> None:
        """Remove everything."""
        await self._remove_all_but(set())

    async def show_tree(self, tree: Iterable[RecordedEvent]) -> None:
        """Show this tree and nothing else; elements that exist already stay and get their value."""
        wanted = list(tree)
        await self._remove_all_but({event.path for event in wanted if event.path is not None})
        for event in wanted:
            await self.show(event)
        await self.settle()

    async def _remove_all_but(self, paths: set[str]) -> None:
        with contextlib.suppress(NotConnected):
            await self._peer.info()  # until then it is not known which adds were refused
        for path in [path for path in self._elements if path not in paths]:
            await self.remove(path)

    # -- the daemon

    async def _flush_removes(self) -> None:
        """Let the tasks of removes send them before anything else is sent."""
        if self._unsent:
            await asyncio.sleep(0)
            self._unsent = False

    async def _settle_when_due(self) -> None:
        self._unsettled += 1
        if self._unsettled >= SETTLE_EVENTS:
            await self.settle()

    async def settle(self) -> None:
        """Wait until the daemon has handled everything sent so far."""
        self._unsettled = 0
        await self._flush_removes()
        while True:
            await self._online.wait()
            try:
                await self._peer.info()
            except NotConnected:
                # Wait for the reconnect, unless it has happened already.
                if not self._peer.connected:
                    self._online.clear()
            else:
                return

    async def check(self) -> None:
        """Raise the reason if the bus has not accepted an element."""
        for path in self.refused:
            try:
                # The first add did not wait for its response; adding again shows the reason.
                await self._elements[path].element.add()
            except Occupied:
                there = self._prefix + path
                raise Occupied(
                    there, f"{there} exists on that bus already; use a prefix, or play onto another bus"
                ) from None


async def _remove(element: StateAsync | MethodAsync) -> None:
    try:
        await element.remove()
    except NotConnected:
        pass  # then it is removed anyway
    except JetError as problem:
        log.error("cannot remove %s: %s", element.path, problem)


def _same_element(shown: ProjectedElement, event: RecordedEvent) -> bool:
    return (shown.is_method, shown.detail) == (event.kind == "method", event.detail)


def _options(detail: str | None) -> JsonObject:
    """Return the options of an add that apply to the replay, too: its access groups."""
    properties = msgspec.json.decode(detail) if detail else {}
    return {"access": properties["access"]} if "access" in properties else {}


def _read_schema(detail: str | None) -> JsonObject:
    """Return the schema of an element as an option of its add; empty if it has none."""
    properties = msgspec.json.decode(detail) if detail else {}
    return {"schema": properties["schema"]} if properties.get("schema") is not None else {}


def _read_stamp(event: RecordedEvent) -> JsonObject:
    """Return source time and quality of a value as options of a change; empty if it has neither."""
    stamp: JsonObject = {} if event.source_us is None else {"ts": event.source_us}
    if event.quality is not None:
        is_object = event.quality.startswith("{")
        stamp["quality"] = msgspec.json.decode(event.quality) if is_object else event.quality
    return stamp


def _raw(text: str) -> msgspec.Raw:
    """Return a recorded value, to be sent unchanged."""
    return msgspec.Raw(text.encode())
