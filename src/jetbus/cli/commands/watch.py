"""``jet watch``: print states and methods, and then every change."""

from __future__ import annotations

import sys

import click

from jetbus.cli.arguments import is_shown, read_rules
from jetbus.cli.command import PATH, Example, command
from jetbus.cli.exit_codes import print_message
from jetbus.cli.output import Output
from jetbus.cli.streams import Ending, Follower, now, open_peer, run, run_until_end
from jetbus.cli.target import Target
from jetbus.json_types import JsonObject
from jetbus.peer import Event

COLUMNS = ("ts", "event", "path", "value")


@command(
    examples=[
        Example("jet watch 'plant/**' --for 1s", "everything below plant, for one second"),
        Example("jet watch plant/tank/level --until 'value>7'", "wait until a value is greater than 7"),
    ],
    stream=True,
)
@click.argument("rules", nargs=-1, type=PATH, metavar="[RULE]...")
@click.option("--new", "only_new", is_flag=True, help="skip what exists already, print only changes")
@click.option(
    "--every", is_flag=True, help="print every single change; by default a slow reader gets only the newest values"
)
def watch(bus: Target, form: str | None, ending: Ending, rules: tuple[str, ...], only_new: bool, every: bool) -> int:
    """Print what matches one of the RULEs, and then every add, change and remove; without a RULE, of everything.

    The command ends with Ctrl-C or q, or by --count, --for and --until. If --count or --until is not met in time, the
    exit code is 7. If the connection is lost, it continues when the daemon is back.
    """
    with Output(COLUMNS, form, stream=True) as out:
        code: int = run(_watch(bus, rules, out, ending, only_new, every))
    return code


async def _watch(bus: Target, rules: tuple[str, ...], out: Output, ending: Ending, only_new: bool, every: bool) -> int:
    wanted = read_rules(rules)
    async with open_peer(bus) as peer:
        following = Follower(peer, wanted, every=every)

        async def show() -> None:
            there = [event for event in await following.ready() if is_shown(event.path, rules)]
            if not there and sys.stderr.isatty():
                print_message("nothing matches yet; waiting until Ctrl-C")
            # The first lines are adds; the longer word comes later and must not move the columns.
            out.reserve([*map(_to_record, there), {"ts": now(), "event": "change"}])
            for event in () if only_new else there:
                if _show(out, ending, event):
                    return
            while True:
                event = await following.next()
                if is_shown(event.path, rules) and _show(out, ending, event):
                    return

        return await run_until_end(show(), ending, quits=True)


def _show(out: Output, ending: Ending, event: Event) -> bool:
    out.put(_to_record(event))
    return ending.record_event(event)


def _to_record(event: Event) -> JsonObject:
    record: JsonObject = {"ts": now(), "event": event.kind, "path": event.path}
    if not event.is_method:
        record["value"] = event.value
    return record
