"""A recorder: a peer that writes the journal of any Jet bus from outside.

    async with Recorder("jet://device", "/var/lib/jet/device") as recorder:
        await recorder.wait()

It records what a fetch sees: add, change and remove. Only a daemon knows owners, sets and calls, so the column ``peer``
is null. Otherwise the journal is like that of a daemon, with the same readers.

The tree in the journal must always be what the recorder last saw on the bus:

    begins, or continues a closed journal    start, then an add for every element
    loses the connection and reconnects      the differences: elements added, changed, removed meanwhile; then what it
                                             missed, from the daemon's journal, as values of the past. If the daemon has
                                             none, a gap and the differences
    was killed                               gap since the last event, then the differences
    had to drop events because of the disk   gap, then a new fetch and the differences
    stops                                    stop; from then on nothing is known

After a kill the last tree of the journal is compared with the bus. A ``start`` there would clear the tree and repeat
every element.
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
from jetbus.journal.instants import read_instant, wall_clock_us, write_instant
from jetbus.journal.sampling import EVERY
from jetbus.journal.source import open_folder
from jetbus.journal.writer import WriterStats
from jetbus.json_types import Json, JsonObject
from jetbus.loops import run, until_stopped
from jetbus.peer.aio import FetchAsync, PeerAsync
from jetbus.peer.events import Event
from jetbus.peer.values import Blob, encode_value
from jetbus.recorder.journal_behind import JournalBehind
from jetbus.rules import Rule
from jetbus.rules import rule as make_rule

__all__ = ["Recorder", "record"]

CATCH_UP_S = 2.0
"""Longest wait of a recorder that stops for events in flight."""

_NOT_STARTED = "the recorder is not started; call start(), or use it in an async with block"


class _Known(NamedTuple):
    """An element as it is in the journal."""

    kind: str
    value: bytes | None
    detail: bytes | None


class Recorder:
    """Writes the events of a bus into a journal, from ``start`` to ``stop``; ``async with`` calls both."""

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
        wait: bool = False,
    ) -> None:
        self._rule = make_rule(rule)
        if self._rule.sort is not None:
            raise ValueError("a recorder cannot record a sorted fetch; use a rule without sort")
        self.directory = Path(directory)
        self._settings = settings or Settings()
        self._densities = densities if isinstance(densities, Densities) else Densities(densities)
        self._peer = PeerAsync(
            url,
            name=name,
            user=user,
            password=password,
            tls=tls,
            wait=wait,
            on_loss=self._on_loss,
            on_return=self._on_return,
        )
        self._detail = {"recorder": name, "url": self._peer.url} | ({"rule": rule} if isinstance(rule, str) else {})
        self._writer: Writer | None = None
        self._fetch: FetchAsync | None = None
        self._unconfirmed: dict[str, _Known] = {}
        """Elements of the previous tree in the journal that the bus has not confirmed yet."""
        self._schemas: JsonObject = {}
        """Schemas of the elements that have one."""
        self._behind = JournalBehind(self._peer, self._rule)
        self._filling: asyncio.Task[None] | None = None
        self._lost_us = 0
        """Instant at which the connection was lost; 0 while it exists."""
        self._missed = False
        """True if events were dropped and the tree was not compared since."""
        self._in_turn = False
        self._due = asyncio.Event()
        self._stopping = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="jet-recorder")
        self._flushing: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    # -- start and stop

    async def start(self) -> None:
        """Connect, open the journal and record; returns when all elements on the bus are written."""
        try:
            await self._peer.connect()
            await self._run_in_thread(self._open)
            self._begin()
            self._fetch = self._fetch_all()
            self._flushing = asyncio.create_task(self._flush_regularly())
            await self._fetch.ready()
            self._record_vanished()
            await self._behind.open()
            await self.commit()
        except BaseException as problem:
            await self.stop(f"{problem}" or type(problem).__name__)
            raise
        self._watching = asyncio.create_task(self._watch())

    def _open(self) -> None:
        self._writer = Writer(self.directory, self._settings, densities=self._densities)
        found = self._writer.recovered
        if found.last_seq and not found.clean:
            # If the log begins in the middle or is damaged, its tree is unknown, and every element is recorded again.
            with contextlib.suppress(journal.JournalGone, journal.JournalDamaged):
                self._unconfirmed = _read_tree(self.directory)

    def _begin(self) -> None:
        writer = self._open_writer
        found = writer.recovered
        self._begin_turn()
        if self._unconfirmed:
            self._record_gap("the recorder ended without a stop", found.last_ts_us)
            return
        detail = {"version": jetbus.__version__, **self._detail, "restart": found.last_seq > 0}
        if not found.clean:
            detail |= {"clean": False, "cut_bytes": found.cut_bytes}
        writer.append("start", detail=msgspec.json.encode(detail))

    async def stop(self, reason: str | None = None) -> None:
        """Record the last events and a stop with its reason, disconnect and close the journal."""
        if self._stopping:
            return
        self._stopping = True
        if self._watching is not None and self._peer.connected:
            with contextlib.suppress(JetError, TimeoutError):
                async with asyncio.timeout(CATCH_UP_S):
                    await self._peer.info()  # its response comes after all events in flight
        await self._peer.close()
        for task in filter(None, [self._watching, self._filling]):
            task.cancel()
        self._due.set()
        await asyncio.gather(*filter(None, [self._flushing]), return_exceptions=True)
        await self._run_in_thread(int)  # a journal may be opening in the thread
        if self._writer is not None:
            self._begin_turn()
            if self._lost_us or self._behind.is_missing:
                self._record_gap("the connection was lost", self._lost_us or wall_clock_us())
            detail = self._detail | ({"reason": reason} if reason else {})
            self._writer.append("stop", detail=msgspec.json.encode(detail))
            await self._run_in_thread(self._writer.close)
        self._thread.shutdown(wait=False)

    async def wait(self) -> None:
        """Wait until the recording ends by itself, and raise the reason. Lost connections do not end it."""
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
                pass  # events go to the callback; here only the end of the fetch matters
            if not self._missed:
                return
            await self._compare_again()

    async def _compare_again(self) -> None:
        """Fetch again after events were dropped, and record how the bus differs from the journal."""
        self._missed = False
        await self.commit()
        try:
            self._unconfirmed = await self._run_in_thread(_read_tree, self.directory)
        except (journal.JournalGone, journal.JournalDamaged):
            self._begin_turn()
            self._open_writer.append("start", detail=msgspec.json.encode({**self._detail, "again": True}))
        self._fetch = self._fetch_all()
        await self._fetch.ready()
        self._record_vanished()

    def _fetch_all(self) -> FetchAsync:
        return self._peer.fetch(self._rule, self._record_event, policy="every", schema=True, meta=True, recorded=True)

    # -- state

    @property
    def peer(self) -> PeerAsync:
        """The peer of the recorder."""
        return self._peer

    @property
    def connected(self) -> bool:
        """True while there is a connection to the daemon."""
        return self._peer.connected

    @property
    def url(self) -> str:
        """URL of the daemon, without password."""
        return self._peer.url

    @property
    def problem(self) -> str | None:
        """Reason why the disk cannot be written; None while it can."""
        return self._open_writer.problem

    def stats(self) -> WriterStats:
        """Return the counters of the journal's writer."""
        return self._open_writer.stats()

    @property
    def _open_writer(self) -> Writer:
        if self._writer is None:
            raise RuntimeError(_NOT_STARTED)
        return self._writer

    # -- events

    def _begin_turn(self) -> None:
        """Set the instant of new events; all events that arrive together get the same one."""
        if not self._in_turn:
            self._in_turn = True
            self._open_writer.now_us = wall_clock_us()
            asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._in_turn = False
        if self._open_writer.pending >= self._settings.flush_events:
            self._due.set()

    def _record_event(self, event: Event) -> None:
        self._begin_turn()
        self._behind.note(event)
        if self._unconfirmed and (before := self._unconfirmed.pop(event.path, None)) is not None:
            self._record_difference(event, before)
        else:
            _RECORD[event.kind](self, event)

    def _record_difference(self, event: Event, before: _Known) -> None:
        """Record how the first event of an element differs from the journal."""
        now = _known(event)
        if event.kind == "remove" or (now.kind, now.detail) != (before.kind, before.detail):
            self._open_writer.append("remove", before.kind, event.path, before.value)
            if event.kind != "remove":
                self._record_add(event)
        elif now.value != before.value:
            self._record_change(event)

    def _record_vanished(self) -> None:
        """Record the removal of elements that the bus has not confirmed."""
        self._begin_turn()
        left, self._unconfirmed = self._unconfirmed, {}
        for path, before in left.items():
            self._open_writer.append("remove", before.kind, path, before.value)

    def _record_add(self, event: Event) -> None:
        kind, value, detail = _known(event)
        self._note_schema(event)
        self._open_writer.append("add", kind, event.path, value, None, detail, *_read_stamp(event))

    def _record_change(self, event: Event) -> None:
        if event.stale:
            return  # that is no change: the journal knows the last one, and its schema says when it is stale
        path, value, writer = event.path, encode_value(event.value), self._open_writer
        # Most states have no schema, and most values neither a source time nor a quality.
        if (event.told_schema is not msgspec.UNSET or path in self._schemas) and self._note_schema(event):
            kind, _, detail = _known(event)
            writer.append("describe", kind, path, None, None, detail)
        stamp = _read_stamp(event) if event.ts or event.told_quality is not None else (None, None)
        if self._densities and self._densities.of(path).interval_us:
            # Only these take samples.
            if stamp == (None, None):
                writer.change(path, value, "")
            else:
                writer.append_described(path, value, "", *stamp, False)
        else:
            writer.append("change", "state", path, value, None, None, *stamp)

    def _note_schema(self, event: Event) -> bool:
        """Remember the schema of an element, and return whether it is another one than before."""
        before, now = self._schemas.get(event.path), _read_schema(event)
        if now is None:
            self._schemas.pop(event.path, None)
        else:
            self._schemas[event.path] = now
        return bool(before != now)

    def _record_remove(self, event: Event) -> None:
        kind, value, _ = _known(event)
        self._schemas.pop(event.path, None)
        self._open_writer.append("remove", kind, event.path, value)

    def _record_gap(self, reason: str, since_us: int) -> None:
        detail = {"reason": reason, **self._detail, "since": write_instant(since_us)}
        self._open_writer.append("gap", detail=msgspec.json.encode(detail))

    def _on_loss(self) -> None:
        self._lost_us = self._lost_us or wall_clock_us()
        self._behind.lose()

    def _on_return(self) -> None:
        since_us, self._lost_us = self._lost_us, 0
        if self._fetch is None:
            return
        if self._behind.is_known:
            if self._filling is not None:
                self._filling.cancel()  # what it has not read is read again
            self._filling = asyncio.create_task(self._fill(since_us))
        else:
            self._begin_turn()
            self._record_gap("the connection was lost", since_us)

    async def _fill(self, since_us: int) -> None:
        """Record what the daemon's journal has of the time without a connection; a gap if it cannot be read."""
        latest: dict[str, int] = {}
        try:
            async for rows in self._behind.read_missed():
                self._begin_turn()
                for row in rows:
                    self._record_missed(row, latest)
        except (JetError, journal.JournalError):
            if self._peer.connected:  # else the next connection has it read
                self._begin_turn()
                self._record_gap("the connection was lost", since_us)

    def _record_missed(self, row: dict[str, Any], latest: dict[str, int]) -> None:
        """Record an event of the daemon's journal as a value of the past; ``latest`` has the last time of each path."""
        if row["kind"] != "state" or row["value"] is None or self._densities.of(row["path"]) is not EVERY:
            return
        quality = row["quality"]
        if quality is not None:
            quality = quality.encode() if quality.startswith("{") else msgspec.json.encode(quality)
        # Events of one turn of the daemon have one instant there; path and time must identify a value here.
        at_us = read_instant(row["source_ts"] or row["ts"])
        at_us = latest[row["path"]] = max(at_us, latest.get(row["path"], 0) + 1)
        self._open_writer.append_described(row["path"], row["value"].encode(), "", at_us, quality, True)

    # -- writing

    async def commit(self) -> int:
        """Write all events now and return the last seq in the journal."""
        writer = self._open_writer
        writer.now_us = wall_clock_us()
        await self._run_in_thread(writer.write, writer.take())
        return writer.seq - 1 - writer.pending

    async def _flush_regularly(self) -> None:
        flush_s = self._settings.flush_ms / 1000
        while not self._stopping:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(flush_s):
                    await self._due.wait()
            self._due.clear()
            await self.commit()
            if self._watching is not None and self._open_writer.take_lost() is not None and self._fetch is not None:
                self._missed = True
                self._fetch.close()

    async def _run_in_thread(self, work: Callable[..., Any], *args: Any) -> Any:
        """Run blocking work in the recorder's thread, in order."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)


_RECORD: dict[str, Callable[[Recorder, Event], None]] = {
    "add": Recorder._record_add,
    "change": Recorder._record_change,
    "remove": Recorder._record_remove,
}


def _known(event: Event) -> _Known:
    """Return the element of an event as the journal stores it."""
    properties: JsonObject = {}
    if event.fetch_only:
        properties["fetchOnly"] = True
    if isinstance(event.value, Blob):
        properties["type"] = event.value.mime
    if (schema := _read_schema(event)) is not None:
        properties["schema"] = schema
    detail = msgspec.json.encode(properties) if properties else None
    return _Known("method", None, detail) if event.is_method else _Known("state", encode_value(event.value), detail)


def _read_schema(event: Event) -> Json:
    """Return the schema of an element as its owner wrote it; None if it has none."""
    return None if event.told_schema is msgspec.UNSET else event.told_schema


def _read_stamp(event: Event) -> tuple[int | None, bytes | None]:
    """Return source time and quality of a value, each None if its owner gave none."""
    quality = None if event.told_quality is None else msgspec.json.encode(event.told_quality)
    return read_instant(event.ts) if event.ts else None, quality


def _read_tree(directory: Path) -> dict[str, _Known]:
    """Return the last tree of a journal."""
    rows = open_folder(directory).read_tree().select(["path", "kind", "value", "detail"]).to_pylist()
    return {row["path"]: _Known(row["kind"] or "state", _encode(row["value"]), _encode(row["detail"])) for row in rows}


def _encode(text: str | None) -> bytes | None:
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

    ``on_start`` is called with the recorder when all elements on the bus are written.
    """

    async def recording() -> None:
        async with Recorder(url, directory, **options) as recorder:
            if on_start is not None:
                on_start(recorder)
            await until_stopped(recorder.wait(), stop or threading.Event())

    run(recording())
