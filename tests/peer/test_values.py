"""Values that JSON does not have: what an owner or client may give, and what is refused with a reason."""

from __future__ import annotations

import enum
import logging
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pytest

import jetbus
from support.peers import PeerFactory, raised, run


class Mode(enum.Enum):
    MANUAL = "manual"


@dataclass
class Reading:
    celsius: float


class Point(msgspec.Struct):
    x: int


VALUES: dict[str, tuple[Any, Any]] = {
    "a scalar of numpy": (np.float64(1.5), 1.5),
    "an integer of numpy": (np.int32(7), 7),
    "a boolean of numpy": (np.bool_(True), True),
    "an array": (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    "an array inside": ({"trace": np.array([0.5])}, {"trace": [0.5]}),
    "a datetime": (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05Z"),
    "a decimal": (Decimal("1.25"), 1.25),
    "an enum": (Mode.MANUAL, "manual"),
    "a dataclass": (Reading(20.5), {"celsius": 20.5}),
    "a struct": (Point(3), {"x": 3}),
}


@pytest.mark.parametrize(("given", "seen"), VALUES.values(), ids=VALUES)
def test_values_of_other_types(bus: PeerFactory, given: Any, seen: Any) -> None:
    """Scalars and arrays of numpy, datetimes, decimals, enums, dataclasses and structs are values."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            state = await owner.add_state("added", given)
            await owner.add_state("set", 0, on_set=lambda _value: None)
            assert await client.get_all("added") == {"added": seen}
            await state.change(0)
            await state.change(given)
            await client.set("set", given)
            assert await client.get_all(starts_with="") == {"added": seen, "set": seen}

    run(case())


NOT_FINITE = {
    "nan": math.nan,
    "infinity": -math.inf,
    "inside": {"a": [1, None, math.inf]},
    "numpy": np.array([1.0, math.nan]),
    "dataclass": Reading(math.nan),
    "decimal": Decimal("NaN"),
    "decimal inside": [Decimal("-Infinity")],
    "decimal signal": {"a": Decimal("sNaN")},
}


@pytest.mark.parametrize("value", NOT_FINITE.values(), ids=NOT_FINITE)
def test_nan_is_refused(bus: PeerFactory, value: Any) -> None:
    """NaN and infinity, which JSON does not have, are an error that names the path; the state keeps its value."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            state = await owner.add_state("pump/speed", None, on_set=lambda _value: None)
            for request in (state.change(value), client.set("pump/speed", value), owner.add_state("other", value)):
                error = await raised(request)
                assert isinstance(error, jetbus.InvalidValue)
                assert "NaN nor infinity; send None" in str(error)
                assert error.path in ("pump/speed", "other")
            assert await client.get_all(starts_with="") == {"pump/speed": None}
            await state.change([None])
            assert await owner.get_all("pump/speed") == {"pump/speed": [None]}

    run(case())


def test_type_binds_the_owner(bus: PeerFactory) -> None:
    """A state with a type refuses a value of its owner that does not fit, and keeps the one it has."""

    async def case() -> None:
        async with bus.peer() as owner:
            state = await owner.add_state("pump/speed", 1, type=int)
            error = await raised(state.change("fast"))
            assert isinstance(error, jetbus.InvalidValue)
            assert "pump/speed" in str(error)
            assert await owner.get_all("pump/speed") == {"pump/speed": 1}
            await state.change(2)
            assert isinstance(await raised(owner.add_state("other", "x", type=int)), jetbus.InvalidValue)

    run(case())


def test_a_value_of_a_wrong_type(bus: PeerFactory, caplog: pytest.LogCaptureFixture) -> None:
    """A setter that fails because of the type of a value answers so, with one line in the log."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            await owner.add_state("pump/speed", 0, on_set=lambda rpm: min(rpm, 3000))
            with caplog.at_level(logging.WARNING, "jetbus.peer"):
                error = await raised(client.set("pump/speed", "fast"))
            assert isinstance(error, jetbus.Refused)
            assert "invalid value" in str(error)
            (record,) = [record for record in caplog.records if record.name == "jetbus.peer"]
            assert record.exc_info is None
            assert "pump/speed" in record.getMessage()

    run(case())


def test_timed_out_is_a_timeout_error() -> None:
    """``except TimeoutError`` catches a request that was not answered in time."""
    error = jetbus.TimedOut({"path": "a"})
    assert isinstance(error, TimeoutError)
    assert (str(error), error.path) == ("the owner did not answer in time", "a")


def test_representations(bus: PeerFactory) -> None:
    """Peers, states, methods and fetches show what they are and how they are."""

    async def case() -> None:
        peer = bus.make()
        assert repr(peer.inner).endswith(", not connected>")
        async with bus.peer() as peer:
            assert bus.url in repr(peer.inner)
            assert repr(peer.inner).endswith(", connected>")
            state = await peer.add_state("pump/speed", 7)
            method = await peer.add_method("pump/stop", lambda: None)
            fetch = await (await peer.fetch("pump/speed")).ready()
            shown = [repr(handle.inner).replace("Async", "") for handle in (state, method, fetch)]
            assert shown == ["<State 'pump/speed' = 7>", "<Method 'pump/stop'>", "<Fetch 'f1', 1 matches, complete>"]
            await state.remove()
            assert repr(state.inner).endswith(", removed>")

    run(case())
