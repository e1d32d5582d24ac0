"""Alarms beside a daemon: a peer that watches states, raises alarms as they come, and answers operators.

    alarms/active/NAME/PATH     an alarm that is not normal
    alarms/newest               the newest transition; its history is that of all alarms
    alarms/counts               how many there are by state, priority and group
    alarms/position             where to go on after a restart
    alarms/receivers/NAME       how many notices were sent, and why others were not
    alarms/ack, shelve, ...     methods

Time is the journal's. Events carry the seq and the instant under which they are recorded, and hold times end by the
clock of the journal. So the alarms that are raised live are those that Spark finds in the journal later. On each
connection everything is made again from the journal, because a daemon that was killed has perhaps forgotten its last
events:

1. the board is restored from the transitions that are recorded;
2. events are fetched, and wait;
3. the journal is read from the position up to now; signals that were published before are not repeated;
4. the events that wait follow, those left out that were read already.

The position is the oldest event that may still matter: the first one of the oldest run that waits for its hold time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jetbus.alarms.board import SHELVE_S_MAX, AlarmBoard, AlarmKey, AlarmTarget
from jetbus.alarms.definitions import read_alarms
from jetbus.alarms.lifecycle import Act, AlarmState
from jetbus.alarms.notifications import Notifications
from jetbus.alarms.receivers import SEND_S, NotSent, read_receivers
from jetbus.alarms.signals import Signal, Signals, WatchedEvent, compile_alarms
from jetbus.errors import Invalid, JetError, NotConnected, Occupied
from jetbus.journal.events import CUTS
from jetbus.journal.instants import read_instant, write_instant
from jetbus.journal.source import JournalRequest, Pager, Query, is_dropped, read_all, run_query_async
from jetbus.json_types import Json, JsonObject
from jetbus.loops import run, until_stopped
from jetbus.peer.aio import PeerAsync
from jetbus.peer.connection import backoff_s
from jetbus.peer.elements import OwnedState
from jetbus.peer.events import Event
from jetbus.rules import rule

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LiveAlarms", "run_alarms"]

Result = TypeVar("Result")
PREFIX = "alarms"
POSITION_S = 5.0
"""Interval at which the position is published."""
REMIND_S = 1.0
"""Interval at which reminders are looked for."""
COUNTS_S = 0.2
"""Delay of the counts after a transition, so that many of them share one change."""
WAITING_EVENTS_MAX = 1_000_000
"""Events that wait while the journal is read."""
LOOK_BACK_S = (600.0, 86_400.0, 30 * 86_400.0)
"""Times before now in which the last position is looked for; then the whole journal."""
_COLUMNS = ["seq", "ts", "event", "kind", "path", "value", "quality", "detail"]
_WATCHED = ("add", "change", "remove", "describe")

log = logging.getLogger("jetbus.alarms")


class LiveAlarms:
    """The alarms of a file on one bus, live.

    >>> alarms = LiveAlarms("jet://localhost", "alarms.toml")                 # doctest: +SKIP
    >>> await alarms.run()                                                   # doctest: +SKIP
    """

    def __init__(
        self,
        url: str | None,
        file: str | Path,
        *,
        prefix: str = PREFIX,
        user: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
        shelve_s_max: float = SHELVE_S_MAX,
        queue: str | Path | None = None,
        on_transition: Callable[[JsonObject], object] | None = None,
        on_ready: Callable[[], object] | None = None,
    ) -> None:
        alarms = read_alarms(file)
        self.alarms = compile_alarms(alarms)
        self._receivers = read_receivers(file, alarms)
        self._queue = None if queue is None else Path(queue)
        self.notifications: Notifications | None = None
        """Notices to the receivers of the file, while it runs."""
        self._connected: tuple[asyncio.AbstractEventLoop, PeerAsync] | None = None
        self.prefix = prefix.strip("/")
        if not self.prefix or self.prefix.startswith("$"):
            raise Invalid("prefix", f"{prefix!r} cannot hold states; give a prefix such as alarms")
        self._login: dict[str, Any] = {"user": user, "password": password, "tls": tls}
        self._url = url
        self._notify_names = {alarm.name: alarm.notify for alarm in alarms}
        self._shelve_s_max = shelve_s_max
        self._on_transition = on_transition or (lambda _told: None)
        self._on_ready = on_ready or (lambda: None)

    async def run(self, *, wait: bool = False) -> None:
        """Watch until it is cancelled; connections that are lost are made again. ``wait`` for a daemon at the start."""
        self.notifications = Notifications(self._receivers, self._request, self._queue)
        try:
            await self._watch_again_and_again(wait)
        finally:
            self.notifications.close()

    async def _watch_again_and_again(self, wait: bool) -> None:
        attempt, was_ready = 0, False
        while True:
            try:
                connection = _Watching(self)
                async with connection:
                    attempt, was_ready = 0, True
                    self._on_ready()
                    await connection.watch()
            except (NotConnected, Occupied) as problem:
                # Only a daemon that had this process may still have its states for a moment.
                if not was_ready and not (wait and isinstance(problem, NotConnected)):
                    raise
                log.warning("alarms: %s; trying again", problem)
            except _ReadAgainError as reason:
                log.warning("alarms: %s; the journal is read again", reason)
            await asyncio.sleep(backoff_s(attempt))
            attempt += 1

    def make_peer(self, on_loss: Callable[..., Any]) -> PeerAsync:
        """Return a peer for one connection."""
        peer = PeerAsync(self._url, name="alarms", on_loss=on_loss, reconnect=False, **self._login)
        self._connected = asyncio.get_running_loop(), peer
        return peer

    def _request(self, name: str, path: str, value: Json) -> None:
        """Set a state or call a method for a receiver, from its thread."""
        if self._connected is None:
            raise NotSent("the daemon is away")
        loop, peer = self._connected

        async def ask() -> None:
            async with asyncio.timeout(SEND_S):
                await (peer.set(path, value) if name == "set" else peer.call(path, *_as_list(value)))

        try:
            asyncio.run_coroutine_threadsafe(ask(), loop).result(SEND_S + 1)
        except (JetError, TimeoutError) as problem:
            raise NotSent(f"{name} {path}: {problem or 'no answer'}") from None

    def make_board(self, on_transition: Callable[[AlarmKey, JsonObject], object]) -> AlarmBoard:
        """Return an empty board."""
        return AlarmBoard([one.about for one in self.alarms], on_transition, shelve_s_max=self._shelve_s_max)

    def report(self, told: JsonObject) -> None:
        """Report a transition to the receivers of its alarm, and to the owner of this object."""
        self._notify(told, is_new=True)
        self._on_transition(told)

    def _notify(self, told: JsonObject, *, is_new: bool) -> None:
        if self.notifications is None:
            return
        names = self._notify_names.get(str(told["alarm"]), ())
        asks = told["state"] == AlarmState.UNACKNOWLEDGED
        if not asks:
            self.notifications.settle(str(told["alarm"]), str(told["path"]))
        elif names:
            at_s = read_instant(str(told["at"])) / 1e6
            if is_new and told["what"] != "comment":
                self.notifications.raise_alarm(told, names, at_s)
            else:
                self.notifications.watch(told, names, at_s)

    def restore(self, told: JsonObject) -> None:
        """Note an alarm that was reported by an earlier process, so that somebody is reminded of it."""
        self._notify(told, is_new=False)


class _ReadAgainError(Exception):
    """The journal has something else than the events that came; everything is made again from it."""


class _Watching:
    """The time of one connection: all that is known is made from the journal, and ends with the connection."""

    def __init__(self, alarms: LiveAlarms) -> None:
        self._alarms = alarms
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._peer = alarms.make_peer(self._on_loss)
        self._board = alarms.make_board(self._publish)
        self._signals: Signals | None = None
        self._states: dict[AlarmKey, OwnedState] = {}
        self._own: dict[str, OwnedState] = {}
        self._waiting: list[WatchedEvent] | None = []
        """Events that came while the journal is read; None once it has been read."""
        self._last_seq = 0
        """The last event that was looked at."""
        self._clock_us, self._clock_s = 0, 0.0
        """An instant of the journal, and of the loop when it was told."""
        self._timer: asyncio.TimerHandle | None = None
        self._armed_us: int | None = None
        """The instant that the timer is set for."""
        self._counting: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None
        self._position: JsonObject | None = None
        self._told_receivers: dict[str, JsonObject] = {}
        """The receivers as they were published last."""

    async def __aenter__(self) -> _Watching:
        try:
            await self._peer.connect()
            await self._start()
        except BaseException:
            await self._peer.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for timer in (self._timer, self._counting):
            if timer is not None:
                timer.cancel()
        if self._asking is not None:
            self._asking.cancel()
        with contextlib.suppress(JetError):
            await self._publish_position()
        await self._peer.close()

    def _on_loss(self, *_: object) -> None:
        self._end(NotConnected("the connection to the daemon is lost"))

    def _end(self, problem: Exception) -> None:
        if not self._lost.done():
            self._lost.set_exception(problem)

    async def watch(self) -> None:
        """Watch until the connection is lost."""
        loop = asyncio.get_running_loop()
        published_s = loop.time()
        while True:
            done, _ = await asyncio.wait([self._lost], timeout=REMIND_S)
            if done:
                self._lost.result()
            self._remind()
            if loop.time() - published_s >= POSITION_S:
                published_s = loop.time()
                await self._publish_position()

    def _remind(self) -> None:
        """Send reminders that are due, and publish how the receivers are."""
        notifications = self._alarms.notifications
        if notifications is None or not notifications.queues:
            return
        notifications.advance(self._now_us() / 1e6, lambda alarm, path: self._board.describe((alarm, path)))
        for name, queue in notifications.queues.items():
            told = queue.describe()
            if self._told_receivers.get(name) != told:
                self._told_receivers[name] = told
                self._own_state(f"receivers/{name}", told)

    # -- the journal

    async def _ask(self, request: JournalRequest) -> Any:
        return await self._peer.call(request.path, **request.params)

    async def _run(self, query: Query[Result]) -> Result:
        return await run_query_async(query, self._ask)

    async def _read_offsets(self) -> JsonObject:
        offsets: JsonObject = await self._run(_ask_offsets())
        self._note_clock(int(str(offsets["now"] or offsets["last_ts"] or 0)))
        return offsets

    async def _start(self) -> None:
        offsets = await self._read_offsets()
        # This state is also the claim to the prefix.
        self._own["counts"], added = self._add("counts", self._board.count())
        await added
        signals = self._signals = Signals(self._alarms.alarms, str(offsets["bus"]))
        end = int(str(offsets["last"])) + 1
        position = await self._run(self._find_position(end))
        if position is not None:
            since = position.get("log_since")
            recorded = [] if since is None else await self._run(self._read_log(read_instant(str(since)), end))
            for (alarm, path), raised_us, seq in self._board.restore(recorded):
                signals.resume(alarm, path, raised_us, seq)
            for told in self._board.list_newest():
                self._alarms.restore(told)
        for text in dict.fromkeys(one.about.rule for one in self._alarms.alarms):
            await self._peer.fetch(text, self._on_event, policy="every", schema=True, meta=True, recorded=True).ready()
        await self._catch_up(position)
        for key in self._board.list_active():
            self._show(key)
        await self._offer()
        waiting, self._waiting = self._waiting or [], None
        for event in waiting:
            self._feed(event)
        self._count()
        self._arm()
        await self._publish_position()

    def _find_position(self, end: int) -> Query[JsonObject | None]:
        wanted = rule(equals=f"{self._alarms.prefix}/position")
        for look_back_s in (*LOOK_BACK_S, None):
            params: JsonObject = {"seqUntil": end, "columns": ["seq", "value"]}
            if look_back_s is not None:
                params["since"] = self._clock_us - round(look_back_s * 1e6)
            rows = (yield from read_all(Pager("range", params, wanted))).to_pylist()
            values = [row["value"] for row in rows if row["value"] is not None]
            if values:
                position: JsonObject = json.loads(values[-1])
                return position
        return None

    def _read_log(self, since_us: int, end: int) -> Query[list[JsonObject]]:
        """Return the recorded transitions since an instant."""
        wanted = rule(equals=f"{self._alarms.prefix}/newest")
        params: JsonObject = {"since": since_us, "seqUntil": end, "columns": ["seq", "event", "value"]}
        rows = (yield from read_all(Pager("range", params, wanted))).to_pylist()
        return [json.loads(row["value"]) for row in rows if row["event"] in ("add", "change") and row["value"]]

    async def _catch_up(self, position: JsonObject | None) -> None:
        """Read the journal from a position, or from its last cut, up to now."""
        assert self._signals is not None  # noqa: S101
        offsets = await self._read_offsets()
        first, end = int(str(offsets["first"])), int(str(offsets["last"])) + 1
        start = await self._run(_find_cut(first, end)) if position is None else int(str(position["seq"]))
        start = max(start, first)
        if position is not None:
            await self._restore_descriptions(start)
        # One earlier, for the instant before a cut.
        before = max(start - 1, first)
        pager = Pager("range", {"seq": before, "seqUntil": end, "columns": _COLUMNS})
        last_us = 0
        while pager.request is not None:
            try:
                page = pager.feed(await self._ask(pager.request))
            except JetError as problem:
                if not is_dropped(problem):
                    raise
                raise _ReadAgainError("the journal has dropped events that were to be read") from problem
            for row in _rows_of(page):
                ts_us = read_instant(row["ts"])
                if row["seq"] >= start:
                    self._feed_row(row, ts_us, last_us or ts_us)
                last_us = ts_us
            await asyncio.sleep(0)
        self._last_seq = max(self._last_seq, end - 1)
        self._advance(int(str(offsets["now"] or 0)))

    async def _restore_descriptions(self, start: int) -> None:
        assert self._signals is not None  # noqa: S101
        tree = await self._run(read_all(Pager("as_of", {"seq": start - 1})))
        for row in tree.select(["path", "detail"]).to_pylist():
            self._signals.describe(row["path"], _read_schema(row["detail"]))

    def _feed_row(self, row: JsonObject, ts_us: int, last_us: int) -> None:
        seq, event = int(str(row["seq"])), str(row["event"])
        if event in CUTS:
            cut_us = ts_us if event == "stop" else _find_end(row["detail"], last_us, ts_us)
            self._take((self._signals and self._signals.cut(seq, cut_us)) or ())
            self._last_seq = seq
        elif event in _WATCHED and row["kind"] in ("state", None):
            value = None if row["value"] is None else json.loads(str(row["value"]))
            quality = _read_level(row["quality"])
            schema = _read_schema(row["detail"]) if event in ("add", "describe") else None
            self._feed(WatchedEvent(seq, ts_us, event, str(row["path"]), value, quality, schema))

    # -- events

    def _on_event(self, event: Event) -> None:
        place = event.recorded
        if place is None or event.is_method:
            return
        level = None if event.told_quality is None else event.quality.level
        schema = event.told_schema if place.event in ("add", "describe") else None
        schema = schema if isinstance(schema, dict) else None
        ts_us = read_instant(place.ts)
        recorded = WatchedEvent(place.seq, ts_us, place.event, event.path, event.value, level, schema)
        if self._waiting is None:
            self._feed(recorded)
            self._arm()
        elif len(self._waiting) < WAITING_EVENTS_MAX:
            self._waiting.append(recorded)
        else:
            self._end(_ReadAgainError(f"more than {WAITING_EVENTS_MAX} events came while the journal was read"))

    def _feed(self, event: WatchedEvent) -> None:
        # Several fetches may have the same event, and the journal those that came meanwhile.
        if event.seq <= self._last_seq or self._signals is None:
            return
        self._last_seq = event.seq
        self._note_clock(event.ts_us)
        if not event.path.startswith(f"{self._alarms.prefix}/"):
            self._take(self._signals.feed(event))

    def _advance(self, now_us: int) -> None:
        if self._signals is not None:
            self._take(self._signals.advance(now_us))
        self._board.advance(now_us)

    def _take(self, signals: Sequence[Signal]) -> None:
        for one in signals:
            self._board.signal(one, self._now_us())

    # -- time

    def _note_clock(self, clock_us: int) -> None:
        if clock_us > self._clock_us:
            self._clock_us, self._clock_s = clock_us, asyncio.get_running_loop().time()

    def _now_us(self) -> int:
        """Return about the present instant of the journal."""
        return self._clock_us + round((asyncio.get_running_loop().time() - self._clock_s) * 1e6)

    def _arm(self) -> None:
        """Set the timer for the next end of a hold time, or of shelving, if it is another one than before."""
        due = [self._signals.next_due_us if self._signals else None, self._board.next_end_us]
        soonest = min((one for one in due if one is not None), default=None)
        if self._timer is not None:
            if soonest == self._armed_us:
                return
            self._timer.cancel()
            self._timer = None
        self._armed_us = soonest
        if soonest is not None:
            wait_s = max((soonest - self._now_us()) / 1e6, 0.0)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._ask_time())

    async def _ask_time(self) -> None:
        """Ask how far time has come: all events before that instant have been received then."""
        try:
            offsets = await self._read_offsets()
        except JetError as problem:
            self._end(problem)
            return
        self._advance(int(str(offsets["now"] or 0)))
        self._arm()

    # -- publishing

    def _publish(self, key: AlarmKey, told: JsonObject) -> None:
        """Publish a transition and the new state of the alarm."""
        try:
            self._own_state("newest", told)
            if self._waiting is None:
                self._show(key)
                self._count()
        except NotConnected as problem:
            self._end(problem)
        self._alarms.report(told)

    def _show(self, key: AlarmKey) -> None:
        about, state = self._board.describe(key), self._states.get(key)
        if about is None:
            if state is not None:
                self._peer.session.remove(self._states.pop(key), self._make_waiter())
        elif state is None:
            self._states[key], _ = self._add(f"active/{key[0]}/{key[1]}", about)
        else:
            self._peer.session.change(state, about)

    def _own_state(self, name: str, value: Json) -> None:
        state = self._own.get(name)
        if state is None:
            self._own[name], _ = self._add(name, value)
        else:
            self._peer.session.change(state, value)

    def _add(self, name: str, value: Json) -> tuple[OwnedState, asyncio.Future[Any]]:
        """Add a state without waiting for the response, so that many can be added at once."""
        owned, added = OwnedState(f"{self._alarms.prefix}/{name}", value, None, None, None, None), self._make_waiter()
        self._peer.session.add(owned, added)
        return owned, added

    def _make_waiter(self) -> asyncio.Future[Any]:
        waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        waiter.add_done_callback(_log_refusal)
        return waiter

    def _count(self) -> None:
        if self._counting is None:
            self._counting = asyncio.get_running_loop().call_later(COUNTS_S, self._publish_counts)

    def _publish_counts(self) -> None:
        self._counting = None
        self._own_state("counts", self._board.count())

    async def _publish_position(self) -> None:
        if self._signals is None or self._waiting is not None:
            return
        seq, ts_us = self._signals.oldest_run or (self._last_seq + 1, self._clock_us)
        # Transitions of events from the position on must be among those that are read, to be known as published.
        since_us = min(ts_us, ts_us if self._board.oldest is None else read_instant(self._board.oldest))
        position: JsonObject = {"seq": seq, "log_since": write_instant(since_us)}
        if position != self._position and self._peer.connected:
            self._position = position
            self._own_state("position", position)

    # -- acts

    async def _offer(self) -> None:
        methods: dict[str, Callable[..., Any]] = {
            "ack": self._ack,
            "shelve": self._shelve,
            "unshelve": self._unshelve,
            "out_of_service": self._out_of_service,
            "in_service": self._in_service,
            "comment": self._comment,
        }
        for name, function in methods.items():
            await self._peer.add_method(f"{self._alarms.prefix}/{name}", function)

    def _act(self, act: Act, target: AlarmTarget, **options: Any) -> list[JsonObject]:
        changed = self._board.act(act, target, self._now_us(), **options)
        self._arm()
        return [{"alarm": alarm, "path": path} for alarm, path in changed]

    def _ack(
        self,
        alarm: str | None = None,
        path: str | None = None,
        group: str | None = None,
        priority: str | None = None,
        note: str = "",
        who: str = "",
    ) -> list[JsonObject]:
        """Acknowledge the alarms that fit all that is given; ``path`` may be a rule. Returns those that changed."""
        return self._act(Act.ACK, AlarmTarget(alarm, path, group, priority), note=note, who=who)

    def _shelve(
        self,
        minutes: float,
        alarm: str | None = None,
        path: str | None = None,
        group: str | None = None,
        priority: str | None = None,
        note: str = "",
        who: str = "",
    ) -> list[JsonObject]:
        """Silence alarms for some minutes; afterwards those that are raised ask to be acknowledged."""
        return self._act(Act.SHELVE, AlarmTarget(alarm, path, group, priority), minutes=minutes, note=note, who=who)

    def _unshelve(
        self,
        alarm: str | None = None,
        path: str | None = None,
        group: str | None = None,
        priority: str | None = None,
        note: str = "",
        who: str = "",
    ) -> list[JsonObject]:
        """End the silence of alarms."""
        return self._act(Act.UNSHELVE, AlarmTarget(alarm, path, group, priority), note=note, who=who)

    def _out_of_service(
        self,
        alarm: str | None = None,
        path: str | None = None,
        group: str | None = None,
        priority: str | None = None,
        note: str = "",
        who: str = "",
    ) -> list[JsonObject]:
        """Silence alarms until they are put in service again, for maintenance."""
        return self._act(Act.DISABLE, AlarmTarget(alarm, path, group, priority), note=note, who=who)

    def _in_service(
        self,
        alarm: str | None = None,
        path: str | None = None,
        group: str | None = None,
        priority: str | None = None,
        note: str = "",
        who: str = "",
    ) -> list[JsonObject]:
        """Put alarms in service again."""
        return self._act(Act.ENABLE, AlarmTarget(alarm, path, group, priority), note=note, who=who)

    def _comment(
        self,
        note: str,
        alarm: str | None = None,
        path: str | None = None,
        group: str | None = None,
        priority: str | None = None,
        who: str = "",
    ) -> list[JsonObject]:
        """Add a note to alarms."""
        found = self._board.comment(AlarmTarget(alarm, path, group, priority), self._now_us(), note, who)
        return [{"alarm": name, "path": where} for name, where in found]


def _as_list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else [value]


def _log_refusal(outcome: asyncio.Future[Any]) -> None:
    problem = None if outcome.cancelled() else outcome.exception()
    if problem is not None and not isinstance(problem, NotConnected):
        log.error("alarms: a state was refused: %s", problem)


def _ask_offsets() -> Query[JsonObject]:
    offsets: JsonObject = yield JournalRequest("offsets", {})
    return offsets


def _find_cut(first: int, end: int) -> Query[int]:
    """Return the seq of the last cut of the journal, or its first event."""
    rows = yield from read_all(
        Pager("range", {"seq": first, "seqUntil": end, "columns": ["seq"], "events": list(CUTS)})
    )
    return int(rows["seq"][-1].as_py()) if rows.num_rows else first


def _rows_of(page: pa.RecordBatchReader) -> Iterator[JsonObject]:
    for batch in page:
        yield from batch.to_pylist()


def _find_end(detail: Json, last_us: int, cut_us: int) -> int:
    """Return the instant up to which values were known before a start or a gap, as ``cuts.sql`` does."""
    since = json.loads(str(detail)).get("since") if detail else None
    if since is None:
        return last_us
    return min(max(read_instant(since), last_us), cut_us)


def _read_schema(detail: Json) -> Json:
    return None if not detail else json.loads(str(detail)).get("schema")


def _read_level(quality: Json) -> str | None:
    """Return the level of a quality, which is recorded as a word or as an object."""
    if quality is None:
        return None
    text = str(quality)
    told = json.loads(text) if text[:1] in '{"' else text
    return str(told.get("level")) if isinstance(told, dict) else str(told)


def run_alarms(
    url: str | None, file: str | Path, *, wait: bool = False, stop: threading.Event | None = None, **options: Any
) -> None:
    """Run the alarms of a file until ``stop`` is set, or Ctrl-C; the options are those of ``LiveAlarms``."""
    alarms = LiveAlarms(url, file, **options)
    run(until_stopped(alarms.run(wait=wait), stop or threading.Event()))
