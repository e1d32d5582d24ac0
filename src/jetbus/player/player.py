"""The player: repeats a range of a journal on a bus.

    async with Player("/var/lib/jet", "jet://localhost", since="-2h", prefix="replay/") as player:
        await player.wait()

It starts with the tree at the start of the range. Then every event is played when it is due, at the recorded distances
in time divided by the speed. A recorded start or stop removes everything. The states belong to the player and are
read-only; methods respond as recorded (see ``outcomes``). All elements leave the bus when the player stops; until then
the last state of the replay stays.

    journal --> Recording (reads in a thread) --> Clock (when is it due?) --> Projection (elements on the bus)

One task does all the playing, so events and jumps never mix. The methods that control it only set a field and wake it::

    _play:    _play_on --(end of the range)--> _wait_at_end --(seek or loop)--> _jump_to --> _play_on ...
                 |                                                                 ^
                 +----------------------------(seek)-------------------------------+
"""

from __future__ import annotations

import asyncio
import math
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec

from jetbus.journal import BadInstant, Journal
from jetbus.journal.instants import Instant, read_instant, write_instant
from jetbus.loops import run, until_stopped
from jetbus.paths import is_daemons
from jetbus.peer.aio import PeerAsync
from jetbus.player.clock import Clock
from jetbus.player.outcomes import Outcomes
from jetbus.player.projection import Projection
from jetbus.player.recording import RecordedEvent, Recording
from jetbus.rules import Rule
from jetbus.rules import rule as make_rule


class Progress(NamedTuple):
    """Progress of a replay."""

    position_us: int
    """Present instant of the recording, in microseconds."""
    start_us: int
    until_us: int
    events: int
    """Number of events played since the start, in all rounds."""
    rounds: int
    """Number of times the replay has started over."""
    elements: int
    """Number of elements on the bus now."""
    refused: int
    """Number of elements that the bus refused, because their paths belong to others or are not allowed."""
    paused: bool
    ended: bool

    def __str__(self) -> str:
        return f"{write_instant(self.position_us)}, {self.events} events played"


class Player:
    """Plays a range of a journal, from ``start`` to ``stop``; ``async with`` does both."""

    def __init__(
        self,
        source: str | Path | Journal,
        url: str | None = None,
        *,
        rule: str | Rule | None = None,
        since: Instant | None = None,
        until: Instant | None = None,
        speed: float = 1.0,
        prefix: str = "",
        loop: bool = False,
        name: str = "player",
        user: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
        wait: bool = False,
    ) -> None:
        made = None if rule is None else make_rule(rule)
        # Only the tests of the value; the recording applies those of the path.
        self._matches = None if made is None else made.matches_value
        self._clock = Clock(speed)
        self._recording = Recording(source, made, since, until)
        self._prefix = prefix
        self.loop = loop
        """True to start over at the end."""
        self._peer = PeerAsync(
            url,
            name=name,
            user=user,
            password=password,
            tls=tls,
            wait=wait,
            # Lambdas, because the projection needs the peer and is made after it.
            on_loss=lambda: self._projection.on_loss(),
            on_return=lambda: self._projection.on_return(),
        )
        self._projection = Projection(self._peer, prefix, self._answer)
        self._outcomes: asyncio.Future[Outcomes] | None = None
        # A single thread: a generator that is read ahead must not be entered by two threads at once.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="jet-player")
        self._playing: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._ended = asyncio.Event()
        self._seek_us: int | None = None
        self._sought: list[asyncio.Future[None]] = []
        self._events = 0
        self._rounds = 0

    # -- from start to stop

    async def start(self) -> None:
        """Connect, show the first tree and start playing; returns when the tree is on the bus."""
        try:
            await self._peer.connect()
            # The peer calls it only after a loss; here it opens the way for the first adds.
            await self._projection.on_return()
            await self._jump_to(self._recording.start_us)
            # An occupied path is most likely a mistake of the user now. Later ones are only counted.
            await self._projection.check()
        except BaseException:
            await self.stop()
            raise
        self._playing = asyncio.create_task(self._play())

    async def stop(self) -> None:
        """End the replay and remove its elements from the bus."""
        if self._playing is not None:
            self._playing.cancel()
            await asyncio.gather(self._playing, return_exceptions=True)
        # The task is gone, so nothing else would release the waiting callers.
        self._ended.set()
        self._finish_seeks()
        await self._peer.close()
        # A read of a large journal may last, and its result is not needed any more.
        self._thread.shutdown(wait=False)

    async def wait(self) -> None:
        """Wait for the end of the replay, which never comes with ``loop``. Raises the error that ended it early."""
        playing = self._started
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            # The task does not return at the end, where it waits for a seek. It is done only if it failed or was
            # cancelled.
            await asyncio.wait([playing, ended], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        if playing.done() and not playing.cancelled():
            playing.result()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop()

    @property
    def _started(self) -> asyncio.Task[None]:
        if self._playing is None:
            raise RuntimeError("the player is not started; start() it, or use it in an async with block")
        return self._playing

    # -- control

    def pause(self) -> None:
        """Pause; all elements stay on the bus as they are."""
        # The task need not be woken: when the next event is due, its delay has become infinite.
        self._clock.paused = True

    def resume(self) -> None:
        """Continue after a pause."""
        self._clock.paused = False
        self._wake.set()

    @property
    def peer(self) -> PeerAsync:
        """The peer of the player."""
        return self._peer

    @property
    def speed(self) -> float:
        """Seconds of the recording per second; may be set at any time."""
        return self._clock.speed

    @speed.setter
    def speed(self, speed: float) -> None:
        self._clock.speed = speed
        self._wake.set()

    async def seek(self, instant: Instant) -> None:
        """Jump to an instant of the range and continue there; returns when its tree is on the bus."""
        instant_us = read_instant(instant)
        if not self._recording.start_us <= instant_us <= self._recording.until_us:
            raise BadInstant(
                f"{write_instant(instant_us)} is outside the range, which is"
                f" from {write_instant(self._recording.start_us)} to {write_instant(self._recording.until_us)}"
            )
        playing, arrived = self._started, asyncio.get_running_loop().create_future()
        self._sought.append(arrived)
        self._seek_us = instant_us
        self._wake.set()
        # If the task fails before it has jumped, the future is never completed.
        await asyncio.wait([playing, arrived], return_when=asyncio.FIRST_COMPLETED)
        if playing.done() and not playing.cancelled():
            playing.result()

    @property
    def progress(self) -> Progress:
        """The present progress."""
        return Progress(
            position_us=self._position_us,
            start_us=self._recording.start_us,
            until_us=self._recording.until_us,
            events=self._events,
            rounds=self._rounds,
            elements=len(self._projection),
            refused=self._projection.refused_count,
            paused=self._clock.paused,
            ended=self._ended.is_set(),
        )

    @property
    def _position_us(self) -> int:
        # The clock runs on until the task has noticed the end.
        return min(max(self._clock.position_us, self._recording.start_us), self._recording.until_us)

    # -- playing

    async def _play(self) -> None:
        at_us = self._recording.start_us
        while True:
            target_us = await self._play_on(at_us)
            if target_us is None:
                target_us = await self._wait_at_end()
            self._ended.clear()
            await self._jump_to(target_us)
            at_us = target_us

    async def _wait_at_end(self) -> int:
        """Wait at the end of the range; return the instant to continue with."""
        if self.loop:
            self._rounds += 1
            return self._recording.start_us
        await self._projection.settle()
        self._clock.stand(self._recording.until_us)
        self._ended.set()
        while self._seek_us is None:
            self._wake.clear()
            await self._wake.wait()
        return self._seek_us

    async def _jump_to(self, instant_us: int) -> None:
        # Before the first await, so that a seek from here on is a new one.
        self._seek_us = None
        tree = await self._run_in_thread(self._recording.tree, instant_us)
        await self._projection.show_tree([event for event in tree if self._is_projected(event)])
        self._clock.stand(instant_us)
        if self._seek_us is None:
            # Another seek may have come while the tree was read; its waiters are released by the next jump.
            self._finish_seeks()

    def _finish_seeks(self) -> None:
        for sought in self._sought:
            if not sought.done():
                sought.set_result(None)
        self._sought.clear()

    async def _play_on(self, after_us: int) -> int | None:
        """Play to the end and return None, or until a seek and return its instant."""
        chunks = self._recording.after(after_us)
        ahead = self._run_in_thread(next, chunks, None)
        await asyncio.wait([ahead])
        self._clock.stand(after_us)  # the search for the first events takes no time of the replay
        try:
            while chunk := await ahead:
                # The next chunk is read while this one is played.
                ahead = self._run_in_thread(next, chunks, None)
                for event in chunk:
                    if not await self._is_due(event.ts_us):
                        return self._seek_us
                    await self._apply(event)
        finally:
            # After a seek, the chunk that was read ahead is of no use.
            ahead.cancel()
        return None if await self._is_due(self._recording.until_us) else self._seek_us

    async def _is_due(self, instant_us: int) -> bool:
        """Wait until an instant is due; return False if a seek comes first."""
        while self._seek_us is None:
            # Computed again after every wake-up: the speed may have changed, or a pause begun.
            delay_s = self._clock.delay_s(instant_us)
            if delay_s <= 0:
                self._clock.reach(instant_us)
                return True
            # Nothing is awaited between the look at ``_seek_us`` and this line, so no wake-up is lost.
            self._wake.clear()
            timer = None
            if delay_s < math.inf:
                timer = asyncio.get_running_loop().call_later(delay_s, self._wake.set)
            await self._wake.wait()
            if timer is not None:
                timer.cancel()
        return False

    async def _apply(self, event: RecordedEvent) -> None:
        self._events += 1
        if event.path is None:
            await self._projection.clear()
        # They leave the present value alone, so tests of the value do not apply to them.
        elif event.event in ("describe", "past"):
            await self._projection.show(event)
        # A state with a value that does not match any more leaves the bus, as it would leave a fetch.
        elif event.event == "remove" or not self._is_projected(event):
            await self._projection.remove(event.path)
        else:
            await self._projection.show(event)

    def _is_projected(self, event: RecordedEvent) -> bool:
        """Return whether an event is shown: value tests must match, and ``$jet`` states need a prefix."""
        if event.path is None or (is_daemons(event.path) and not self._prefix):
            return False
        if self._matches is None:
            return True
        return event.value is not None and self._matches(msgspec.json.decode(event.value))

    async def _answer(self, path: str, args: Any) -> None:
        # Taken before the recorded calls are read for the first time, while the clock runs on.
        instant_us = self._position_us
        if self._outcomes is None:
            self._outcomes = self._run_in_thread(lambda: Outcomes(self._recording.calls()))
        # All calls share this future; a caller that gives up must not cancel it for the others.
        (await asyncio.shield(self._outcomes)).answer(path, args, instant_us)

    def _run_in_thread(self, work: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run blocking work in the player's thread, in order."""
        return asyncio.get_running_loop().run_in_executor(self._thread, work, *args)


def play(
    source: str | Path | Journal,
    url: str | None = None,
    *,
    stop: threading.Event | None = None,
    on_start: Callable[[Player], object] | None = None,
    **options: Any,
) -> Progress:
    """Play to the end, until ``stop`` is set, or Ctrl-C, and return the progress; the options are those of ``Player``.

    ``on_start`` is called with the player when the first tree is on the bus.
    """

    async def playing() -> Progress:
        async with Player(source, url, **options) as player:
            if on_start is not None:
                on_start(player)
            await until_stopped(player.wait(), stop or threading.Event())
            return player.progress

    return run(playing())
