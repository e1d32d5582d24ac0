"""The plant as a peer: hangs it into a bus, answers for it, and tells what changes.

async with jetbus.PeerAsync(url, name="plant") as peer:
    owner = PlantOwner(peer)
    await owner.hang_in()
    await owner.live()
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
    """A plant on the bus of a peer."""

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

    async def hang_in(self) -> None:
        """Add all states and methods."""
        limits = self.plant.limits()
        for path, value in self.plant.values().items():
            on_set = self._setter(path, limits[path]) if path in limits else None
            self.states[path] = await self._peer.add_state(path, value, on_set=on_set)
        for path, method in self.methods.items():
            await self._peer.add_method(path, method)

    async def live(self) -> NoReturn:
        """Let time pass, and tell what has changed."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            self.plant.step(min(now - last, 1.0))
            last = now
            self._tell()

    def _tell(self) -> None:
        with self._peer.batch():
            for path, value in self.plant.values().items():
                if value != self.states[path].value:
                    self.states[path].change(value)

    # -- what others ask

    def _setter(self, path: str, limit: Limit) -> Callable[[Any], Adapted | None]:
        def on_set(wanted: Any) -> Adapted | None:
            if isinstance(wanted, bool) or not isinstance(wanted, int | float) or math.isnan(wanted):
                raise ValueError(f"{path} takes a number from {limit.low:g} to {limit.high:g} {limit.unit}")
            taken = float(min(limit.high, max(limit.low, wanted)))
            limit.apply(taken)
            return None if taken == wanted else Adapted(taken, f"{taken:g} {limit.unit} is the limit")

        return on_set

    def _start(self, *pumps: int) -> dict[str, list[int]]:
        return self._switch(pumps, on=True)

    def _stop(self, *pumps: int) -> dict[str, list[int]]:
        return self._switch(pumps, on=False)

    def _switch(self, pumps: tuple[int, ...], *, on: bool) -> dict[str, list[int]]:
        """The pumps with these numbers, or all; gives those that run now."""
        known = [pump.number for pump in self.plant.pumps]
        if not all(number in known for number in pumps):
            raise ValueError(f"give numbers of pumps out of {known}, or nothing for all of them")
        running = self.plant.switch(set(pumps or known), on)
        self._tell()
        return {"running": running}

    def _clean(self) -> dict[str, float]:
        was = self.plant.clean()
        self._tell()
        return {"was_percent": was}

    def _reset(self, *names: str) -> dict[str, float]:
        """The counters with these names, or all; gives what they had reached."""
        known = list(self.plant.counters())
        if not all(name in known for name in names):
            raise ValueError(f"give names of counters out of {known}, or nothing for all of them")
        reached = self.plant.reset(list(names) or known)
        self._tell()
        return reached
