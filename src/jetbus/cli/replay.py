"""``jet replay``: a journal to a bus."""

from __future__ import annotations

import asyncio
import math
import sys
from typing import TYPE_CHECKING, Any

import click

from jetbus.cli.buses import Bus
from jetbus.cli.failures import complain, usage
from jetbus.cli.frame import DURATION, Example, command
from jetbus.cli.output import Output
from jetbus.cli.past import INSTANT, explained
from jetbus.cli.progress import bar
from jetbus.cli.rules import read_one
from jetbus.cli.streams import Ending, run, until_end, until_terminated

if TYPE_CHECKING:
    from jetbus.player import Player, Progress

LOOK_S = 0.2
COLUMNS = ("at", "events", "rounds", "elements", "refused")


class Speed(click.ParamType[float]):
    """10, 0.5 or max."""

    name = "speed"

    def convert(self, value: Any, _param: click.Parameter | None, _ctx: click.Context | None) -> float:
        try:
            speed = math.inf if value == "max" else float(str(value).removesuffix("x"))
        except ValueError:
            speed = math.nan
        if not speed > 0:
            raise usage(f"{value!r} is no speed; 1 is as it was, 10 ten times as fast, max as fast as possible")
        return speed


@command(
    examples=[
        Example("jet replay log --speed 100 --prefix replay", "a recording a hundred times as fast, below replay/"),
        Example("jet replay log 'plant/tank/*' --from -1h --loop --prefix again --for 1s", "a part, over and over"),
    ],
    instants=True,
)
@click.argument("folder", metavar="DIR")
@click.argument("rule", required=False)
@click.option("--speed", type=Speed(), default=1.0, metavar="N", help="how many times as fast as it was, or max")
@click.option("--loop", is_flag=True, help="begin anew at the end")
@click.option("--from", "since", type=INSTANT, metavar="INSTANT", help="begin there, such as -2h")
@click.option("--until", type=INSTANT, metavar="INSTANT", help="end there")
@click.option("--prefix", default="", metavar="P", help="put everything below P/")
@click.option("--stay", is_flag=True, help="at the end leave everything as it is, until Ctrl-C")
@click.option("--for", "for_s", type=DURATION, metavar="DURATION", help="end after this time, such as 10s")
def replay(
    bus: Bus,
    form: str | None,
    folder: str,
    rule: str | None,
    speed: float,
    prefix: str,
    stay: bool,
    for_s: float | None,
    **given: Any,
) -> None:
    """Let what the journal in DIR recorded happen again on the bus, with the same pauses.

    It begins with the tree of the start. The states are read-only, and methods answer as they did. What is on the bus
    of it leaves at the end.
    """
    if rule is not None:
        read_one(rule)
    with explained():
        from jetbus.player import Player

        options: dict[str, Any] = {
            **given,
            "rule": rule,
            "speed": speed,
            "prefix": prefix.rstrip("/") + "/" if prefix else "",
        }
        ending = Ending(for_s=for_s)
        done = run(_replay(lambda: Player(folder, bus.url, name="jet replay", **options, **bus.login()), ending, stay))
    told = {name: value for name, value in done._asdict().items() if name in COLUMNS}
    Output(COLUMNS, form, value="events").put_all([{"at": _instant(done.position_us), **told}])


async def _replay(player_of: Any, ending: Ending, stay: bool) -> Progress:
    player: Player = player_of()
    began = player.progress
    with bar("replay", began.until_us - began.start_us) as step:
        async with player:
            watching = asyncio.create_task(_watch(player, step))
            try:
                await until_end(until_terminated(_played(player, stay)), ending)
            finally:
                watching.cancel()
            return player.progress


async def _played(player: Player, stay: bool) -> None:
    await player.wait()
    if stay:
        if sys.stderr.isatty():
            complain("all is played and stays; Ctrl-C ends")
        await asyncio.Event().wait()


async def _watch(player: Player, step: Any) -> None:
    while True:
        done = player.progress
        step(done.position_us - done.start_us)
        await asyncio.sleep(LOOK_S)


def _instant(instant_us: int) -> str:
    from jetbus.journal.instants import write_instant

    return write_instant(instant_us)
