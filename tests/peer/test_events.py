"""Events for programs: their time of receipt, callbacks that may be async, and each value only once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import jetbus
from jetbus.testing import RunningDaemon
from support.peers import PeerFactory, raised, run, until


def test_time_of_receipt(bus: PeerFactory) -> None:
    """Every event, of whatever kind, has the time at which it was received; equal events are equal nevertheless."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            await owner.add_method("pump/start", lambda: None)
            before = datetime.now(UTC) - timedelta(seconds=1)
            seen: list[jetbus.Event] = []
            fetch = await client.fetch("pump/**", seen.append)
            await fetch.ready()
            state = await owner.add_state("pump/speed", 0)
            # One at a time: an event that waits is merged with the next of its path.
            await until(lambda: len(seen) == 2)
            for count, value in enumerate((1, 2, 2), 3):
                await state.change(value)
                await until(lambda count=count: len(seen) == count)  # type: ignore[misc]
            await state.remove()
            await until(lambda: seen[-1].kind == "remove")
            times = [event.received for event in seen]
            assert times == sorted(times)
            assert before < times[0] <= times[-1] <= datetime.now(UTC)
            assert seen[3] == seen[4]
            assert "receipt" not in repr(seen[0])

    run(case())


def _count_up(seen: list[Any], running: list[int]) -> Callable[[jetbus.Event], Any]:
    async def callback(event: jetbus.Event) -> None:
        running.append(1)
        assert len(running) == 1, "the callback runs twice at the same time"
        await asyncio.sleep(0)
        running.pop()
        seen.append(event.value)
        if event.value == 3:
            raise ValueError("no 3, please")

    return callback


class _Caller:
    """An object that can be called like a function, and is async."""

    def __init__(self, callback: Callable[[jetbus.Event], Any]) -> None:
        self._callback = callback

    async def __call__(self, event: jetbus.Event) -> None:
        await self._callback(event)


@pytest.mark.parametrize("form", ["function", "object"])
def test_async_callback_of_a_fetch(bus: PeerFactory, form: str, caplog: pytest.LogCaptureFixture) -> None:
    """An async callback is awaited for one event after the other; one that fails is logged and goes on."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            state = await owner.add_state("pump/speed", 0)
            seen: list[Any] = []
            callback = _count_up(seen, [])
            fetch = await client.fetch("pump/*", callback if form == "function" else _Caller(callback), policy="every")
            await fetch.ready()
            for value in range(1, 20):
                await state.change(value)
            await until(lambda: len(seen) == 20)
            assert seen == list(range(20))
            await fetch.close()
            await state.change(20)

    with caplog.at_level(logging.ERROR, "jetbus.peer"):
        run(case())
    assert [record.getMessage() for record in caplog.records] == ["a callback failed"]


def test_other_async_callbacks(daemon: RunningDaemon, face: str) -> None:
    """Callbacks of results, of losses and of returns may be async, too."""
    seen: list[str] = []

    async def note(_done: object = None) -> None:
        await asyncio.sleep(0)
        seen.append("called")

    async def ask_async() -> None:
        async with jetbus.PeerAsync(daemon.url) as peer:
            peer.info(on_result=note)
            peer.fetch("a", lambda event: note(event))
            await peer.add_state("a", 1)
            await until(lambda: len(seen) == 2)

    if face != "blocking":
        run(ask_async())
        return
    with jetbus.Peer(daemon.url) as peer:
        peer.info_async(on_result=note)
        peer.fetch("a", lambda event: note(event))
        peer.add_state("a", 1)
        run(until(lambda: len(seen) == 2))


def test_only_changes(bus: PeerFactory) -> None:
    """With ``only_changes`` a value that has not changed is not sent; without it, it is."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            quiet = await owner.add_state("quiet", 0, only_changes=True, on_set=lambda _value: None)
            loud = await owner.add_state("loud", 0)
            seen: dict[str, list[Any]] = {"quiet": [], "loud": [], "end": []}
            fetch = await client.fetch("**", lambda event: seen[event.path].append(event.value), policy="every")
            await fetch.ready()
            trace = [1]
            for value in (1, 1, True, 1.0, 1.0, None, trace, trace):
                await quiet.change(value)
                await loud.change(value)
            trace.append(2)
            await quiet.change(trace)
            await client.set("quiet", [1, 2])
            assert quiet.inner.value == [1, 2]
            await owner.add_state("end", 0)
            await until(lambda: bool(seen["end"]))
            assert [repr(value) for value in seen["quiet"]] == ["0", "1", "True", "1.0", "None", "[1]", "[1, 2]"]
            assert len(seen["loud"]) == 9

    run(case())


@pytest.mark.parametrize("path", ["", "$jet/mine", "$jet"])
def test_paths_that_cannot_be_owned(bus: PeerFactory, path: str) -> None:
    """An empty path is refused, and one below $jet is reserved; the error says so."""

    async def case() -> None:
        async with bus.peer() as owner:
            for request in (owner.add_state(path, 1), owner.add_method(path, abs)):
                error = await raised(request)
                assert isinstance(error, jetbus.errors.Invalid)
                assert ("is empty" if not path else "is reserved") in str(error)
            assert await owner.get_all() == {}

    run(case())
