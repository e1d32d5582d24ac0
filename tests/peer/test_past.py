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
from support.peers import PeerFactory, brief, raised, run, until


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
def test_instants(bus: PeerFactory, form: Any) -> None:
    """An instant is a datetime, a text or microseconds, for get and for fetch."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            state = await owner.add_state("a", 1)
            await owner.info()
            then = form(await instant())
            await state.change(2)
            await owner.info()
            assert await client.get_all("**", as_of=then) == {"a": 1}
            fetch = await client.fetch("**", since=then)
            assert brief(await fetch.take(2)) == [("add", "a", 1), ("change", "a", 2)]

    run(case())


def test_get_as_of(bus: PeerFactory) -> None:
    """Get shows what was there and matched at an instant, in order of creation; sorting is for the present."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            for path, value in (("z", 5), ("b", jetbus.Blob(b"\1", mime="image/png")), ("a", 7)):
                await owner.add_state(path, value)
            await owner.add_method("m", print)
            then = await instant()
            await owner.close()
            while await client.get_all():
                pass  # the daemon has yet to notice
            found = await client.get_all(as_of=then)
            assert list(found.items()) == [("z", 5), ("b", b"\1"), ("a", 7)]
            assert found["b"].mime == "image/png"
            assert await client.get_all("** value>5", as_of=then) == {"a": 7}
            assert await client.get_all("**", as_of="-1d") == {}
            refused = await raised(client.get_all(sort_by="path", as_of=then))
            assert isinstance(refused, jetbus.InvalidRule)

    run(case())


def test_fetch_since(bus: PeerFactory) -> None:
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
            received = [("add", "a", 0), *[("change", "a", number) for number in range(1, 51)]]
            received += [("remove", "a", 50), ("add", "a", 50), ("change", "a", 51)]
            assert brief(await fetch.take(len(received))) == received

    run(case())


def test_events_have_their_instants(bus: PeerFactory) -> None:
    """Replayed events have the instant at which they happened, in order; live ones have none."""

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


def test_callback_and_type(bus: PeerFactory) -> None:
    """Callbacks and types work on the past as on the present."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            state = await owner.add_state("a", 0)
            then = await instant()
            await state.change("text")
            await state.change(2)
            await owner.info()
            received: list[Any] = []
            await (await client.fetch("a", received.append, since=then, type=int)).ready()
            await until(lambda: len(received) == 3)
            assert [(event.kind, event.value, event.problem is None) for event in received] == [
                ("add", 0, True),
                ("change", "text", False),
                ("change", 2, True),
            ]

    run(case())


def test_after_a_reconnect_the_difference_is_told(bus: PeerFactory, daemon: RunningDaemon) -> None:
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
            received = brief(await fetch.take(1))
            while received[-1][2] != 2 or received[-1][0] == "remove":
                received += brief(await fetch.take(1))
            assert ("add", "a", 0) not in received

    run(case())


def test_no_journal(face: str) -> None:
    """A daemon without a journal says how to keep one."""

    async def case() -> None:
        with running_daemon() as plain:
            async with PeerFactory(plain.url, face).peer() as client:
                assert "--journal" in str(await raised(client.get_all(as_of="-1h")))
                fetch = await client.fetch("a", since="-1h")
                assert "--journal" in str(await raised(fetch.ready()))

    run(case())


def test_history(bus: PeerFactory) -> None:
    """The history of a path comes as an Arrow table with its values in columns of their types, for pandas, too."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            state = await owner.add_state("a", 1)
            for value in (2.5, "open", True, {"rpm": 900}, None):
                await state.change(value)
            await owner.info()
            then = await instant()
            await state.change(8)
            await owner.info()
            table = await client.history("a", until=then)
            assert table["num"].to_pylist() == [1, 2.5, None, None, None, None]
            assert table["text"].to_pylist() == [None, None, "open", None, None, None]
            assert table["flag"].to_pylist() == [None, None, None, True, None, None]
            assert table["json"].to_pylist() == [None, None, None, None, '{"rpm":900}', None]
            frame = (await client.history("a", since=then)).to_pandas()
            assert frame["num"].tolist() == [8]
            assert str(frame["ts"].dtype.tz) == "UTC"

    run(case())


def test_tree(bus: PeerFactory) -> None:
    """The tree of an instant, absolute, relative or now, comes as an Arrow table; a rule selects from it."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            state = await owner.add_state("a", 1)
            await owner.add_state("b", "x")
            await owner.add_method("m", print)
            await owner.info()
            then = await instant()
            await state.change(2)
            await owner.info()
            now, past = await client.tree(), await client.tree(then)
            assert now.select(["path", "kind", "num", "text"]).to_pylist() == [
                {"path": "a", "kind": "state", "num": 2, "text": None},
                {"path": "b", "kind": "state", "num": None, "text": "x"},
                {"path": "m", "kind": "method", "num": None, "text": None},
            ]
            assert past["num"].to_pylist() == [1, None, None]
            assert (await client.tree(then, "a"))["num"].to_pylist() == [1]
            assert (await client.tree(text="** value>1"))["path"].to_pylist() == ["a"]

    run(case())


def test_what_was_not_recorded_is_named(bus: PeerFactory) -> None:
    """A path that never existed, a misspelt rule and an instant before the journal are errors with a next step."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            state = await owner.add_state("pump/speed", 1)
            await owner.info()
            then = await instant()
            near = "nothing in the journal matches pump/sped in that time; did you mean pump/speed?"
            for request, text in (
                (client.history("pump/sped"), near),
                (client.history("pump/sped", since=then), near),
                (client.history("pump/speed", until="-1d"), "-1d is before the journal begins, which is at 20"),
                (client.tree("-1d"), "-1d is before the journal begins, which is at 20"),
                (
                    client.tree(text="pmp/**"),
                    "nothing in the journal matches pmp/** at that time; the tree of that time,",
                ),
                (client.tree(text="pump/sped"), "nothing in the journal matches pump/sped at that time; did you mean"),
            ):
                problem = await raised(request)
                assert isinstance(problem, jetbus.NotFound | jetbus.journal.JournalError)
                assert text in str(problem)
            assert (await client.history("pump/speed", since=then)).num_rows == 0, "it exists, and did not change"
            assert (await client.tree(text="pump/** value>7")).num_rows == 0, "its path matches, its value does not"
            await state.remove()

    run(case())


def test_frame(bus: PeerFactory) -> None:
    """States side by side come as a frame of pandas, held from step to step, with their units."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            await owner.add_state("pump/speed", 3, unit="rpm")
            mode = await owner.add_state("pump/mode", "on")
            await mode.change("off")
            await owner.info()
            await instant()  # longer than a step, so that one comes after the change
            await owner.add_state("later", 1)
            frame = await client.frame(["pump/speed", "pump/mode"], since="-1m", every="1ms")
            assert list(frame.columns) == ["pump/mode", "pump/speed"]
            assert (frame["pump/speed"].iloc[-1], frame["pump/mode"].iloc[-1]) == (3, "off")
            assert str(frame.index.dtype) == "datetime64[ns, UTC]"
            assert frame.attrs["units"] == {"pump/speed": "rpm"}
            assert "did you mean pump/mode?" in str(await raised(client.frame("pump/mod")))

    run(case())


def test_history_in_pages(bus: PeerFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A history or tree that is longer than a page comes as a whole."""
    monkeypatch.setattr("jetbus.journal.pages.ROWS_MAX", 7)

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            for number in range(20):
                await owner.add_state(f"s/{number}", number)
            state = await owner.add_state("a", 0)
            for number in range(1, 30):
                await state.change(number)
            await owner.info()
            assert (await client.history("a"))["num"].to_pylist() == list(range(30))
            for instant_ in ("now", None, "-0s"):
                assert (await client.tree(instant_, "s/*"))["num"].to_pylist() == list(range(20))

    run(case())


def test_past_without_a_journal(face: str) -> None:
    """A daemon that keeps no journal says so, and how to keep one."""

    async def case() -> None:
        with running_daemon() as plain:
            async with PeerFactory(plain.url, face).peer() as client:
                for request in (client.history("a"), client.tree()):
                    error = await raised(request)
                    assert isinstance(error, jetbus.NotFound)
                    assert "jetd --journal DIR" in str(error)

    run(case())
