"""``jet kick``: close the connection of a peer."""

from __future__ import annotations

import re
from typing import Any

import click

from jetbus.cli.buses import Bus
from jetbus.cli.failures import Code, Failure, near, printable, usage
from jetbus.cli.frame import Example, command
from jetbus.cli.output import Output
from jetbus.cli.peers import connected

COLUMNS = ("number", "name", "user", "transport", "address", "done")
NUMBERS_SHOWN = 10


@command(
    examples=[
        Example("jet kick display --user ann --password-file ann.txt", "where there are users, as an admin"),
        Example("jet kick display --all", "all that are called so"),
    ]
)
@click.argument("peer", metavar="PEER")
@click.option("--all", "every", is_flag=True, help="all of that name")
def kick(bus: Bus, form: str | None, peer: str, every: bool) -> None:
    """Close the connection of PEER: a number or a name of `jet peers`, or both as in plant#3.

    All that it owns leaves the bus. A peer that connects again by itself comes back with another number. Where the
    daemon has users, only an admin may.
    """
    with bus.quick(name="jet kick") as asking:
        asking.check_ours("close connections")
        known = connected(asking)
        found = _meant(peer, known)
        if not found:
            raise _nobody(peer, known)
        if len(found) > 1 and not every:
            numbers = ", ".join(str(one["number"]) for one in found[:NUMBERS_SHOWN])
            raise usage(f"{len(found)} peers are called {printable(peer)} (number {numbers}); give a number, or --all")
        with Output(COLUMNS, form, value="number") as out:
            for one in found:
                asking.call("$jet/kick", {"peer": one["number"]})
                out.put({**{name: one[name] for name in COLUMNS if name in one}, "done": "closed"})


def _meant(peer: str, known: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The peers of that number or name; a name is stronger."""
    named = [one for one in known if peer in (one["name"], f"{one['name']}#{one['number']}")]
    if named or not re.fullmatch(r"#?\d+", peer, re.ASCII):
        return named
    return [one for one in known if one["number"] == int(peer.removeprefix("#"))]


def _nobody(peer: str, known: list[dict[str, Any]]) -> Failure:
    meant = near(peer, [one["name"] for one in known if one["name"]])
    hint = f"did you mean {printable(meant)}?" if meant else "`jet peers` lists them"
    return Failure(f"there is no peer {printable(peer)}; {hint}", Code.NOT_FOUND)
