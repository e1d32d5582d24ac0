"""``jet hz`` and ``jet bw``: how often states change, and how many bytes that is."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any

import click

from jetbus.cli.buses import Bus
from jetbus.cli.frame import DURATION, PATH, Example, command
from jetbus.cli.output import Output
from jetbus.cli.rules import read_rules
from jetbus.cli.streams import Ending, Following, now, run, size_bytes, staying, until_end
from jetbus.peer import Event

Measure = Callable[["Window"], dict[str, Any]]


class Window:
    """The changes of one interval: how many, how big, and the time between them."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._last: float | None = None
        self.count = 0
        self.gaps: list[float] = []
        self.sizes: list[int] = []
        self.length_s = 0.0

    def take(self, event: Event) -> None:
        at = time.monotonic()
        if self._last is not None:
            self.gaps.append(at - self._last)
        self._last = at
        self.count += 1
        self.sizes.append(size_bytes(event))

    def end(self) -> None:
        self.length_s = max(time.monotonic() - self._began, 1e-9)


def _hz(window: Window) -> dict[str, Any]:
    gaps_ms = [1e3 * gap for gap in window.gaps] or [0.0]
    mean = sum(gaps_ms) / len(gaps_ms)
    spread = math.sqrt(sum((gap - mean) ** 2 for gap in gaps_ms) / len(gaps_ms))
    told = {"mean_ms": mean, "min_ms": min(gaps_ms), "max_ms": max(gaps_ms), "spread_ms": spread}
    return {"per_s": round(window.count / window.length_s, 1)} | {name: round(ms, 3) for name, ms in told.items()}


def _bw(window: Window) -> dict[str, Any]:
    sizes = window.sizes or [0]
    return {
        "bytes_per_s": round(sum(window.sizes) / window.length_s),
        "mean_bytes": round(sum(sizes) / len(sizes)),
        "max_bytes": max(sizes),
    }


HZ = ("at", "events", "per_s", "mean_ms", "min_ms", "max_ms", "spread_ms")
BW = ("at", "events", "bytes_per_s", "mean_bytes", "max_bytes")


async def _measure(bus: Bus, rules: tuple[str, ...], out: Output, ending: Ending, every_s: float, of: Measure) -> int:
    async with staying(bus) as peer:
        following = Following(peer, read_rules(rules), every=True)
        await following.ready()

        async def measure() -> None:
            while True:
                window = Window()
                try:
                    async with asyncio.timeout(every_s):
                        while True:
                            window.take(await following.next())
                except TimeoutError:
                    window.end()
                out.put({"at": now(), "events": window.count, **of(window)})
                if ending.sees():
                    return

        return await until_end(measure(), ending)


def _show(bus: Bus, form: str | None, ending: Ending, rules: tuple[str, ...], every_s: float, hz: bool) -> int:
    with Output(HZ if hz else BW, form, stream=True, heads=True, value="per_s" if hz else "bytes_per_s") as out:
        code: int = run(_measure(bus, rules, out, ending, every_s, _hz if hz else _bw))
    return code


_every = click.option(
    "--every", "every_s", type=DURATION, default=1.0, show_default="1s", metavar="DURATION", help="one line each"
)


@command(
    examples=[
        Example("jet hz plant/tank/level --count 2", "how often it changes, measured twice for a second"),
        Example("jet hz 'plant/**' --every 500ms --for 1s", "all of the plant, twice a second"),
    ],
    stream=True,
)
@click.argument("rules", nargs=-1, type=PATH, metavar="[RULE]...")
@_every
def hz(bus: Bus, form: str | None, ending: Ending, rules: tuple[str, ...], every_s: float) -> int:
    """How often something happens to what matches a RULE: events a second and the time between them."""
    return _show(bus, form, ending, rules, every_s, hz=True)


@command(
    examples=[
        Example("jet bw plant/tank/level --count 2", "the bytes of its changes"),
        Example("jet bw --every 500ms --for 1s", "of the whole bus, twice a second"),
    ],
    stream=True,
)
@click.argument("rules", nargs=-1, type=PATH, metavar="[RULE]...")
@_every
def bw(bus: Bus, form: str | None, ending: Ending, rules: tuple[str, ...], every_s: float) -> int:
    """How many bytes of paths and values what matches a RULE takes: a second, on average and at most."""
    return _show(bus, form, ending, rules, every_s, hz=False)
