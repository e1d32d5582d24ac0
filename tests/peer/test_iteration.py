"""The loop over a fetch: the compiled one and the one in Python do the same."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import jetbus
from jetbus.peer import handles
from jetbus.testing import RunningDaemon, running_daemon
from support.peers import DEADLINE_S, raised, run

LOOPS = {"compiled": handles.iterate, "in Python": handles.iterate_in_python}


@pytest.fixture(params=LOOPS, autouse=True)
def iterate(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], AsyncIterator[Any]]:
    """The loop that fetches have."""
    if request.param == "compiled" and not handles.COMPILED:
        pytest.skip("nothing is compiled here")
    monkeypatch.setattr(handles, "iterate", LOOPS[request.param])
    return LOOPS[request.param]


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    with running_daemon() as daemon:
        yield daemon


class Counter:
    """A state that counts, and a fetch of it that has told the first value."""

    def __init__(self, peer: jetbus.PeerAsync, state: jetbus.StateAsync, fetch: jetbus.FetchAsync) -> None:
        self.peer, self.state, self.fetch = peer, state, fetch

    async def count_to(self, last: int) -> None:
        """Count on; every value has been heard when it is done."""
        for value in range(self.state.value + 1, last + 1):
            self.state.change(value)
        await self.peer.info()


@asynccontextmanager
async def counting(daemon: RunningDaemon, **options: Any) -> AsyncIterator[Counter]:
    async with jetbus.PeerAsync(daemon.url) as peer:
        state = await peer.add_state("count", 0)
        async with peer.fetch("count", policy="every", **options) as fetch:
            yield Counter(peer, state, fetch)


async def values(loop: AsyncIterator[Any], count: int) -> list[Any]:
    return [(await asyncio.wait_for(anext(loop), DEADLINE_S)).value for _ in range(count)]


def test_what_is_there_and_what_comes(daemon: RunningDaemon) -> None:
    """A loop takes what is there, waits for what comes, and ends with the fetch."""

    async def case() -> None:
        async with counting(daemon) as counter:
            seen = []

            async def read() -> None:
                async for event in counter.fetch:
                    seen.append(event.value)
                    if event.value % 3 == 0:
                        await counter.count_to(event.value + 3)
                    if event.value == 9:
                        counter.fetch.close()

            await read()
            assert seen == list(range(13))
            assert [event async for event in counter.fetch] == []

    run(case())


def test_a_loop_goes_on_where_another_stopped(daemon: RunningDaemon) -> None:
    """A loop goes on where another one stopped; two at once share the events."""

    async def case() -> None:
        async with counting(daemon) as counter:
            await counter.count_to(9)
            async for event in counter.fetch:
                if event.value == 2:
                    break
            one, other = aiter(counter.fetch), aiter(counter.fetch)
            assert await values(one, 2) == [3, 4]
            assert await values(other, 1) == [5]
            assert await values(one, 4) == [6, 7, 8, 9]
            waiting = [asyncio.ensure_future(anext(one)), asyncio.ensure_future(anext(other))]
            await counter.count_to(11)
            assert sorted([(await event).value for event in waiting]) == [10, 11]

    run(case())


def test_a_value_of_another_type(daemon: RunningDaemon) -> None:
    """A value that is not of the type ends the loop with an error; the next one goes on behind it."""

    async def case() -> None:
        async with counting(daemon, type=int) as counter:
            for value in ("high", 2, 3):
                counter.state.change(value)
            await counter.peer.info()
            loop = aiter(counter.fetch)
            assert await values(loop, 1) == [0]
            assert isinstance(await raised(anext(loop)), jetbus.InvalidValue)
            assert await values(aiter(counter.fetch), 2) == [2, 3]

    run(case())


def test_an_error_ends_the_loop(daemon: RunningDaemon) -> None:
    """A consumer that falls too far behind gets the queued events, then the error."""

    async def case() -> None:
        async with counting(daemon, queue_max=3) as counter:
            await counter.count_to(9)
            loop = aiter(counter.fetch)
            assert await values(loop, 4) == [0, 1, 2, 3]
            assert isinstance(await raised(anext(loop)), jetbus.TooSlow)

    run(case())


def test_cancelled_while_it_waits(daemon: RunningDaemon) -> None:
    """A waiting loop can be cancelled; later events are those of another loop."""

    async def case() -> None:
        async with counting(daemon) as counter:
            loop = aiter(counter.fetch)
            assert await values(loop, 1) == [0]
            waiting = asyncio.ensure_future(anext(loop))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            assert waiting.cancelled()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(aiter(counter.fetch)), 0.01)
            await counter.count_to(2)
            assert await values(aiter(counter.fetch), 2) == [1, 2]

    run(case())


def test_cancelled_before_it_ran(daemon: RunningDaemon) -> None:
    """A task that was cancelled before it ran has taken nothing."""

    async def case() -> None:
        async with counting(daemon) as counter:
            await counter.count_to(2)
            loop = aiter(counter.fetch)
            assert await values(loop, 1) == [0]
            task = asyncio.ensure_future(anext(loop))
            task.cancel()
            await asyncio.wait([task])
            del loop
            assert await values(aiter(counter.fetch), 2) == [1, 2]

    run(case())


def test_one_waits_at_a_time(daemon: RunningDaemon) -> None:
    """Two cannot wait for the next event of the same loop; the first one still gets it."""

    async def case() -> None:
        async with counting(daemon) as counter:
            loop = aiter(counter.fetch)
            assert await values(loop, 1) == [0]
            first = asyncio.ensure_future(anext(loop))
            await asyncio.sleep(0)
            assert isinstance(await raised(anext(loop)), RuntimeError)
            await counter.count_to(1)
            assert (await asyncio.wait_for(first, DEADLINE_S)).value == 1

    run(case())


def test_a_coroutine_that_is_dropped(daemon: RunningDaemon) -> None:
    """A coroutine that is closed while it waits has taken nothing, and nobody waits any more."""

    async def case() -> None:
        async with counting(daemon) as counter:
            await values(aiter(counter.fetch), 1)

            async def read() -> list[Any]:
                return [event async for event in counter.fetch]

            dropped = read()
            dropped.send(None)
            dropped.close()
            await counter.count_to(1)
            assert await values(aiter(counter.fetch), 1) == [1]

    run(case())


def test_under_a_debugger(daemon: RunningDaemon) -> None:
    """While somebody traces the program, a loop gives the same."""

    def trace(*_: Any) -> Any:
        return trace

    async def case() -> None:
        async with counting(daemon) as counter:
            await counter.count_to(3)
            before = sys.gettrace()
            sys.settrace(trace)
            try:
                seen = []
                async for event in counter.fetch:
                    seen.append(event.value)
                    if event.value == 3:
                        await counter.count_to(5)
                    if event.value == 5:
                        break
            finally:
                sys.settrace(before)
            assert seen == [0, 1, 2, 3, 4, 5]

    run(case())


def _kept_in_a_cycle(fetch: Any) -> None:
    fetch.loop = aiter(fetch)


def _left_in_the_middle(fetch: Any) -> None:
    for _ in range(2):
        waiting = anext(aiter(fetch)).__await__()
        next(waiting, None)


@pytest.mark.parametrize("leave", [_kept_in_a_cycle, _left_in_the_middle])
def test_nothing_is_left_behind(daemon: RunningDaemon, leave: Callable[[Any], None]) -> None:
    """A loop that nobody holds any more is gone, and with it the fetch."""

    async def case() -> weakref.ref[Any]:
        async with counting(daemon) as counter:
            leave(counter.fetch)
            return weakref.ref(counter.fetch)

    async def checked() -> None:
        gone = await case()
        gc.collect()
        await asyncio.sleep(0)
        gc.collect()
        assert gone() is None

    run(checked())


def test_it_wants_a_fetch(iterate: Callable[..., AsyncIterator[Any]]) -> None:
    """The compiled loop, too, refuses anything but a fetch."""
    with pytest.raises(TypeError):
        iterate()

    async def case() -> None:
        assert isinstance(await raised(anext(iterate(object()))), AttributeError)

    run(case())
