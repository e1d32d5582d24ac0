"""``jet top``: the paths with the most changes, live."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import click

from jetbus.cli.arguments import read_rules
from jetbus.cli.command import DURATION, PATH, Example, command
from jetbus.cli.output import Output, choose_format, format_cell
from jetbus.cli.streams import Ending, Follower, measure_bytes, open_peer, run, run_first, run_until_end, wait_for_q
from jetbus.cli.target import Target
from jetbus.json_types import JsonObject
from jetbus.peer import Event, PeerAsync

COLUMNS = ("path", "per_s", "bytes_per_s", "value")
ROWS = 20
DAEMON = ("messages_per_s", "bytes_per_s", "connections", "elements", "fetches", "slow_peers")
"""Metrics of the daemon in the headline of the screen."""


class ChangeCounter:
    """Events and bytes of each path since the last report."""

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
            self._bytes[event.path] = self._bytes.get(event.path, 0) + measure_bytes(event)

    def look(self, rows: int) -> tuple[list[JsonObject], float]:
        """Return the busiest paths and the total events per second, and reset the counters."""
        passed_s = max(time.monotonic() - self._since, 1e-9)
        # By path where the counts are equal, so that rows do not swap their places.
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
    """Live screen on a terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        # Without a thread of its own that redraws: every report draws once.
        self._live = Live(console=Console(), screen=True, auto_refresh=False)
        self.last: list[JsonObject] = []
        """The records of the last report."""

    def __enter__(self) -> Screen:
        self._live.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._live.stop()

    def show(self, headline: str, records: list[JsonObject]) -> None:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, expand=True, pad_edge=False)
        table.add_column("path", no_wrap=True, ratio=3)
        table.add_column("per s", justify="right", no_wrap=True)
        table.add_column("bytes/s", justify="right", no_wrap=True)
        table.add_column("value", no_wrap=True, ratio=2)
        for record in records:
            cells = (record["path"], str(record["per_s"]), str(record["bytes_per_s"]), format_cell(record["value"]))
            # rich would take brackets in plain strings as markup.
            table.add_row(*map(Text, cells))
        self.last = records
        self._live.update(Group(Text(headline, style="bold"), Text(""), table), refresh=True)


@command(
    examples=[
        Example("jet top --for 1s", "the live screen, for one second"),
        Example("jet top 'plant/**' --rows 3 --count 1 --output jsonl", "the three busiest paths of one second"),
    ],
    stream=True,
)
@click.argument("rules", nargs=-1, type=PATH, metavar="[RULE]...")
@click.option(
    "--every",
    "every_s",
    type=DURATION,
    default=1.0,
    show_default="1s",
    metavar="DURATION",
    help="interval between reports",
)
@click.option(
    "--rows", type=click.IntRange(1, 1000), default=ROWS, show_default=True, metavar="N", help="number of paths"
)
def top(bus: Target, form: str | None, ending: Ending, rules: tuple[str, ...], every_s: float, rows: int) -> int:
    """Show the paths that change most often: a live screen on a terminal, records in a pipe.

    --count counts reports. q or Ctrl-C leaves the screen.
    """
    form = form or choose_format(sys.stdout)
    code: int
    if form == "table" and sys.stdout.isatty():
        with Screen() as screen:
            code = run(_top(bus, rules, ending, every_s, rows, screen, None))
        # The screen is gone now, and with it all that it has shown.
        with Output(COLUMNS, form, value="path") as out:
            for record in screen.last:
                out.put(record)
        return code
    with Output(COLUMNS, form, stream=True, value="path") as out:
        code = run(_top(bus, rules, ending, every_s, rows, None, out))
    return code


async def _top(
    bus: Target,
    rules: tuple[str, ...],
    ending: Ending,
    every_s: float,
    rows: int,
    screen: Screen | None,
    out: Output | None,
) -> int:
    async with open_peer(bus) as peer:
        following = Follower(peer, read_rules(rules))
        talkers = ChangeCounter()

        has_reported = False

        async def report() -> None:
            nonlocal has_reported
            has_reported = True
            for event in following.take():
                talkers.take(event)
            records, total = talkers.look(rows)
            if screen is not None:
                screen.show(await _make_headline(peer, talkers.there, total), records)
            for record in records if out else ():
                assert out is not None  # noqa: S101
                out.put(record)

        async def look() -> None:
            for event in await following.ready():
                # Present values, which are shown but did not change.
                talkers.take(event, happened=False)
            if screen is not None:
                screen.show(f"{peer.url}  measuring ...", [])
            while True:
                await asyncio.sleep(every_s)
                await report()
                if ending.record_event():
                    return

        async def look_once_at_least() -> None:
            try:
                await look()
            finally:
                # --for may be over before the first interval is.
                if not has_reported:
                    await report()

        if screen is None:
            return await run_until_end(look_once_at_least(), ending)
        has_quit = False

        async def look_until_q() -> None:
            nonlocal has_quit
            has_quit = await run_first(look_once_at_least(), wait_for_q()) == 1

        # Leaving with q is a success, even if --count is not reached; otherwise the conditions are checked below.
        code = await run_until_end(look_until_q(), Ending(for_s=ending.for_s))
        return code if has_quit else ending.get_exit_code()


async def _make_headline(peer: PeerAsync, there: int, total: float) -> str:
    # The screen stays while the connection is lost, without the figures of the daemon.
    metrics = await peer.get_all("$jet/*") if peer.connected else {}
    figures = [f"{name} {metrics[f'$jet/{name}']}" for name in DAEMON if f"$jet/{name}" in metrics]
    return "  ".join([peer.url, f"{there} paths", f"{total:.1f} events/s", *figures])
