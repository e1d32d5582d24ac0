"""A thermostat: an owner with a control loop, a setpoint that anybody may set within limits, a simulated room.

python examples/thermostat.py
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys

import jetbus

STEP_S = 0.1
COLDEST_C, WARMEST_C = 5.0, 30.0
HYSTERESIS_C = 0.5
OUTSIDE_C = 5.0
HEATER_C = 0.8
"""How much the heater warms the room in one step."""
LOSS = 0.02
"""Which part of the difference to the outside is lost in one step."""


def within_limits(celsius: float) -> None:
    """Accept a setpoint, or refuse it with the reason."""
    if not COLDEST_C <= celsius <= WARMEST_C:
        raise ValueError(f"the setpoint is between {COLDEST_C:g} and {WARMEST_C:g} degrees, not {celsius:g}")


def next_temperature(celsius: float, heating: bool) -> float:
    """The room one step later."""
    return round(celsius + heating * HEATER_C - LOSS * (celsius - OUTSIDE_C), 3)


def should_heat(celsius: float, setpoint: float, heating: bool) -> bool:
    """Heat below the setpoint; the hysteresis keeps the heater from switching all the time."""
    return celsius < setpoint + (HYSTERESIS_C if heating else -HYSTERESIS_C)


async def run_thermostat(seconds: float | None) -> None:
    async with jetbus.PeerAsync(name="thermostat", wait=True) as peer:
        setpoint = await peer.add_state("thermostat/setpoint", 21.0, on_set=within_limits, type=float)
        temperature = await peer.add_state("thermostat/temperature", 15.0)
        heating = await peer.add_state("thermostat/heating", False)
        print(f"thermostat at {peer.url}; set thermostat/setpoint", flush=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    with peer.batch():
                        temperature.change(next_temperature(temperature.value, heating.value))
                        wanted = should_heat(temperature.value, setpoint.value, heating.value)
                        if wanted != heating.value:
                            heating.change(wanted)
                    await asyncio.sleep(STEP_S)


def main() -> int:
    parser = argparse.ArgumentParser(description="A thermostat with a simulated room; Ctrl-C ends it.")
    parser.add_argument("--for", dest="seconds", type=float, metavar="SECONDS", help="end after so many seconds")
    seconds = parser.parse_args().seconds
    try:
        asyncio.run(run_thermostat(seconds))
    except jetbus.NotConnected as problem:
        print(problem, file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
