"""Simulation of the plant: three pumps press water through a filter into a heated tank, and a valve lets it out.

Pure arithmetic without the bus: ``step`` advances the time, ``read_values`` returns every state by its path.

    pump speed --> flow --> filter --> inflow --> level --> temperature
                             (clogs)               ^          ^
                                           demand--+   heater-+

So the states move together, as in a real plant. The bearing of one pump fails now and then, and the filter clogs until
it is cleaned.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

TANK_L = 300.0
SUPPLY_C = 18.0
L_PER_TURN = 0.05
FLOW_L_MIN = 135.0
"""Total flow of the pumps at their initial speeds."""
# Enough for the whole inflow at the highest setpoint: 135 l/min, warmed by 72 K, take 680 kW.
HEATER_KW = 800.0
HEAT_J_PER_L_K = 4190.0
FAULTY_PUMP = 2
# Short periods, so that a minute in front of the demo shows a fault, its alarm, and the end of both.
FAULT_EVERY_S, FAULT_FROM_S, FAULT_FOR_S = 30.0, 10.0, 8.0
CLOGS_IN_S = 90.0
CLEANED_AT = 0.95
"""Fraction at which the filter cleans itself."""
CLOGGED = 0.7
DEMAND_PERIOD_S = 40.0


def approach(now: float, goal: float, dt_s: float, time_constant_s: float) -> float:
    """Return the next value of a first-order lag towards a goal."""
    # A step that is longer than the time constant must not overshoot the goal.
    return now + (goal - now) * min(1.0, dt_s / time_constant_s)


@dataclass
class Pump:
    """Pump with inertia, a flow proportional to its speed, and a bearing that warms up."""

    number: int
    setpoint_rpm: float
    running: bool = True
    bad_bearing: bool = False
    speed_rpm: float = 0.0
    bearing_c: float = SUPPLY_C
    turns: float = 0.0
    starts: int = 1

    @property
    def flow_l_min(self) -> float:
        # A bad bearing shows in four values at once: less flow, more current, more vibration, a warmer bearing.
        return self.speed_rpm * L_PER_TURN * (0.6 if self.bad_bearing else 1.0)

    @property
    def current_a(self) -> float:
        return 0.3 + (self.speed_rpm / 1000) ** 2 * (1.5 if self.bad_bearing else 1.0) if self.speed_rpm > 1 else 0.0

    def vibration_mm_s(self, noise: float) -> float:
        return self.speed_rpm / 1500 * (6.0 if self.bad_bearing else 1.0) * (1 + 0.1 * noise)

    def step(self, dt_s: float) -> None:
        self.speed_rpm = approach(self.speed_rpm, self.setpoint_rpm if self.running else 0.0, dt_s, 2.0)
        friction_k = self.speed_rpm / 1000 * (60.0 if self.bad_bearing else 15.0)
        self.bearing_c = approach(self.bearing_c, SUPPLY_C + friction_k, dt_s, 12.0)
        self.turns += self.speed_rpm * dt_s / 60

    def switch(self, on: bool) -> None:
        self.starts += on and not self.running
        self.running = on


class Limit(NamedTuple):
    """Settable number: its range, unit, and the function that applies it."""

    low: float
    high: float
    unit: str
    apply: Callable[[float], None]


@dataclass
class Plant:
    """The whole plant."""

    pumps: list[Pump] = field(default_factory=lambda: [Pump(1, 1200.0), Pump(2, 900.0), Pump(3, 600.0)])
    time_s: float = 0.0
    level_l: float = 0.5 * TANK_L
    temperature_c: float = 44.0
    clogged: float = 0.4
    valve_percent: float = 55.0
    heater_setpoint_c: float = 45.0
    heater_kw: float = 0.0
    delivered_l: float = 0.0
    energy_kwh: float = 0.0
    faults_seen: int = 0
    faults: list[str] = field(default_factory=list)
    # The seed is fixed, so that two runs with equal steps are equal, in tests as well.
    dice: random.Random = field(default_factory=lambda: random.Random(2012))  # noqa: S311 - noise, not secrets

    @property
    def inflow_l_min(self) -> float:
        return sum(pump.flow_l_min for pump in self.pumps) * (1 - 0.4 * self.clogged**2)

    @property
    def pressure_drop_mbar(self) -> float:
        return 60.0 * (self.inflow_l_min / FLOW_L_MIN) ** 2 * (1 + 12 * self.clogged**2)

    @property
    def demand(self) -> float:
        """Demand of the consumers behind the valve, 1 on average."""
        return 1.0 + 0.4 * math.sin(math.tau * self.time_s / DEMAND_PERIOD_S)

    @property
    def outflow_l_min(self) -> float:
        return 4.0 * self.valve_percent * self.demand * math.sqrt(self.level_l / TANK_L)

    def step(self, dt_s: float) -> None:
        """Advance the simulation by some time."""
        self.time_s += dt_s
        bad = self.time_s >= FAULT_FROM_S and (self.time_s - FAULT_FROM_S) % FAULT_EVERY_S < FAULT_FOR_S
        for pump in self.pumps:
            pump.bad_bearing = bad and pump.running and pump.number == FAULTY_PUMP
            pump.step(dt_s)
        # Both flows as at the start of the step; the level, on which the outflow depends, changes below.
        inflow_l, outflow_l = self.inflow_l_min * dt_s / 60, self.outflow_l_min * dt_s / 60
        self._step_filter(inflow_l)
        self._step_heat(inflow_l, dt_s)
        self.level_l = min(TANK_L, max(0.0, self.level_l + inflow_l - outflow_l))
        self.delivered_l += outflow_l
        self.energy_kwh += (self.heater_kw + sum(pump.current_a for pump in self.pumps) * 0.4) * dt_s / 3600
        self._step_faults()

    def _step_filter(self, inflow_l: float) -> None:
        self.clogged += inflow_l / (FLOW_L_MIN * CLOGS_IN_S / 60)
        if self.clogged >= CLEANED_AT:
            self.clogged = 0.0

    def _step_heat(self, inflow_l: float, dt_s: float) -> None:
        # An empty tank would have no heat capacity, and its temperature no bounds.
        water_l = max(20.0, self.level_l)
        self.heater_kw = min(HEATER_KW, max(0.0, 80.0 * (self.heater_setpoint_c - self.temperature_c)))
        heated_k = self.heater_kw * 1000 * dt_s / (water_l * HEAT_J_PER_L_K)
        mixed_k = (SUPPLY_C - self.temperature_c) * inflow_l / (water_l + inflow_l)
        self.temperature_c += heated_k + mixed_k - (self.temperature_c - SUPPLY_C) * dt_s / 20_000

    def _step_faults(self) -> None:
        conditions = {
            **{f"pump {pump.number}: bearing": pump.bad_bearing for pump in self.pumps},
            "filter: clogged": self.clogged > CLOGGED,
        }
        before, self.faults = self.faults, [name for name, holds in conditions.items() if holds]
        # A fault counts when it starts, not in every step in which it lasts.
        self.faults_seen += len(set(self.faults) - set(before))

    # -- actions

    def get_limits(self) -> dict[str, Limit]:
        """Return the settable numbers, by path."""

        def put(target: object, name: str) -> Callable[[float], None]:
            # Made in a function of its own: a lambda in the loop below would see the last pump only.
            return lambda value: setattr(target, name, value)

        pumps = {
            f"plant/pump/{pump.number}/setpoint_rpm": Limit(0, 3000, "rpm", put(pump, "setpoint_rpm"))
            for pump in self.pumps
        }
        return {
            **pumps,
            "plant/valve/opening_percent": Limit(0, 100, "%", put(self, "valve_percent")),
            "plant/heater/setpoint_c": Limit(10, 90, "°C", put(self, "heater_setpoint_c")),
        }

    def switch(self, numbers: set[int], on: bool) -> list[int]:
        """Start or stop pumps, and return the numbers of those that are running."""
        for pump in self.pumps:
            if pump.number in numbers:
                pump.switch(on)
        return [pump.number for pump in self.pumps if pump.running]

    def clean(self) -> float:
        """Clean the filter, and return how clogged it was, in percent."""
        was, self.clogged = self.clogged, 0.0
        return round(100 * was, 1)

    def get_counters(self) -> dict[str, float]:
        """Return the counters by name."""
        return {
            "delivered_l": round(self.delivered_l, 1),
            "energy_kwh": round(self.energy_kwh, 3),
            "faults_seen": self.faults_seen,
        }

    def reset(self, names: list[str]) -> dict[str, float]:
        """Set counters to zero, and return their previous values."""
        reached = {name: self.get_counters()[name] for name in names}
        for name in names:
            # faults_seen is an int and the others are floats; each keeps its type, and so its look on the bus.
            setattr(self, name, type(getattr(self, name))(0))
        return reached

    # -- values

    def read_values(self) -> dict[str, Any]:
        """Return every state by its path, rounded as by an instrument."""
        noise = self.dice.gauss
        shown: dict[str, Any] = {"plant/info": {"name": "pump house", "pumps": len(self.pumps), "tank_l": TANK_L}}
        for pump in self.pumps:
            shown |= {f"plant/pump/{pump.number}/{name}": value for name, value in self._read_pump(pump).items()}
        shown |= {
            "plant/filter/clogged_percent": round(100 * self.clogged, 1),
            "plant/filter/pressure_drop_mbar": round(self.pressure_drop_mbar + noise(0, 0.5), 1),
            "plant/tank/level_percent": round(100 * self.level_l / TANK_L, 1),
            "plant/tank/temperature_c": round(self.temperature_c, 2),
            # A full tank is 2 m high, and 2 m of water are 196 mbar.
            "plant/tank/pressure_mbar": round(self.level_l / TANK_L * 196 + noise(0, 0.1), 1),
            "plant/tank/inflow_l_min": round(self.inflow_l_min, 1),
            "plant/tank/outflow_l_min": round(self.outflow_l_min, 1),
            "plant/valve/opening_percent": self.valve_percent,
            "plant/heater/setpoint_c": self.heater_setpoint_c,
            "plant/heater/power_kw": round(self.heater_kw, 1),
            "plant/demand_percent": round(100 * self.demand, 1),
            "plant/ambient_c": round(SUPPLY_C + 3 + noise(0, 0.02), 1),
            "plant/time_s": round(self.time_s),
            "plant/faults": list(self.faults),
        }
        return shown | {f"plant/counter/{name}": value for name, value in self.get_counters().items()}

    def _read_pump(self, pump: Pump) -> dict[str, Any]:
        return {
            "setpoint_rpm": pump.setpoint_rpm,
            "running": pump.running,
            "speed_rpm": round(pump.speed_rpm),
            "flow_l_min": round(pump.flow_l_min, 1),
            "current_a": round(pump.current_a, 2),
            "bearing_c": round(pump.bearing_c, 1),
            "vibration_mm_s": round(pump.vibration_mm_s(self.dice.gauss(0, 1)), 2),
            "turns": round(pump.turns),
            "starts": pump.starts,
        }
