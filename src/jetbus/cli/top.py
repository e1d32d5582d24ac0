"""``jet top``: the biggest talkers, live."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import click

from jetbus.cli.buses import Bus
from jetbus.cli.frame import DURATION, PATH, Example, command
from jetbus.cli.output import Output, default_format
from jetbus.cli.rules import read_rules
from jetbus.cli.streams import Ending, Following, run, size_bytes, staying, until_end
from jetbus.cli.values import on_one_line
from jetbus.peer import Event, PeerAsync

COLUMNS = ("path", "per_s", "bytes_per_s", "value")
ROWS = 20
DAEMON = ("messages_per_s", "bytes_per_s", "connections", "elements", "fetches", "slow_peers")
"""What the screen's headline tells of the daemon."""


class Talkers:
    """What happened to each path since the last look."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._count: dict[str, int] = {}
        self._bytes: dict[str, int] = {}
        self._value: dict[str, Any] = {}
        self.there = 0

    def take(self, event: Event, *, happened: bool = True) -> None:
        if event.kind == "remove":
            self._value.pop(event.path, None)
        else:
            self._value[event.path] = event.value
        if happened:
            self._count[event.path] = self._count.get(event.path, 0) + 1
            self._bytes[event.path] = self._bytes.get(event.path, 0) + size_bytes(event)

    def look(self, rows: int) -> tuple[list[dict[str, Any]], float]:
        """The biggest talkers, and how many events a second there were in all; counting starts anew."""
        passed_s = max(time.monotonic() - self._since, 1e-9)
        biggest = sorted(self._count, key=lambda path: (-self._count[path], path))[:rows]
        records = [
            {
                "path": path,
                "per_s": round(self._count[path] / passed_s, 1),
                "bytes_per_s": round(self._bytes[path] / passed_s),
                "value": self._value.get(path),
            }
            for path in biggest
        ]
        total = sum(self._count.values()) / passed_s
        self._since = time.monotonic()
        self.there = len(self._value)
        self._count.clear()
        self._bytes.clear()
        return records, total


class Screen:
    """The live screen on a terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(), screen=True, auto_refresh=False)

    def __enter__(self) -> Screen:
        self._live.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._live.stop()

    def show(self, headline: str, records: list[dict[str, Any]]) -> None:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, expand=True, pad_edge=False)
        table.add_column("path", no_wrap=True, ratio=3)
        table.add_column("per s", justify="right", no_wrap=True)
        table.add_column("bytes/s", justify="right", no_wrap=True)
        table.add_column("value", no_wrap=True, ratio=2)
        for record in records:
            cells = (record["path"], str(record["per_s"]), str(record["bytes_per_s"]), on_one_line(record["value"]))
            table.add_row(*map(Text, cells))
        self._live.update(Group(Text(headline, style="bold"), Text(""), table), refresh=True)


@command(
    examples=[
        Example("jet top --for 1s", "the live screen; Ctrl-C ends it sooner"),
        Example("jet top 'plant/**' --rows 3 --count 1 --output jsonl", "the three busiest paths of a second"),
    ],
    stream=True,
)
@click.argument("rules", nargs=-1, type=PATH, metavar="[RULE]...")
@click.option(
    "--every", "every_s", type=DURATION, default=1.0, show_default="1s", metavar="DURATION", help="look so often"
)
@click.option(
    "--rows", type=click.IntRange(1, 1000), default=ROWS, show_default=True, metavar="N", help="so many paths"
)
def top(bus: Bus, form: str | None, ending: Ending, rules: tuple[str, ...], every_s: float, rows: int) -> int:
    """Which paths change most: a live screen on a terminal, records in a pipe.

    --count counts looks.
    """
    form = form or default_format(sys.stdout)
    code: int
    if form == "table" and sys.stdout.isatty():
        with Screen() as screen:
            code = run(_top(bus, rules, ending, every_s, rows, screen, None))
        return code
    with Output(COLUMNS, form, stream=True, value="path") as out:
        code = run(_top(bus, rules, ending, every_s, rows, None, out))
    return code


async def _top(
    bus: Bus,
    rules: tuple[str, ...],
    ending: Ending,
    every_s: float,
    rows: int,
    screen: Screen | None,
    out: Output | None,
) -> int:
    async with staying(bus) as peer:
        following = Following(peer, read_rules(rules))
        talkers = Talkers()
        for event in await following.ready():
            talkers.take(event, happened=False)

        async def look() -> None:
            if screen is not None:
                screen.show(f"{peer.url}  measuring ...", [])
            while True:
                await asyncio.sleep(every_s)
                for event in following.take():
                    talkers.take(event)
                records, total = talkers.look(rows)
                if screen is not None:
                    screen.show(await _headline(peer, talkers.there, total), records)
                for record in records if out else ():
                    assert out is not None  # noqa: S101
                    out.put(record)
                if ending.sees():
                    return

        return await until_end(look(), ending)


async def _headline(peer: PeerAsync, there: int, total: float) -> str:
    told = await peer.get("$jet/*") if peer.connected else {}
    figures = [f"{name} {told[f'$jet/{name}']}" for name in DAEMON if f"$jet/{name}" in told]
    return "  ".join([peer.url, f"{there} paths", f"{total:.1f} events/s", *figures])
