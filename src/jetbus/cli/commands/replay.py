"""``jet replay``: play a journal back on a bus."""

from __future__ import annotations

import asyncio
import math
import sys
from typing import TYPE_CHECKING, Any

import click

from jetbus.cli.arguments import read_rule
from jetbus.cli.command import DURATION, Example, command
from jetbus.cli.exit_codes import Code, Failure, print_message, usage_error
from jetbus.cli.journals import INSTANT, explain_errors
from jetbus.cli.output import Output
from jetbus.cli.progress import show_bar
from jetbus.cli.streams import Ending, run, run_until_end, run_until_sigterm
from jetbus.cli.target import Target

if TYPE_CHECKING:
    from jetbus.player import Player, Progress

LOOK_S = 0.2
COLUMNS = ("ts", "events", "rounds", "elements", "refused")


class Speed(click.ParamType[float]):
    """Parameter type for a speed: 10, 0.5 or max."""

    name = "speed"

    def convert(self, value: object, _param: click.Parameter | None, _ctx: click.Context | None) -> float:
        try:
            speed = math.inf if value == "max" else float(str(value).removesuffix("x"))
        except ValueError:
            speed = math.nan
        # Written this way round, it refuses NaN as well.
        if not speed > 0:
            raise usage_error(
                f"{value!r} is not a speed; 1 is the original speed, 10 ten times as fast, max as fast as possible"
            )
        return speed


@command(
    examples=[
        Example("jet replay log --speed 100 --prefix replay", "a hundred times as fast, below replay/"),
        Example("jet replay log 'plant/tank/*' --from -1h --loop --prefix again --for 1s", "a part of it, in a loop"),
    ],
    instants=True,
)
@click.argument("folder", metavar="DIR")
@click.argument("rule", required=False)
@click.option("--speed", type=Speed(), default=1.0, metavar="N", help="speed relative to the recording, or max")
@click.option("--loop", is_flag=True, help="start again at the end")
@click.option("--from", "since", type=INSTANT, metavar="INSTANT", help="start of the time range, such as -2h")
@click.option("--until", type=INSTANT, metavar="INSTANT", help="end of the time range")
@click.option("--prefix", default="", metavar="P", help="add everything below P/")
@click.option("--stay", is_flag=True, help="keep the last state on the bus until Ctrl-C")
@click.option("--for", "for_s", type=DURATION, metavar="DURATION", help="stop after this time, such as 10s")
def replay(
    bus: Target,
    form: str | None,
    folder: str,
    rule: str | None,
    speed: float,
    prefix: str,
    stay: bool,
    for_s: float | None,
    **times: Any,
) -> int:
    """Play the journal in DIR back on the bus, with the original timing.

    Playback starts with the tree at the start of the time range. States are read-only, and methods give their recorded
    answers. Everything is removed from the bus at the end. Paths that others own are not played, and the exit code is
    then 1; --prefix avoids that.
    """
    if rule is not None:
        read_rule(rule)
    with explain_errors():
        from jetbus.player import Player

        options: dict[str, Any] = {
            **times,
            "rule": rule,
            "speed": speed,
            # People write replay as well as replay/ for the node.
            "prefix": prefix.rstrip("/") + "/" if prefix else "",
        }
        ending = Ending(for_s=for_s)
        done = run(
            _replay(
                lambda: Player(folder, bus.url, name="jet replay", wait=bus.wait, **options, **bus.get_login()),
                ending,
                stay,
            )
        )
    totals = {name: value for name, value in done._asdict().items() if name in COLUMNS}
    Output(COLUMNS, form, value="events").put_all([{"ts": _format_instant(done.position_us), **totals}])
    # Reported after the totals, which are of use all the same.
    if done.refused:
        hint = f"{prefix.rstrip('/')}2" if prefix else "replay"
        raise Failure(
            f"{done.refused} paths were not played, because the bus has them already or does not"
            f" allow them; `--prefix {hint}` plays them below {hint}/"
        )
    return Code.OK


async def _replay(player_of: Any, ending: Ending, stay: bool) -> Progress:
    player: Player = player_of()
    began = player.progress
    with show_bar("replay", began.until_us - began.start_us) as step:
        async with player:
            watching = asyncio.create_task(_watch(player, step))
            try:
                await run_until_end(run_until_sigterm(_play(player, stay)), ending)
            finally:
                watching.cancel()
            return player.progress


async def _play(player: Player, stay: bool) -> None:
    await player.wait()
    if stay:
        if sys.stderr.isatty():
            print_message("playback is complete; Ctrl-C removes it from the bus")
        await asyncio.Event().wait()


async def _watch(player: Player, step: Any) -> None:
    while True:
        done = player.progress
        step(done.position_us - done.start_us)
        await asyncio.sleep(LOOK_S)


def _format_instant(instant_us: int) -> str:
    from jetbus.journal.instants import write_instant

    return write_instant(instant_us)
