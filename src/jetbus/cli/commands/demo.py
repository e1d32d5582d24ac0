"""``jet demo``: a bus with a simulated plant, a journal and Spark, on a live screen."""

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

from jetbus.cli.command import DURATION, Example, command
from jetbus.cli.commands.top import Screen
from jetbus.cli.exit_codes import Code, Failure
from jetbus.cli.output import Output, format_cell, print_line, truncate
from jetbus.cli.progress import show_bar
from jetbus.cli.streams import Ending, run, run_first, run_until_end, wait_for_q
from jetbus.cli.target import Contexts

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from jetbus.demo.demo import Demo, Summary

LOOK_S = 0.5
SUMMARY = ("url", "seconds", "states", "recorded", "batches", "rollups", "alarms")
ROOM_FOR_TIPS = 16
"""Minimum number of lines for a screen that also shows tips."""


class ScreenColumn(NamedTuple):
    """Column of the screen; a width of 0 takes the remaining space."""

    title: str
    width: int
    justify: Literal["left", "right"]


COLUMNS = (
    ScreenColumn("state", 31, "left"),
    ScreenColumn("now", 7, "right"),
    ScreenColumn("Spark, 1s", 9, "right"),
    ScreenColumn("alarm", 7, "left"),
    ScreenColumn("over time", 0, "left"),
)


@command(
    examples=[
        Example("jet demo --headless --for 2s --no-spark", "print lines instead of a screen"),
        Example("jet demo --for 2s --no-spark", "only daemon, journal and plant"),
    ],
    bus=False,
)
@click.option("--headless", is_flag=True, help="print lines instead of a screen; the default in a pipe")
@click.option("--for", "for_s", type=DURATION, metavar="DURATION", help="stop after this time, such as 60s")
@click.option("--no-spark", is_flag=True, help="run without Spark")
def demo(form: str | None, headless: bool, for_s: float | None, no_spark: bool) -> int:
    """Run a demo bus: a daemon with a journal, a simulated plant, and Spark with rollups and alarms.

    The bus is ready within a second; Spark joins later, or not at all if Java or pyspark is missing. The screen lists
    commands to try in another terminal. q or Ctrl-C ends the demo and removes everything. With --output only the
    summary is printed, as a record.
    """
    with_screen = not headless and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    show = _show_nothing if form is not None else _draw_screen if with_screen else _print_news
    code: int = run(_run_demo(show, Ending(for_s=for_s), form, spark=not no_spark))
    return code


ShowDemo = Callable[["Demo"], Any]


async def _run_demo(show: ShowDemo, ending: Ending, form: str | None, *, spark: bool) -> int:
    from jetbus.demo.jetd import NoDaemon

    stopped = asyncio.Event()
    # Processes and folder have to go whichever way the demo ends, also when its terminal is closed.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # keep running under nohup
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    try:
        async with _start_demo(stopped, spark=spark) as running:
            if running is None:
                return Code.OK
            await run_until_end(run_first(stopped.wait(), running.wait(), show(running)), ending)
            # The figures come from the bus, so they are read before it ends.
            did = await running.summarise()
    except NoDaemon as problem:
        raise Failure(str(problem), Code.NO_CONNECTION) from None
    with contextlib.suppress(OSError):  # the terminal may be closed already
        _print_summary(running, did, form)
    return Code.OK


def _print_summary(demo: Demo, did: Summary, form: str | None) -> None:
    """Print the summary as a sentence or as a record."""
    from jetbus.demo.messages import describe_summary

    if form is None:
        print_line(describe_summary(demo, did))
    else:
        Output(SUMMARY, form, value="recorded").put_all([{"url": demo.jetd.url, **asdict(did)}])


@contextlib.asynccontextmanager
async def _start_demo(stopped: asyncio.Event, *, spark: bool) -> AsyncIterator[Demo | None]:
    """Start a demo; yield None if it is stopped before it has started."""
    from jetbus.demo.demo import run_demo

    manager = run_demo(spark=spark)
    # By hand and not with ``async with``, so that a signal can cancel a start that takes long.
    entering, stopping = asyncio.ensure_future(manager.__aenter__()), asyncio.ensure_future(stopped.wait())
    with show_bar("starting a daemon and a plant"):
        await asyncio.wait((entering, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not entering.done():
        entering.cancel()
        # A cancelled start removes everything that it has made so far.
        await asyncio.wait((entering,))
        yield None
        return
    running = entering.result()
    try:
        yield running
    finally:
        await manager.__aexit__(None, None, None)


def _is_default(demo: Demo) -> bool:
    """Return True if jet finds this bus without --url."""
    elsewhere = os.environ.get("JET_URL") or os.environ.get("JET_CONTEXT") or Contexts.load().current
    return demo.jetd.is_usual and not elsewhere


# -- lines


async def _show_nothing(_demo: Demo) -> None:
    """Print nothing until cancelled."""
    await asyncio.Event().wait()


async def _print_news(demo: Demo) -> None:
    """Print tips, alarms and the state of Spark as they change."""
    from jetbus.demo.messages import describe_bus, describe_radar, describe_spark, describe_terminal, list_tips

    for line in describe_radar(demo):
        print_line(line)
    print_line(f"{describe_bus(demo)}; Ctrl-C ends it. In {describe_terminal()}:")
    is_default, tried, phase = _is_default(demo), set[str](), None
    while True:
        for line, purpose in list_tips(demo, is_default=is_default):
            # A tip appears as soon as its part of the demo is ready.
            if line not in tried:
                print_line(f"  {line}   # {purpose}")
                tried.add(line)
        if demo.analysis.phase is not phase:
            phase = demo.analysis.phase
            print_line(describe_spark(demo))
        while demo.model.news:
            print_line(demo.model.news.popleft())
        await asyncio.sleep(LOOK_S)


# -- the screen


class DemoScreen(Screen):
    """Screen with the plant, the results of Spark, and tips."""

    def __init__(self, demo: Demo) -> None:
        super().__init__()
        self._demo = demo
        self._is_default = _is_default(demo)

    def draw(self) -> None:
        """Draw the current state."""
        from rich.console import Group
        from rich.text import Text

        width, height = self._live.console.size
        self._demo.model.sample()
        head, foot = self._head(width), self._foot(width, height)
        # The three lines are two blank ones and the names of the columns.
        rows = max(0, height - len(head) - len(foot) - 3)
        self._live.update(Group(*head, Text(""), self._table(rows, width), Text(""), *foot), refresh=True)

    def _head(self, width: int) -> list[Text]:
        from rich.text import Text

        from jetbus.demo.messages import describe_bus, describe_radar, describe_spark

        bus = f"{describe_bus(self._demo)}, {self._demo.model.per_s:.0f} events/s"
        lines = [*describe_radar(self._demo), *textwrap.wrap(describe_spark(self._demo), width)]
        return [Text(truncate(bus, width), style="bold"), *map(Text, lines)]

    def _foot(self, width: int, height: int) -> list[Text]:
        from rich.text import Text

        from jetbus.demo.messages import describe_terminal, fold_command, list_tips

        if height < ROOM_FOR_TIPS:
            return [Text(truncate("q ends the demo; a larger window shows what to try.", width), style="bold")]
        shown = [Text(truncate(f"Try in {describe_terminal()}; q ends the demo:", width), style="bold")]
        for command_line, purpose in list_tips(self._demo, is_default=self._is_default):
            lines = fold_command(command_line, width - 2)
            shown += [Text(f"  {line}", no_wrap=True, overflow="ellipsis") for line in lines]
            # 7 is the length of the indent and of the text before the purpose.
            if len(lines[-1]) + len(purpose) + 7 <= width:
                shown[-1].append(f"   # {purpose}", style="dim")
        return shown

    def _table(self, rows: int, width: int) -> Table:
        from rich.table import Table
        from rich.text import Text

        from jetbus.demo.messages import SHOWN_PATHS, draw_course

        model, alarms = self._demo.model, self._demo.model.list_alarms()
        room = max(0, width - sum(column.width for column in COLUMNS) - len(COLUMNS))
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=rows > 0)
        for title, column_width, justify in COLUMNS:
            table.add_column(title, width=column_width or room, no_wrap=True, justify=justify)
        for path in SHOWN_PATHS[:rows]:
            mean, raised = model.get_mean(path), ",".join(alarms.get(path, []))
            table.add_row(
                Text(path, style="bold red" if raised else ""),
                Text(format_cell(model.values.get(path)), style="cyan"),
                Text("" if mean is None else f"{mean:.2f}"),
                Text(raised, style="bold red"),
                Text(draw_course(model.get_samples(path), room), style="green"),
            )
        return table


async def _draw_screen(demo: Demo) -> None:
    """Redraw the screen until q is pressed or the terminal is closed."""
    screen = DemoScreen(demo)

    async def draw() -> None:
        while True:
            screen.draw()
            await asyncio.sleep(LOOK_S)

    with contextlib.suppress(OSError), screen:
        await run_first(draw(), wait_for_q())
