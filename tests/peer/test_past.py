"""Peers that look back: get with as_of, fetch with since, for both faces and both protocols."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import jetbus
from jetbus.testing import RunningDaemon, running_daemon
from peer.faces import Bus, brief, raised, run, until


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[RunningDaemon]:
    """A daemon that keeps a journal."""
    with running_daemon(journal=tmp_path / "journal") as made:
        yield made


async def instant() -> datetime:
    """An instant after all that was answered and before all that is not yet sent."""
    await asyncio.sleep(0.002)
    now = datetime.fromtimestamp(time.time(), UTC)
    await asyncio.sleep(0.002)
    return now


FORMS: dict[str, Any] = {
    "datetime": lambda then: then,
    "datetime elsewhere": lambda then: then.astimezone(timezone(timedelta(hours=5))),
    "datetime without zone": lambda then: then.replace(tzinfo=None),
    "text": lambda then: then.isoformat(),
    "text of UTC": lambda then: then.isoformat().replace("+00:00", "Z"),
    "microseconds": lambda then: round(then.timestamp() * 1e6),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_instants(bus: Bus, form: Any) -> None:
    """An instant is a datetime, a text or microseconds, for get and for fetch."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            state = await owner.add_state("a", 1)
            await owner.info()
            then = form(await instant())
            await state.change(2)
            await owner.info()
            assert await client.get("**", as_of=then) == {"a": 1}
            fetch = await client.fetch("**", since=then)
            assert brief(await fetch.take(2)) == [("add", "a", 1), ("change", "a", 2)]

    run(case())


def test_get_as_of(bus: Bus) -> None:
    """Get shows what was there and matched at an instant, in order of creation; sorting is for the present."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            for path, value in (("z", 5), ("b", jetbus.Blob(b"\1", mime="image/png")), ("a", 7)):
                await owner.add_state(path, value)
            await owner.add_method("m", print)
            then = await instant()
            await owner.close()
            while await client.get():
                pass  # the daemon has yet to notice
            found = await client.get(as_of=then)
            assert list(found.items()) == [("z", 5), ("b", b"\1"), ("a", 7)]
            assert found["b"].mime == "image/png"
            assert await client.get("** value>5", as_of=then) == {"a": 7}
            assert await client.get("**", as_of="-1d") == {}
            refused = await raised(client.get(sort_by="path", as_of=then))
            assert isinstance(refused, jetbus.InvalidRule)

    run(case())


def test_fetch_since(bus: Bus) -> None:
    """A fetch replays every event since an instant, also those that a latest fetch would leave out, and goes on."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            state = await owner.add_state("a", 0)
            then = await instant()
            for number in range(1, 51):
                await state.change(number)
            await state.remove()
            await state.add()
            fetch = await (await client.fetch("a", since=then)).ready()
            await state.change(51)
            told = [("add", "a", 0), *[("change", "a", number) for number in range(1, 51)]]
            told += [("remove", "a", 50), ("add", "a", 50), ("change", "a", 51)]
            assert brief(await fetch.take(len(told))) == told

    run(case())


def test_events_have_their_instants(bus: Bus) -> None:
    """What is replayed has the instant at which it happened, in order; what is live has none."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            state = await owner.add_state("a", 0)
            await owner.info()
            then = await instant()
            await state.change(1)
            fetch = await (await client.fetch("a", since=then)).ready()
            await state.change(2)
            first, second, live = await fetch.take(3)
            assert datetime.fromisoformat(first.ts) < then < datetime.fromisoformat(second.ts)
            assert live.ts == ""

    run(case())


def test_callback_and_type(bus: Bus) -> None:
    """Callbacks and types work on the past as on the present."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            state = await owner.add_state("a", 0)
            then = await instant()
            await state.change("text")
            await state.change(2)
            await owner.info()
            told: list[Any] = []
            await (await client.fetch("a", told.append, since=then, type=int)).ready()
            await until(lambda: len(told) == 3)
            assert [(event.kind, event.value, event.problem is None) for event in told] == [
                ("add", 0, True),
                ("change", "text", False),
                ("change", 2, True),
            ]

    run(case())


def test_after_a_reconnect_the_difference_is_told(bus: Bus, daemon: RunningDaemon) -> None:
    """A fetch of the past that loses its connection goes on with what is different, and does not begin anew."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            state = await owner.add_state("a", 0)
            then = await instant()
            await state.change(1)
            await owner.info()
            fetch = await client.fetch("a", since=then)
            assert brief(await fetch.take(2)) == [("add", "a", 0), ("change", "a", 1)]
            await asyncio.to_thread(daemon.restart)
            await state.change(2)
            told = brief(await fetch.take(1))
            while told[-1][2] != 2 or told[-1][0] == "remove":
                told += brief(await fetch.take(1))
            assert ("add", "a", 0) not in told

    run(case())


def test_no_journal(face: str) -> None:
    """A daemon without a journal says how to keep one."""

    async def case() -> None:
        with running_daemon() as plain:
            async with Bus(plain.url, face).peer() as client:
                assert "--journal" in str(await raised(client.get(as_of="-1h")))
                fetch = await client.fetch("a", since="-1h")
                assert "--journal" in str(await raised(fetch.ready()))

    run(case())
