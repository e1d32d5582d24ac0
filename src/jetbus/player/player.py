"""The player: takes a range of a journal and lets it happen again on a bus.

    async with Player("/var/lib/jet", "jet://localhost", since="-2h", prefix="replay/") as player:
        await player.wait()

It begins with the tree as it was at the start of the range; then everything happens when it is due: at the same
distances in time as it was recorded, divided by the speed. A start or stop of what was recorded removes everything.
The states belong to the player and are read-only; methods answer as recorded (see ``outcomes``). When it is stopped,
everything leaves the bus; until then the last picture stays.
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
from jetbus.player.reel import Happened, Reel
from jetbus.player.stage import Stage
from jetbus.rules import Rule
from jetbus.rules import rule as make_rule


class Progress(NamedTuple):
    """How far a replay is."""

    position_us: int
    """The instant of the recording, in microseconds."""
    start_us: int
    until_us: int
    events: int
    """Events played since the start, in all rounds."""
    rounds: int
    """How often it has begun anew."""
    elements: int
    """What is on the bus of it now."""
    refused: int
    """How many of these the bus did not take, because their paths belong to others or are not allowed."""
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
    ) -> None:
        made = None if rule is None else make_rule(rule)
        self._matches = None if made is None else made.matches_value
        self._clock = Clock(speed)
        self._reel = Reel(source, made, since, until)
        self._prefix = prefix
        self.loop = loop
        """Whether it begins anew at the end."""
        self._peer = PeerAsync(
            url,
            name=name,
            user=user,
            password=password,
            tls=tls,
            on_loss=lambda: self._stage.on_loss(),
            on_return=lambda: self._stage.on_return(),
        )
        self._stage = Stage(self._peer, prefix, self._answer)
        self._outcomes: asyncio.Future[Outcomes] | None = None
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
        """Connect, show the tree of the start and play; returns when the tree is on the bus."""
        try:
            await self._peer.connect()
            await self._stage.on_return()
            await self._go_to(self._reel.start_us)
            await self._stage.check()
        except BaseException:
            await self.stop()
            raise
        self._playing = asyncio.create_task(self._play())

    async def stop(self) -> None:
        """End the replay; all of it leaves the bus."""
        if self._playing is not None:
            self._playing.cancel()
            await asyncio.gather(self._playing, return_exceptions=True)
        self._ended.set()
        self._arrived()
        await self._peer.close()
        self._thread.shutdown(wait=False)

    async def wait(self) -> None:
        """Wait until it is played to the end; with ``loop`` that is never. Raises what has kept it from going on."""
        playing = self._started
        ended = asyncio.ensure_future(self._ended.wait())
        try:
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

    # -- steering

    def pause(self) -> None:
        """Stand still; everything stays on the bus as it is."""
        self._clock.paused = True

    def resume(self) -> None:
        """Go on where it stands."""
        self._clock.paused = False
        self._wake.set()

    @property
    def speed(self) -> float:
        """Seconds of the recording in a second; may be set at any time."""
        return self._clock.speed

    @speed.setter
    def speed(self, speed: float) -> None:
        self._clock.speed = speed
        self._wake.set()

    async def seek(self, instant: Instant) -> None:
        """Go to an instant of the range and play on from there; returns when its tree is on the bus."""
        instant_us = read_instant(instant)
        if not self._reel.start_us <= instant_us <= self._reel.until_us:
            raise BadInstant(
                f"{write_instant(instant_us)} is not played; the range is"
                f" from {write_instant(self._reel.start_us)} to {write_instant(self._reel.until_us)}"
            )
        playing, arrived = self._started, asyncio.get_running_loop().create_future()
        self._sought.append(arrived)
        self._seek_us = instant_us
        self._wake.set()
        await asyncio.wait([playing, arrived], return_when=asyncio.FIRST_COMPLETED)
        if playing.done() and not playing.cancelled():
            playing.result()

    @property
    def progress(self) -> Progress:
        """How far it is."""
        return Progress(
            position_us=self._position_us,
            start_us=self._reel.start_us,
            until_us=self._reel.until_us,
            events=self._events,
            rounds=self._rounds,
            elements=len(self._stage),
            refused=len(self._stage.refused),
            paused=self._clock.paused,
            ended=self._ended.is_set(),
        )

    @property
    def _position_us(self) -> int:
        return min(max(self._clock.position_us, self._reel.start_us), self._reel.until_us)

    # -- playing

    async def _play(self) -> None:
        at_us = self._reel.start_us
        while True:
            target_us = await self._play_on(at_us)
            if target_us is None:
                target_us = await self._at_end()
            self._ended.clear()
            await self._go_to(target_us)
            at_us = target_us

    async def _at_end(self) -> int:
        """All is played: gives where to go on."""
        if self.loop:
            self._rounds += 1
            return self._reel.start_us
        await self._stage.settle()
        self._clock.stand(self._reel.until_us)
        self._ended.set()
        while self._seek_us is None:
            self._wake.clear()
            await self._wake.wait()
        return self._seek_us

    async def _go_to(self, instant_us: int) -> None:
        self._seek_us = None
        tree = await self._aside(self._reel.tree, instant_us)
        await self._stage.become([happened for happened in tree if self._is_shown(happened)])
        self._clock.stand(instant_us)
        if self._seek_us is None:
            self._arrived()

    def _arrived(self) -> None:
        for sought in self._sought:
            if not sought.done():
                sought.set_result(None)
        self._sought.clear()

    async def _play_on(self, after_us: int) -> int | None:
        """Play to the end, or until somewhere else is sought; gives where."""
        chunks = self._reel.after(after_us)
        ahead = self._aside(next, chunks, None)
        await asyncio.wait([ahead])
        self._clock.stand(after_us)  # the time it took to find the first events does not count
        try:
            while chunk := await ahead:
                ahead = self._aside(next, chunks, None)
                for happened in chunk:
                    if not await self._is_due(happened.ts_us):
                        return self._seek_us
                    await self._happen(happened)
        finally:
            ahead.cancel()
        return None if await self._is_due(self._reel.until_us) else self._seek_us

    async def _is_due(self, instant_us: int) -> bool:
        """Wait until an instant has come; false if somewhere else is sought."""
        while self._seek_us is None:
            delay_s = self._clock.delay_s(instant_us)
            if delay_s <= 0:
                self._clock.reach(instant_us)
                return True
            self._wake.clear()
            timer = None
            if delay_s < math.inf:
                timer = asyncio.get_running_loop().call_later(delay_s, self._wake.set)
            await self._wake.wait()
            if timer is not None:
                timer.cancel()
        return False

    async def _happen(self, happened: Happened) -> None:
        self._events += 1
        if happened.path is None:
            await self._stage.clear()
        elif happened.event == "remove" or not self._is_shown(happened):
            await self._stage.take(happened.path)
        else:
            await self._stage.show(happened)

    def _is_shown(self, happened: Happened) -> bool:
        """Whether it is for the bus: the daemon's own states are the daemon's, unless they are told elsewhere."""
        if happened.path is None or (is_daemons(happened.path) and not self._prefix):
            return False
        if self._matches is None:
            return True
        return happened.value is not None and self._matches(msgspec.json.decode(happened.value))

    async def _answer(self, path: str, args: Any) -> None:
        instant_us = self._position_us
        if self._outcomes is None:
            self._outcomes = self._aside(lambda: Outcomes(self._reel.calls()))
        (await asyncio.shield(self._outcomes)).answer(path, args, instant_us)

    def _aside(self, work: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Do what may block in the player's own thread; one thing after the other."""
        return asyncio.get_running_loop().run_in_executor(self._thread, work, *args)


def play(
    source: str | Path | Journal,
    url: str | None = None,
    *,
    stop: threading.Event | None = None,
    on_start: Callable[[Player], object] | None = None,
    **options: Any,
) -> Progress:
    """Play to the end, until ``stop`` is set, or Ctrl-C; the options are those of ``Player``. Gives how far it came.

    ``on_start`` is called with the player as soon as the tree of the start is on the bus.
    """

    async def playing() -> Progress:
        async with Player(source, url, **options) as player:
            if on_start is not None:
                on_start(player)
            await until_stopped(player.wait(), stop or threading.Event())
            return player.progress

    return run(playing())
