"""A recorder: a peer that writes the journal of any Jet bus, from outside.

    async with Recorder("jet://device", "/var/lib/jet/device") as recorder:
        await recorder.wait()

It sees what a fetch sees: add, change and remove. Who owns what, and sets and calls, are known to the daemon alone; the
column ``peer`` is null. The journal is that of a daemon otherwise, with the same readers.

What the journal says is on the bus must always be what the recorder last saw there:

- A recorder that begins a journal, or goes on with one that was closed, writes ``start``: the tree is empty, and all
  that is there is added after it. A recorder that stops writes ``stop``; from then on nothing is known.
- While the connection is away nothing is known either, but the tree stays. When it is back, a ``gap`` says since when
  and why, and what differs is told after it: what came, changed and vanished meanwhile.
- A journal whose recorder was killed was not closed. Its last tree is compared with the bus in the same way: a
  ``gap`` since the last event, then the difference. A ``start`` there would empty the tree and repeat everything.
- Where the disk has refused for so long that events were dropped, the fetch is begun anew and compared in the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec

import jetbus
from jetbus import journal
from jetbus.errors import JetError
from jetbus.journal import Densities, Settings, Writer
from jetbus.journal.instants import wall_clock_us, write_instant
from jetbus.journal.writer import WriterStats
from jetbus.loops import run, until_stopped
from jetbus.peer.aio import FetchAsync, PeerAsync
from jetbus.peer.fetching import Event
from jetbus.peer.values import Blob, encode_value
from jetbus.rules import Rule
from jetbus.rules import rule as make_rule

__all__ = ["Recorder", "record"]

CATCH_UP_S = 2.0
"""How long a recorder that is stopped waits for what is on the way to it."""

_NOT_STARTED = "the recorder is not started; start() it, or use it in an async with block"


class _Known(NamedTuple):
    """An element as the journal has it."""

    kind: str
    value: bytes | None
    detail: bytes | None


class Recorder:
    """Writes what happens on a bus into a journal, from ``start`` to ``stop``; ``async with`` does both."""

    def __init__(
        self,
        url: str | None,
        directory: str | Path,
        *,
        rule: str | Rule | None = None,
        settings: Settings | None = None,
        densities: Densities | Iterable[tuple[str, str]] = (),
        name: str = "recorder",
        user: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._rule = make_rule(rule)
        if self._rule.sort is not None:
            raise ValueError("a recorder records what happens, not a sorted list; leave the sorting out of its rule")
        self.directory = Path(directory)
        self._settings = settings or Settings()
        self._densities = densities if isinstance(densities, Densities) else Densities(densities)
        self._peer = PeerAsync(
            url,
            name=name,
            user=user,
            password=password,
            tls=tls,
            on_loss=self._on_loss,
            on_return=self._on_return,
        )
        self._said = {"recorder": name, "url": self._peer.url} | ({"rule": rule} if isinstance(rule, str) else {})
        self._writer: Writer | None = None
        self._fetch: FetchAsync | None = None
        self._left: dict[str, _Known] = {}
        """What the journal has of before and the bus has not yet told."""
        self._lost_us = 0
        """When the connection was lost, while it is."""
        self._missed = False
        """Events were dropped and not made good yet."""
        self._in_turn = False
        self._due = asyncio.Event()
        self._stopping = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="jet-recorder")
        self._flushing: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    # -- from start to stop

    async def start(self) -> None:
        """Connect, open the journal and record; returns when all that is on the bus is written."""
        try:
            await self._peer.connect()
            await self._aside(self._open)
            self._begin()
            self._fetch = self._peer.fetch(self._rule, self._hear, policy="every")
            self._flushing = asyncio.create_task(self._flush_regularly())
            await self._fetch.ready()
            self._tell_vanished()
            await self.commit()
        except BaseException as problem:
            await self.stop(f"{problem}" or type(problem).__name__)
            raise
        self._watching = asyncio.create_task(self._watch())

    def _open(self) -> None:
        self._writer = Writer(self.directory, self._settings, densities=self._densities)
        found = self._writer.recovered
        if found.last_seq and not found.clean:
            # The log may begin in the middle, without a tree to go on from; then all is told anew.
            with contextlib.suppress(journal.JournalGone):
                self._left = _tree(self.directory)

    def _begin(self) -> None:
        writer = self._opened
        found = writer.recovered
        self._turn()
        if self._left:
            self._tell_gap("the recorder ended without a stop", found.last_ts_us)
            return
        told = {"version": jetbus.__version__, **self._said, "restart": found.last_seq > 0}
        if not found.clean:
            told |= {"clean": False, "cut_bytes": found.cut_bytes}
        writer.append("start", detail=msgspec.json.encode(told))

    async def stop(self, reason: str | None = None) -> None:
        """Record what has happened up to now, leave the bus and close the journal; a reason is recorded, too."""
        if self._stopping:
            return
        self._stopping = True
        if self._watching is not None and self._peer.connected:
            with contextlib.suppress(JetError, TimeoutError):
                async with asyncio.timeout(CATCH_UP_S):
                    await self._peer.info()  # its answer comes after all that is on the way
        await self._peer.close()
        if self._watching is not None:
            self._watching.cancel()
        self._due.set()
        await asyncio.gather(*filter(None, [self._flushing]), return_exceptions=True)
        await self._aside(int)  # a journal may just be opened there
        if self._writer is not None:
            self._turn()
            if self._lost_us:
                self._on_return()
            told = self._said | ({"reason": reason} if reason else {})
            self._writer.append("stop", detail=msgspec.json.encode(told))
            await self._aside(self._writer.close)
        self._thread.shutdown(wait=False)

    async def wait(self) -> None:
        """Wait until the recording ends by itself; raises why it did. Lost connections do not end it."""
        if self._watching is None or self._flushing is None:
            raise RuntimeError(_NOT_STARTED)
        done, _ = await asyncio.wait([self._watching, self._flushing], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if not task.cancelled():
                task.result()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, _kind: object, problem: BaseException | None, _trace: object) -> None:
        await self.stop(f"{problem}" if isinstance(problem, JetError) else None)

    async def _watch(self) -> None:
        while self._fetch is not None:
            async for _ in self._fetch:
                pass  # what it tells goes to the callback; only its end comes here
            if not self._missed:
                return
            await self._begin_anew()

    async def _begin_anew(self) -> None:
        """Events were dropped: see what is there, and tell what differs from what the journal has."""
        self._missed = False
        await self.commit()
        try:
            self._left = await self._aside(_tree, self.directory)
        except journal.JournalGone:
            self._turn()
            self._opened.append("start", detail=msgspec.json.encode({**self._said, "again": True}))
        self._fetch = self._peer.fetch(self._rule, self._hear, policy="every")
        await self._fetch.ready()
        self._tell_vanished()

    # -- what there is to know

    @property
    def connected(self) -> bool:
        """Whether there is a connection to the daemon right now."""
        return self._peer.connected

    @property
    def url(self) -> str:
        """Where the daemon is, without password."""
        return self._peer.url

    @property
    def problem(self) -> str | None:
        """Why the disk refuses, while it does."""
        return self._opened.problem

    def stats(self) -> WriterStats:
        """What the writer of the journal tells of itself."""
        return self._opened.stats()

    @property
    def _opened(self) -> Writer:
        if self._writer is None:
            raise RuntimeError(_NOT_STARTED)
        return self._writer

    # -- what happens

    def _turn(self) -> None:
        """What is told now happens now; all that came in one piece has one instant."""
        if not self._in_turn:
            self._in_turn = True
            self._opened.now_us = wall_clock_us()
            asyncio.get_running_loop().call_soon(self._turn_over)

    def _turn_over(self) -> None:
        self._in_turn = False
        if self._opened.pending >= self._settings.flush_events:
            self._due.set()

    def _hear(self, event: Event) -> None:
        self._turn()
        if self._left and (before := self._left.pop(event.path, None)) is not None:
            self._tell_difference(event, before)
        else:
            _TELL[event.kind](self, event)

    def _tell_difference(self, event: Event, before: _Known) -> None:
        """What the bus tells first about something that the journal knows already."""
        now = _known(event)
        if event.kind == "remove" or (now.kind, now.detail) != (before.kind, before.detail):
            self._opened.append("remove", before.kind, event.path, before.value)
            if event.kind != "remove":
                self._tell_add(event)
        elif now.value != before.value:
            self._tell_change(event)

    def _tell_vanished(self) -> None:
        """All that is on the bus has been told: what is left is gone."""
        self._turn()
        left, self._left = self._left, {}
        for path, before in left.items():
            self._opened.append("remove", before.kind, path, before.value)

    def _tell_add(self, event: Event) -> None:
        kind, value, detail = _known(event)
        self._opened.append("add", kind, event.path, value, None, detail)

    def _tell_change(self, event: Event) -> None:
        value = encode_value(event.value)
        if self._densities and self._densities.of(event.path).interval_us:
            self._opened.change(event.path, value, "")  # samples are taken there
        else:
            self._opened.append("change", "state", event.path, value)

    def _tell_remove(self, event: Event) -> None:
        kind, value, _ = _known(event)
        self._opened.append("remove", kind, event.path, value)

    def _tell_gap(self, reason: str, since_us: int) -> None:
        told = {"reason": reason, **self._said, "since": write_instant(since_us)}
        self._opened.append("gap", detail=msgspec.json.encode(told))

    def _on_loss(self) -> None:
        self._lost_us = self._lost_us or wall_clock_us()

    def _on_return(self) -> None:
        since_us, self._lost_us = self._lost_us, 0
        if self._fetch is not None:
            self._turn()
            self._tell_gap("the connection was lost", since_us)

    # -- writing

    async def commit(self) -> int:
        """Write all there is, now; gives the last seq that is in the journal."""
        writer = self._opened
        writer.now_us = wall_clock_us()
        await self._aside(writer.write, writer.take())
        return writer.seq - 1 - writer.pending

    async def _flush_regularly(self) -> None:
        flush_s = self._settings.flush_ms / 1000
        while not self._stopping:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(flush_s):
                    await self._due.wait()
            self._due.clear()
            await self.commit()
            if self._watching is not None and self._opened.take_lost() is not None and self._fetch is not None:
                self._missed = True
                self._fetch.close()

    async def _aside(self, work: Callable[..., Any], *args: Any) -> Any:
        """Do something in the recorder's own thread; one thing after the other."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)


_TELL: dict[str, Callable[[Recorder, Event], None]] = {
    "add": Recorder._tell_add,
    "change": Recorder._tell_change,
    "remove": Recorder._tell_remove,
}


def _known(event: Event) -> _Known:
    """An element as the journal will have it."""
    told: dict[str, Any] = {}
    if event.fetch_only:
        told["fetchOnly"] = True
    if isinstance(event.value, Blob):
        told["type"] = event.value.mime
    detail = msgspec.json.encode(told) if told else None
    return _Known("method", None, detail) if event.is_method else _Known("state", encode_value(event.value), detail)


def _tree(directory: Path) -> dict[str, _Known]:
    """What the journal says is on the bus."""
    rows = journal.open(directory).as_of().select(["path", "kind", "value", "detail"]).to_pylist()
    return {row["path"]: _Known(row["kind"] or "state", _bytes(row["value"]), _bytes(row["detail"])) for row in rows}


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def record(
    url: str | None,
    directory: str | Path,
    *,
    stop: threading.Event | None = None,
    on_start: Callable[[Recorder], object] | None = None,
    **options: Any,
) -> None:
    """Record until ``stop`` is set, or Ctrl-C; the options are those of ``Recorder``.

    ``on_start`` is called with the recorder as soon as all that is on the bus is written.
    """

    async def recording() -> None:
        async with Recorder(url, directory, **options) as recorder:
            if on_start is not None:
                on_start(recorder)
            await until_stopped(recorder.wait(), stop or threading.Event())

    run(recording())
