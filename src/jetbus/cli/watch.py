"""``jet watch``: what is there, and from then on what happens."""

from __future__ import annotations

import sys
from typing import Any

import click

from jetbus.cli.buses import Bus
from jetbus.cli.failures import complain
from jetbus.cli.frame import PATH, Example, command
from jetbus.cli.output import Output
from jetbus.cli.rules import read_rules
from jetbus.cli.streams import Ending, Following, now, run, staying, until_end
from jetbus.peer import Event
from jetbus.rules import Rule

COLUMNS = ("at", "event", "path", "value")


@command(
    examples=[
        Example("jet watch 'plant/**' --for 1s", "everything below plant, for a second"),
        Example("jet watch plant/tank/level --until 'value>7'", "wait until a value is above 7"),
    ],
    stream=True,
)
@click.argument("rules", nargs=-1, type=PATH, metavar="[RULE]...")
@click.option("--new", "only_new", is_flag=True, help="only what happens from now on, not what is there")
@click.option("--every", is_flag=True, help="every single change; without it a slow reader is told the newest only")
def watch(bus: Bus, form: str | None, ending: Ending, rules: tuple[str, ...], only_new: bool, every: bool) -> int:
    """What is added, changed and removed of all that matches one of the RULEs; without one, of everything.

    It starts with what is there and ends with Ctrl-C, or as --count, --for and --until say. If these are not met in
    time the exit code is 7. When the connection is lost, it goes on as soon as the daemon is back.
    """
    wanted = read_rules(rules)
    with Output(COLUMNS, form, stream=True) as out:
        code: int = run(_watch(bus, wanted, out, ending, only_new, every))
    return code


async def _watch(bus: Bus, rules: list[Rule], out: Output, ending: Ending, only_new: bool, every: bool) -> int:
    async with staying(bus) as peer:
        following = Following(peer, rules, every=every)
        there = await following.ready()
        if not there and sys.stderr.isatty():
            complain("nothing matches yet; waiting, Ctrl-C ends")

        async def show() -> None:
            for event in () if only_new else there:
                if _show(out, ending, event):
                    return
            while not _show(out, ending, await following.next()):
                pass

        return await until_end(show(), ending)


def _show(out: Output, ending: Ending, event: Event) -> bool:
    record: dict[str, Any] = {"at": now(), "event": event.kind, "path": event.path}
    if not event.is_method:
        record["value"] = event.value
    out.put(record)
    return ending.sees(event)
