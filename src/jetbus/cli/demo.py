"""``jet demo``: a bus with a simulated plant, a journal and Spark, and a live screen of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click

from jetbus.cli.buses import Contexts
from jetbus.cli.failures import Code, Failure
from jetbus.cli.frame import DURATION, Example, command
from jetbus.cli.output import Output, cut, say
from jetbus.cli.progress import bar
from jetbus.cli.streams import Ending, first_of, run, until_end
from jetbus.cli.top import Screen
from jetbus.cli.values import on_one_line

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from jetbus.demo.demo import Demo, Summary

LOOK_S = 0.5
SUMMARY = ("url", "seconds", "states", "recorded", "batches", "rollups", "alarms")
ROOM_FOR_TIPS = 16
"""A screen with fewer lines shows the plant only."""


class Column(NamedTuple):
    """One of the screen; the one of no width takes what is left."""

    title: str
    width: int
    justify: Literal["left", "right"]


COLUMNS = (
    Column("state", 31, "left"),
    Column("now", 7, "right"),
    Column("Spark, 1s", 9, "right"),
    Column("alarm", 7, "left"),
    Column("over time", 0, "left"),
)


@command(
    examples=[
        Example("jet demo --headless --for 2s --no-spark", "without a screen, and with a summary at the end"),
        Example("jet demo --for 2s --no-spark", "only daemon, journal and plant"),
    ],
    bus=False,
)
@click.option("--headless", is_flag=True, help="print lines instead of a screen; so it does in a pipe")
@click.option("--for", "for_s", type=DURATION, metavar="DURATION", help="end after this time, such as 60s")
@click.option("--no-spark", is_flag=True, help="leave out Spark")
def demo(form: str | None, headless: bool, for_s: float | None, no_spark: bool) -> int:
    """A bus to look at: a daemon with a journal, a simulated plant, and Spark that publishes rollups and alarms.

    It is there in a second; Spark joins when it is ready, or is left out where Java or pyspark is missing. What can be
    tried in another terminal is told. Ctrl-C ends it, and nothing is left behind. With --output only the summary is
    printed, as a record.
    """
    with_screen = not headless and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    show = _nothing if form is not None else _screen if with_screen else _lines
    code: int = run(_demo(show, Ending(for_s=for_s), form, spark=not no_spark))
    return code


Show = Callable[["Demo"], Any]


async def _demo(show: Show, ending: Ending, form: str | None, *, spark: bool) -> int:
    from jetbus.demo.jetd import NoDaemon

    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup has its way
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    try:
        async with _started(stopped, spark=spark) as running:
            if running is None:
                return Code.OK
            await until_end(first_of(stopped.wait(), running.ended(), show(running)), ending)
            did = await running.summary()
    except NoDaemon as problem:
        raise Failure(str(problem), Code.NO_CONNECTION) from None
    with contextlib.suppress(OSError):  # the terminal may be closed
        _tell(running, did, form)
    return Code.OK


def _tell(demo: Demo, did: Summary, form: str | None) -> None:
    """What was done: in a sentence, or as a record."""
    from jetbus.demo.telling import summary_line

    if form is None:
        say(summary_line(demo, did))
    else:
        Output(SUMMARY, form, value="recorded").put_all([{"url": demo.jetd.url, **asdict(did)}])


@contextlib.asynccontextmanager
async def _started(stopped: asyncio.Event, *, spark: bool) -> AsyncIterator[Demo | None]:
    """A demo; none if it is stopped before it has begun."""
    from jetbus.demo.demo import running_demo

    manager = running_demo(spark=spark)
    entering, stopping = asyncio.ensure_future(manager.__aenter__()), asyncio.ensure_future(stopped.wait())
    with bar("starting a daemon and a plant"):
        await asyncio.wait((entering, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not entering.done():
        entering.cancel()
        await asyncio.wait((entering,))
        yield None
        return
    running = entering.result()
    try:
        yield running
    finally:
        await manager.__aexit__(None, None, None)


def _is_default(demo: Demo) -> bool:
    """Whether jet finds this bus without being told where it is."""
    elsewhere = os.environ.get("JET_URL") or os.environ.get("JET_CONTEXT") or Contexts.load().current
    return demo.jetd.is_usual and not elsewhere


# -- lines


async def _nothing(_demo: Demo) -> None:
    """Show nothing, for as long as it takes."""
    await asyncio.Event().wait()


async def _lines(demo: Demo) -> None:
    """Say what happens, as it happens."""
    from jetbus.demo.telling import another_terminal, bus_line, spark_line, tips

    say(f"{bus_line(demo)}; Ctrl-C ends it. In {another_terminal()}:")
    is_default, tried, phase = _is_default(demo), set[str](), None
    while True:
        for line, purpose in tips(demo, is_default=is_default):
            if line not in tried:
                say(f"  {line}   # {purpose}")
                tried.add(line)
        if demo.analysis.phase is not phase:
            phase = demo.analysis.phase
            say(spark_line(demo))
        while demo.seen.news:
            say(demo.seen.news.popleft())
        await asyncio.sleep(LOOK_S)


# -- the screen


class DemoScreen(Screen):
    """The plant, what Spark makes of it, and what to try."""

    def __init__(self, demo: Demo) -> None:
        super().__init__()
        self._demo = demo
        self._is_default = _is_default(demo)

    def draw(self) -> None:
        """Show how things are now."""
        from rich.console import Group
        from rich.text import Text

        width, height = self._live.console.size
        self._demo.seen.sample()
        head, foot = self._head(width), self._foot(width, height)
        rows = max(0, height - len(head) - len(foot) - 3)
        self._live.update(Group(*head, Text(""), self._table(rows, width), Text(""), *foot), refresh=True)

    def _head(self, width: int) -> list[Text]:
        from rich.text import Text

        from jetbus.demo.telling import bus_line, spark_line

        bus = f"{bus_line(self._demo)}, {self._demo.seen.per_s:.0f} events/s"
        return [Text(cut(bus, width), style="bold"), *map(Text, textwrap.wrap(spark_line(self._demo), width))]

    def _foot(self, width: int, height: int) -> list[Text]:
        from rich.text import Text

        from jetbus.demo.telling import another_terminal, folded, tips

        if height < ROOM_FOR_TIPS:
            return [Text(cut("Ctrl-C ends it; a larger window shows what to try.", width), style="bold")]
        shown = [Text(cut(f"Try in {another_terminal()}; Ctrl-C ends all of it:", width), style="bold")]
        for command_line, purpose in tips(self._demo, is_default=self._is_default):
            lines = folded(command_line, width - 2)
            shown += [Text(f"  {line}", no_wrap=True, overflow="ellipsis") for line in lines]
            if len(lines[-1]) + len(purpose) + 7 <= width:
                shown[-1].append(f"   # {purpose}", style="dim")
        return shown

    def _table(self, rows: int, width: int) -> Table:
        from rich.table import Table
        from rich.text import Text

        from jetbus.demo.telling import SHOWN, bars

        seen, alarms = self._demo.seen, self._demo.seen.alarms()
        room = max(0, width - sum(column.width for column in COLUMNS) - len(COLUMNS))
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=rows > 0)
        for title, column_width, justify in COLUMNS:
            table.add_column(title, width=column_width or room, no_wrap=True, justify=justify)
        for path in SHOWN[:rows]:
            mean, raised = seen.mean(path), ",".join(alarms.get(path, []))
            table.add_row(
                Text(path, style="bold red" if raised else ""),
                Text(on_one_line(seen.values.get(path)), style="cyan"),
                Text("" if mean is None else f"{mean:.2f}"),
                Text(raised, style="bold red"),
                Text(bars(seen.course(path), room), style="green"),
            )
        return table


async def _screen(demo: Demo) -> None:
    """Draw the screen over and over, until the terminal is gone."""
    screen = DemoScreen(demo)
    with contextlib.suppress(OSError), screen:
        while True:
            screen.draw()
            await asyncio.sleep(LOOK_S)
