"""``jet bench``: load and figures against any daemon.

Owner, clients and fetchers are peers in this one process, so the figures are those of the daemon and of this process
together. What is added is below ``jetbench`` and gone at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import click

from jetbus.cli.buses import Bus
from jetbus.cli.frame import Example, Family, command
from jetbus.cli.output import Output
from jetbus.cli.progress import Step, bar
from jetbus.cli.streams import run
from jetbus.peer import PeerAsync

bench = Family("bench", help="Load and figures against any daemon. It adds states and methods below jetbench.")

COLUMNS = ("case", "count", "seconds", "per_s", "p50_ms", "p99_ms", "max_ms")
COUNT_MAX = 10_000_000
PEERS_MAX = 1000


def _figures(case: str, count: int, began: float, waits_s: list[float]) -> dict[str, Any]:
    seconds = time.perf_counter() - began
    told: dict[str, Any] = {"case": case, "count": count, "seconds": round(seconds, 3), "per_s": round(count / seconds)}
    if waits_s:
        waits_s.sort()
        for name, part in (("p50_ms", 0.5), ("p99_ms", 0.99), ("max_ms", 1.0)):
            told[name] = round(1e3 * waits_s[min(len(waits_s) - 1, int(part * len(waits_s)))], 3)
    return told


@contextlib.asynccontextmanager
async def _peers(bus: Bus, count: int) -> AsyncIterator[list[PeerAsync]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(bus.peer(name="jet bench", reconnect=False)) for _ in range(count)]


def _path(name: str) -> str:
    return f"jetbench/{os.getpid()}/{name}"


async def _requests(
    case: str, count: int, under_way: int, step: Step, ask: Callable[[int], Awaitable[Any]]
) -> dict[str, Any]:
    """Many requests, so many under way at a time."""
    waits_s: list[float] = []
    numbers = iter(range(count))

    async def client() -> None:
        for number in numbers:
            began = time.perf_counter()
            await ask(number)
            waits_s.append(time.perf_counter() - began)
            if not number % 500:
                step(number)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(min(under_way, count)):
            group.create_task(client())
    return _figures(case, count, began, waits_s)


async def _fanout(bus: Bus, count: int, fetchers: int, step: Step) -> dict[str, Any]:
    async with _peers(bus, 1 + fetchers) as (owner, *others):
        path = _path("fanout")
        state = await owner.add_state(path, -1)
        done = asyncio.Event()
        waits_s: list[float] = []
        heard, left = 0, fetchers
        sent: dict[int, float] = {}

        def hear(event: Any) -> None:
            nonlocal heard, left
            heard += event.kind == "change"
            if event.value in sent:
                waits_s.append(time.perf_counter() - sent[event.value])
            if event.kind == "change" and event.value == count - 1:
                left -= 1
                if not left:
                    done.set()

        for other in others:
            await other.fetch(path, hear, policy="every").ready()
        began = time.perf_counter()
        for number in range(count):
            if not number % 100:
                sent[number] = time.perf_counter()
                step(number)
                await asyncio.sleep(0)
            state.change(number)
        await done.wait()
        return _figures("fanout", heard, began, waits_s)


async def _set(bus: Bus, count: int, under_way: int, step: Step) -> dict[str, Any]:
    async with _peers(bus, 2) as (owner, client):
        path = _path("set")
        await owner.add_state(path, 0, on_set=lambda _value: None)
        return await _requests("set", count, under_way, step, lambda number: client.set(path, number))


async def _call(bus: Bus, count: int, under_way: int, step: Step) -> dict[str, Any]:
    async with _peers(bus, 2) as (owner, client):
        path = _path("call")
        await owner.add_method(path, lambda number: number)
        return await _requests("call", count, under_way, step, lambda number: client.call(path, number))


async def _states(bus: Bus, count: int, under_way: int, step: Step) -> dict[str, Any]:
    async with _peers(bus, 1) as (owner,):

        async def add(number: int) -> None:
            await owner.add_state(_path(f"states/{number}"), number)

        return await _requests("states", count, under_way, step, add)


def _measure(title: str, form: str | None, count: int, work: Callable[[Step], Any]) -> None:
    with bar(f"bench {title}", count) as step:
        figures = run(work(step))
    Output(COLUMNS, form, value="per_s").put_all([figures])


def _count(default: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "--count", "-n", type=click.IntRange(1, COUNT_MAX), default=default, show_default=True, metavar="N"
    )


_under_way = click.option(
    "--under-way",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    metavar="N",
    help="requests at a time",
)


@command(
    examples=[
        Example("jet bench fanout --count 1000", "one owner, ten fetchers"),
        Example("jet bench fanout --count 200 --fetchers 50", "more fetchers"),
    ]
)
@_count(10_000)
@click.option("--fetchers", type=click.IntRange(1, PEERS_MAX), default=10, show_default=True, metavar="N")
def fanout(bus: Bus, form: str | None, count: int, fetchers: int) -> None:
    """One state is changed COUNT times, every change told to every fetcher: notifications a second."""
    _measure("fanout", form, count, lambda step: _fanout(bus, count, fetchers, step))


@command(
    name="set",
    examples=[
        Example("jet bench set --count 1000", "sets a second, 100 under way"),
        Example("jet bench set --count 500 --under-way 1", "one after the other"),
    ],
)
@_count(10_000)
@_under_way
def set_states(bus: Bus, form: str | None, count: int, under_way: int) -> None:
    """COUNT sets through the daemon to their owner and back."""
    _measure("set", form, count, lambda step: _set(bus, count, under_way, step))


@command(
    examples=[
        Example("jet bench call --count 1000", "calls a second, 100 under way"),
        Example("jet bench call --count 500 --under-way 1", "one after the other"),
    ]
)
@_count(10_000)
@_under_way
def call(bus: Bus, form: str | None, count: int, under_way: int) -> None:
    """COUNT calls through the daemon to their owner and back."""
    _measure("call", form, count, lambda step: _call(bus, count, under_way, step))


@command(
    examples=[
        Example("jet bench states --count 1000", "states added a second"),
        Example("jet bench states --count 500 --under-way 1", "one after the other"),
    ]
)
@_count(10_000)
@_under_way
def states(bus: Bus, form: str | None, count: int, under_way: int) -> None:
    """COUNT states are added by one owner, and removed at the end."""
    _measure("states", form, count, lambda step: _states(bus, count, under_way, step))


for _one in (fanout, set_states, call, states):
    bench.add_command(_one)
