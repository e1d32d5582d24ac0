"""Owner of the plant: a peer that adds its states and methods to a bus and publishes their changes.

async with jetbus.PeerAsync(url, name="plant") as peer:
    owner = PlantOwner(peer)
    await owner.add_elements()
    await owner.run()
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any, NoReturn

from jetbus.demo.physics import Limit, Plant
from jetbus.peer import Adapted, PeerAsync, StateAsync

TICK_S = 0.2


class PlantOwner:
    """Plant with states and methods that a peer owns."""

    def __init__(self, peer: PeerAsync, plant: Plant | None = None) -> None:
        self.plant = plant or Plant()
        self.states: dict[str, StateAsync] = {}
        self.methods: dict[str, Callable[..., Any]] = {
            "plant/start": self._start,
            "plant/stop": self._stop,
            "plant/filter/clean": self._clean,
            "plant/counter/reset": self._reset,
        }
        self._peer = peer

    async def add_elements(self) -> None:
        """Add all states and methods."""
        limits = self.plant.get_limits()
        for path, value in self.plant.read_values().items():
            on_set = self._make_setter(path, limits[path]) if path in limits else None
            self.states[path] = await self._peer.add_state(path, value, on_set=on_set)
        for path, method in self.methods.items():
            await self._peer.add_method(path, method)

    async def run(self) -> NoReturn:
        """Run the simulation, and publish changes."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            # After a suspended laptop wakes up, the simulation must not catch up hours in one step.
            self.plant.step(min(now - last, 1.0))
            last = now
            self._publish_changes()

    def _publish_changes(self) -> None:
        # One message for all values of a tick, instead of some twenty.
        with self._peer.batch():
            for path, value in self.plant.read_values().items():
                if value != self.states[path].value:
                    self.states[path].change(value)

    # -- requests of other peers

    def _make_setter(self, path: str, limit: Limit) -> Callable[[Any], Adapted | None]:
        def on_set(wanted: Any) -> Adapted | None:
            # bool is a subclass of int, and NaN would pass through min and max.
            if isinstance(wanted, bool) or not isinstance(wanted, int | float) or math.isnan(wanted):
                raise ValueError(f"{path} takes a number from {limit.low:g} to {limit.high:g} {limit.unit}")
            accepted = float(min(limit.high, max(limit.low, wanted)))
            limit.apply(accepted)
            return None if accepted == wanted else Adapted(accepted, f"the limit is {accepted:g} {limit.unit}")

        return on_set

    def _start(self, *pumps: int) -> dict[str, list[int]]:
        return self._switch(pumps, on=True)

    def _stop(self, *pumps: int) -> dict[str, list[int]]:
        return self._switch(pumps, on=False)

    def _switch(self, pumps: tuple[int, ...], *, on: bool) -> dict[str, list[int]]:
        """Start or stop the given pumps, or all of them, and return those that are running."""
        known = [pump.number for pump in self.plant.pumps]
        if not all(number in known for number in pumps):
            raise ValueError(f"unknown pump; choose from {known}, or give none for all")
        # Changes are published before the method returns, so that the caller sees them with the response.
        running = self.plant.switch(set(pumps or known), on)
        self._publish_changes()
        return {"running": running}

    def _clean(self) -> dict[str, float]:
        was = self.plant.clean()
        self._publish_changes()
        return {"was_percent": was}

    def _reset(self, *names: str) -> dict[str, float]:
        """Reset the given counters, or all of them, and return their previous values."""
        known = list(self.plant.get_counters())
        if not all(name in known for name in names):
            raise ValueError(f"unknown counter; choose from {known}, or give none for all")
        reached = self.plant.reset(list(names) or known)
        self._publish_changes()
        return reached
