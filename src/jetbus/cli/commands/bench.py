"""``jet bench``: benchmarks of any daemon.

Owner, clients and fetchers are peers in this one process, so the figures measure the daemon and this process together.
All states and methods are added below ``jetbench`` and removed at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import click

from jetbus.cli.command import Example, Family, command
from jetbus.cli.output import Output
from jetbus.cli.progress import Step, show_bar
from jetbus.cli.streams import run
from jetbus.cli.target import Target
from jetbus.json_types import JsonObject
from jetbus.peer import PeerAsync

bench = Family("bench", help="Measure the throughput and latency of a daemon, with states and methods below jetbench.")

COLUMNS = ("case", "count", "seconds", "per_s", "p50_ms", "p99_ms", "max_ms")
COUNT_MAX = 10_000_000
PEERS_MAX = 1000


def _summarise(case: str, count: int, began: float, waits_s: list[float]) -> JsonObject:
    seconds = time.perf_counter() - began
    figures: JsonObject = {
        "case": case,
        "count": count,
        "seconds": round(seconds, 3),
        "per_s": round(count / seconds),
    }
    if waits_s:
        waits_s.sort()
        for name, part in (("p50_ms", 0.5), ("p99_ms", 0.99), ("max_ms", 1.0)):
            figures[name] = round(1e3 * waits_s[min(len(waits_s) - 1, int(part * len(waits_s)))], 3)
    return figures


@contextlib.asynccontextmanager
async def _connect_peers(bus: Target, count: int) -> AsyncIterator[list[PeerAsync]]:
    async with contextlib.AsyncExitStack() as stack:
        # A lost connection has to fail the measurement; a reconnect would spoil its figures.
        yield [await stack.enter_async_context(bus.make_peer(name="jet bench", reconnect=False)) for _ in range(count)]


def _make_path(name: str) -> str:
    # Two benchmarks may run on one bus.
    return f"jetbench/{os.getpid()}/{name}"


async def _run_requests(
    case: str, count: int, under_way: int, step: Step, ask: Callable[[int], Awaitable[Any]]
) -> JsonObject:
    """Send ``count`` requests, ``under_way`` of them at a time."""
    waits_s: list[float] = []
    # Shared by all clients: whoever is free takes the next number, so none waits for a slow one.
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
    return _summarise(case, count, began, waits_s)


async def _run_fanout(bus: Target, count: int, fetchers: int, step: Step) -> JsonObject:
    async with _connect_peers(bus, 1 + fetchers) as (owner, *others):
        path = _make_path("fanout")
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

        # With the default policy a slow fetcher would get only the newest values, and the count would be short.
        for other in others:
            await other.fetch(path, hear, policy="every").ready()
        began = time.perf_counter()
        for number in range(count):
            # A sample is enough for the latency, and the loop needs its turn to send the changes of the owner.
            if not number % 100:
                sent[number] = time.perf_counter()
                step(number)
                await asyncio.sleep(0)
            state.change(number)
        await done.wait()
        return _summarise("fanout", heard, began, waits_s)


async def _run_sets(bus: Target, count: int, under_way: int, step: Step) -> JsonObject:
    async with _connect_peers(bus, 2) as (owner, client):
        path = _make_path("set")
        await owner.add_state(path, 0, on_set=lambda _value: None)
        return await _run_requests("set", count, under_way, step, lambda number: client.set(path, number))


async def _run_calls(bus: Target, count: int, under_way: int, step: Step) -> JsonObject:
    async with _connect_peers(bus, 2) as (owner, client):
        path = _make_path("call")
        await owner.add_method(path, lambda number: number)
        return await _run_requests("call", count, under_way, step, lambda number: client.call(path, number))


async def _run_adds(bus: Target, count: int, under_way: int, step: Step) -> JsonObject:
    async with _connect_peers(bus, 1) as (owner,):

        async def add(number: int) -> None:
            await owner.add_state(_make_path(f"states/{number}"), number)

        return await _run_requests("states", count, under_way, step, add)


def _measure(title: str, form: str | None, count: int, work: Callable[[Step], Any]) -> None:
    with show_bar(f"bench {title}", count) as step:
        figures = run(work(step))
    Output(COLUMNS, form, value="per_s").put_all([figures])


def _count_option(default: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "--count", "-n", type=click.IntRange(1, COUNT_MAX), default=default, show_default=True, metavar="N"
    )


_under_way_option = click.option(
    "--under-way",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    metavar="N",
    help="requests sent at a time",
)


@command(
    examples=[
        Example("jet bench fanout --count 1000", "one owner, ten fetchers"),
        Example("jet bench fanout --count 200 --fetchers 50", "more fetchers"),
    ]
)
@_count_option(10_000)
@click.option("--fetchers", type=click.IntRange(1, PEERS_MAX), default=10, show_default=True, metavar="N")
def fanout(bus: Target, form: str | None, count: int, fetchers: int) -> None:
    """Change one state COUNT times, and measure the notifications per second to all fetchers."""
    _measure("fanout", form, count, lambda step: _run_fanout(bus, count, fetchers, step))


@command(
    name="set",
    examples=[
        Example("jet bench set --count 1000", "sets per second, 100 at a time"),
        Example("jet bench set --count 500 --under-way 1", "one after the other"),
    ],
)
@_count_option(10_000)
@_under_way_option
def set_states(bus: Target, form: str | None, count: int, under_way: int) -> None:
    """Measure COUNT sets through the daemon to their owner and back."""
    _measure("set", form, count, lambda step: _run_sets(bus, count, under_way, step))


@command(
    examples=[
        Example("jet bench call --count 1000", "calls per second, 100 at a time"),
        Example("jet bench call --count 500 --under-way 1", "one after the other"),
    ]
)
@_count_option(10_000)
@_under_way_option
def call(bus: Target, form: str | None, count: int, under_way: int) -> None:
    """Measure COUNT calls through the daemon to their owner and back."""
    _measure("call", form, count, lambda step: _run_calls(bus, count, under_way, step))


@command(
    examples=[
        Example("jet bench states --count 1000", "states added per second"),
        Example("jet bench states --count 500 --under-way 1", "one after the other"),
    ]
)
@_count_option(10_000)
@_under_way_option
def states(bus: Target, form: str | None, count: int, under_way: int) -> None:
    """Measure how fast one owner adds COUNT states; they are removed at the end."""
    _measure("states", form, count, lambda step: _run_adds(bus, count, under_way, step))


for _one in (fanout, set_states, call, states):
    bench.add_command(_one)
