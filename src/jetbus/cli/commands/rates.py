"""``jet hz`` and ``jet bw``: the rate and bandwidth of events.

Both measure the same windows of events and print different figures of them, so they share a module.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

import click

from jetbus.cli.arguments import no_match_error, read_rules
from jetbus.cli.command import DURATION, PATH, Example, command
from jetbus.cli.output import Output
from jetbus.cli.streams import Ending, Follower, measure_bytes, now, open_peer, run, run_until_end
from jetbus.cli.target import Target
from jetbus.json_types import JsonObject
from jetbus.peer import Event

Measure = Callable[["RateInterval"], JsonObject]


class RateInterval:
    """Events of one interval: their number, sizes, and the time between them."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._last: float | None = None
        self.count = 0
        self.gaps: list[float] = []
        self.sizes: list[int] = []
        self.length_s = 0.0

    def add(self, event: Event) -> None:
        """Count an event."""
        at = time.monotonic()
        if self._last is not None:
            self.gaps.append(at - self._last)
        self._last = at
        self.count += 1
        self.sizes.append(measure_bytes(event))

    @property
    def age_s(self) -> float:
        """Time since the interval began."""
        return time.monotonic() - self._began

    def end(self) -> None:
        """Note the length of the interval."""
        self.length_s = max(self.age_s, 1e-9)


def _compute_rate(window: RateInterval) -> JsonObject:
    # Fewer than two events have no time between them.
    gaps_ms = [1e3 * gap for gap in window.gaps] or [0.0]
    mean = sum(gaps_ms) / len(gaps_ms)
    spread = math.sqrt(sum((gap - mean) ** 2 for gap in gaps_ms) / len(gaps_ms))
    times_ms = {"mean_ms": mean, "min_ms": min(gaps_ms), "max_ms": max(gaps_ms), "spread_ms": spread}
    return {"per_s": round(window.count / window.length_s, 1)} | {name: round(ms, 3) for name, ms in times_ms.items()}


def _compute_bandwidth(window: RateInterval) -> JsonObject:
    sizes = window.sizes or [0]
    return {
        "bytes_per_s": round(sum(window.sizes) / window.length_s),
        "mean_bytes": round(sum(sizes) / len(sizes)),
        "max_bytes": max(sizes),
    }


HZ = ("ts", "events", "per_s", "mean_ms", "min_ms", "max_ms", "spread_ms")
BW = ("ts", "events", "bytes_per_s", "mean_bytes", "max_bytes")


async def _measure(
    bus: Target, rules: tuple[str, ...], out: Output, ending: Ending, every_s: float, of: Measure
) -> int:
    async with open_peer(bus) as peer:
        # Every event counts here, so none may be replaced by a newer one.
        following = Follower(peer, read_rules(rules), every=True)

        def report(window: RateInterval) -> None:
            window.end()
            out.put({"ts": now(), "events": window.count, **of(window)})

        async def measure() -> None:
            if not await following.ready() and rules:
                raise no_match_error(rules)
            is_first = True
            while True:
                window = RateInterval()
                try:
                    # Only the timeout ends an interval, so one without events is reported on time as well.
                    async with asyncio.timeout(every_s):
                        while True:
                            window.add(await following.next())
                except TimeoutError:
                    report(window)
                except asyncio.CancelledError:
                    # --for may end in the middle of an interval, or just before its end.
                    if is_first or window.age_s > every_s / 2:
                        report(window)
                    raise
                is_first = False
                if ending.record_event():
                    return

        return await run_until_end(measure(), ending, quits=True)


def _show(bus: Target, form: str | None, ending: Ending, rules: tuple[str, ...], every_s: float, hz: bool) -> int:
    with Output(HZ if hz else BW, form, stream=True, heads=True, value="per_s" if hz else "bytes_per_s") as out:
        code: int = run(_measure(bus, rules, out, ending, every_s, _compute_rate if hz else _compute_bandwidth))
    return code


_every_option = click.option(
    "--every",
    "every_s",
    type=DURATION,
    default=1.0,
    show_default="1s",
    metavar="DURATION",
    help="length of one measurement",
)


@command(
    examples=[
        Example("jet hz plant/tank/level --count 2", "two measurements of one second"),
        Example("jet hz 'plant/**' --every 500ms --for 1s", "the whole plant, twice a second"),
    ],
    stream=True,
)
@click.argument("rules", nargs=-1, type=PATH, metavar="[RULE]...")
@_every_option
def hz(bus: Target, form: str | None, ending: Ending, rules: tuple[str, ...], every_s: float) -> int:
    """Measure the events per second of all that matches a RULE, and the time between them."""
    return _show(bus, form, ending, rules, every_s, hz=True)


@command(
    examples=[
        Example("jet bw plant/tank/level --count 2", "two measurements of one second"),
        Example("jet bw --every 500ms --for 1s", "the whole bus, twice a second"),
    ],
    stream=True,
)
@click.argument("rules", nargs=-1, type=PATH, metavar="[RULE]...")
@_every_option
def bw(bus: Target, form: str | None, ending: Ending, rules: tuple[str, ...], every_s: float) -> int:
    """Measure the bytes per second of all that matches a RULE (paths and values), and the size of events."""
    return _show(bus, form, ending, rules, every_s, hz=False)
