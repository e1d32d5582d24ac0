"""One value or those of a rule: ``get`` and ``get_all``, and the value in the result of a set."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

import jetbus
from jetbus.peer.requests import SetResult
from support.peers import PeerFactory, raised, run


class Speed(msgspec.Struct):
    rpm: int


def test_get_one_value(bus: PeerFactory) -> None:
    """``get`` returns the value of one path, even null, and converts it to a type."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            await owner.add_state("pump/speed", {"rpm": 900})
            await owner.add_state("pump/note", None)
            await owner.add_state("pump/image", b"abc")
            assert await client.get("pump/speed") == {"rpm": 900}
            assert await client.get("pump/speed", type=Speed) == Speed(900)
            assert await client.get("pump/note", default="none") is None
            assert await client.get("pump/image") == b"abc"
            error = await raised(client.get("pump/speed", type=int))
            assert isinstance(error, jetbus.InvalidValue)
            assert error.path == "pump/speed"

    run(case())


def test_get_without_a_state(bus: PeerFactory) -> None:
    """``get`` of a path that nobody owns is NotFound or the default; of a method or a rule, it says what to do."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            await owner.add_method("pump/start", lambda: None)
            await owner.add_state("pump/speed", 1)
            error = await raised(client.get("pump/sped"))
            assert isinstance(error, jetbus.NotFound)
            assert error.path == "pump/sped"
            assert await client.get("pump/sped", default=7) == 7
            assert await client.get("pump/sped", default=None) is None
            assert isinstance(await raised(client.get("pump/start")), jetbus.NotState)
            assert "get_all reads rules" in str(await raised(client.get("pump/*")))
            assert await client.get_all("pump/*") == {"pump/speed": 1}

    run(case())


def test_value_of_a_set(bus: PeerFactory) -> None:
    """The result of a set has the value that the state became, as others see it, also if the owner adapted it."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            await owner.add_state("pump/speed", 0, on_set=lambda rpm: min(rpm, 3000))
            await owner.add_state("pump/since", None, on_set=lambda _value: None)
            assert await client.set("pump/speed", 900) == SetResult(900)
            assert await client.set("pump/speed", 9000) == SetResult(3000, 1)
            received = await client.set("pump/since", datetime(2026, 1, 2, tzinfo=UTC))
            assert received.value == await client.get("pump/since") == "2026-01-02T00:00:00Z"

    run(case())
