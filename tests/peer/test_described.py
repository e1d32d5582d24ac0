"""States that their owner describes, and values with time and quality, for both peers over JSON and binary."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import pytest

import jetbus
from jetbus.errors import Invalid, ValueRefused
from jetbus.peer import connection
from jetbus.schema import GOOD, Quality
from jetbus.testing import RunningDaemon
from support.peers import PeerFactory, raised, run, until

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def about(event: Any) -> tuple[Any, ...]:
    """The parts of an event that only fetches have that ask for them."""
    unit = None if event.schema is None else event.schema.unit
    return event.kind, event.value, unit, event.ts, event.quality, event.stale


def test_events_say_what_values_mean(bus: PeerFactory) -> None:
    """A fetch that asks gets schema, time and quality with every event; another one gets none of them."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            fetch = await (await client.fetch("pump/*", schema=True, meta=True, policy="every")).ready()
            plain = await (await client.fetch("pump/*", policy="every")).ready()
            state = await owner.add_state("pump/speed", 0, unit="rpm", minimum=0, maximum=3000, title="Speed")
            await state.change(1, ts=NOON, quality={"level": "bad", "reason": "cable broken"})
            await state.change(2, ts="2026-03-01T13:00:00+01:00")
            await state.change(3, quality="uncertain")
            await state.change(4)
            await state.describe(unit="1/min")
            await state.remove()
            noon = "2026-03-01T12:00:00.000000Z"
            events = await fetch.take(7)
            assert [about(event) for event in events] == [
                ("add", 0, "rpm", "", GOOD, False),
                ("change", 1, "rpm", noon, Quality("bad", "cable broken"), False),
                ("change", 2, "rpm", noon, GOOD, False),
                ("change", 3, "rpm", "", Quality("uncertain"), False),
                ("change", 4, "rpm", "", GOOD, False),
                ("change", 4, "1/min", "", GOOD, False),
                ("remove", 4, "1/min", "", GOOD, False),
            ]
            assert (events[0].schema.title, events[0].schema.maximum) == ("Speed", 3000)
            assert {about(event)[2:] for event in await plain.take(6)} == {(None, "", GOOD, False)}

    run(case())


def test_values_of_the_past_are_not_the_state(bus: PeerFactory) -> None:
    """A value that is older than the present one and says so is neither told nor kept as the state's."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            fetch = await (await client.fetch("s", meta=True, policy="every")).ready()
            state = await owner.add_state("s", 0)
            await state.change(1, ts=2_000_000)
            await state.change(7, ts=1_000_000, past=True)
            assert state.value == 1
            await state.change(2)
            assert [event.value for event in await fetch.take(3)] == [0, 1, 2]

    run(case())


def test_a_stale_state_is_told_and_lives_again(bus: PeerFactory) -> None:
    """A fetch with meta is told that a state is stale, and the next change ends it."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            fetch = await (await client.fetch("s", meta=True, policy="every")).ready()
            state = await owner.add_state("s", 5, stale_s=0.05)
            assert [(event.value, event.stale) for event in await fetch.take(2)] == [(5, False), (5, True)]
            await state.describe()
            await state.change(6)
            events = await fetch.take(1)
            assert [(event.value, event.stale) for event in events] == [(6, False)]

    run(case())


def test_the_daemon_checks_values(bus: PeerFactory) -> None:
    """With check the daemon refuses values that do not fit, before on_set gets them."""

    async def case() -> None:
        asked: list[Any] = []
        async with bus.peer() as owner, bus.peer() as client:
            await owner.add_state("s", 0, on_set=asked.append, maximum=10, check=True)
            problem = await raised(client.set("s", 11))
            assert isinstance(problem, ValueRefused)
            assert problem.subject == "value"
            assert str(problem) == "s does not fit its schema: value is 11, above the maximum 10"
            assert asked == []
            await client.set("s", 10)
            assert asked == [10]

    run(case())


@dataclasses.dataclass
class Pump:
    """A pump."""

    speed: Annotated[float, msgspec.Meta(ge=0, le=3000, extra_json_schema={"unit": "rpm"})] = 0.0


def test_types_describe_states(bus: PeerFactory) -> None:
    """A state with a type is described by it, and by what its owner says besides."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            await owner.add_state("pump", Pump(), type=Pump, stale_s=60)
            await owner.add_state("text", 0, schema="a number")
            await owner.add_method("reset", lambda: None, schema={"description": "resets"})
            fetch = await client.fetch(schema=True)
            pump, text, reset = sorted(
                await fetch.take(3), key=lambda event: ["pump", "text", "reset"].index(event.path)
            )
            assert pump.schema.properties["speed"].unit == "rpm"
            assert (pump.schema.description, pump.schema.stale_s) == ("A pump.", 60)
            assert text.schema.description == "a number"
            assert (reset.is_method, reset.schema.description) == (True, "resets")

    run(case())


def test_sorted_fetches_have_descriptions(bus: PeerFactory) -> None:
    """The items of a sorted fetch that asks have schema, time and quality."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            state = await owner.add_state("s", 1, unit="K")
            await state.change(2, quality="bad", ts=NOON)
            await owner.info()  # the daemon has handled the change
            fetch = await client.fetch(sort_by="value", schema=True, meta=True)
            (item,) = (await fetch.take(1))[-1]
            assert about(item) == ("change", 2, "K", "2026-03-01T12:00:00.000000Z", Quality("bad"), False)

    run(case())


def test_descriptions_come_back(bus: PeerFactory, daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart of the daemon a state has its schema, time and quality again; what is the same is not news."""
    monkeypatch.setattr(connection, "BACKOFF_S", 0.005)

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            state = await owner.add_state("s", 1, unit="K")
            await state.change(2, quality="bad", ts=NOON)
            await owner.info()  # the daemon has handled the change
            fetch = await client.fetch("s", schema=True, meta=True, policy="every")
            assert about((await fetch.take(1))[0])[2] == "K"
            await asyncio.to_thread(daemon.restart)
            async with bus.peer() as other:
                again = await other.fetch("s", schema=True, meta=True, policy="every")
                await until(lambda: again.inner._subscription.known)
                assert about((await again.take(1))[0])[1:] == (
                    2,
                    "K",
                    "2026-03-01T12:00:00.000000Z",
                    Quality("bad"),
                    False,
                )
                await state.change(3)
            while (event := (await fetch.take(1))[0]).value != 3:
                assert about(event)[2] == "K"
            assert about(event) == ("change", 3, "K", "", GOOD, False)

    run(case())


BAD: list[tuple[dict[str, Any], str]] = [
    ({"ts": "yesterday"}, "a time is RFC 3339 text with an offset"),
    ({"quality": "fine"}, "quality is one of good, uncertain, bad"),
    ({"past": True}, "a value of the past needs its time"),
]


@pytest.mark.parametrize(("meta", "text"), BAD)
def test_bad_meta_data_are_refused_where_they_are_given(bus: PeerFactory, meta: dict[str, Any], text: str) -> None:
    """A time or quality that means nothing raises, and the state keeps its value."""

    async def case() -> None:
        async with bus.peer() as owner:
            state = await owner.add_state("s", 1)
            problem = await raised(state.change(2, **meta))
            assert isinstance(problem, Invalid)
            assert text in str(problem)
            assert state.value == 1

    run(case())


def test_bad_descriptions_are_refused() -> None:
    """A description with a malformed or unknown member raises, and nothing is added."""
    with jetbus.testing.running_daemon() as daemon, jetbus.Peer(daemon.url) as peer:
        with pytest.raises(Invalid, match=r"schema\.minimum must be a number"):
            peer.add_state("s", 1, minimum="zero")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="a state has no colour; put other members into schema="):
            peer.add_state("s", 1, colour="red")  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="put the text into description="):
            peer.add_state("s", 1, schema="text", unit="K")
        assert peer.get_all() == {}


def test_an_event_shows_only_what_was_asked_for() -> None:
    """The text of an event names schema, quality and staleness only if there are any."""
    assert "told" not in repr(jetbus.Event("change", "a", 1))
    assert "told_quality='bad'" in repr(jetbus.Event("change", "a", 1, told_quality="bad"))
