"""``jet kick``: close the connection of a peer."""

from __future__ import annotations

import re

import click

from jetbus.cli.command import Example, command
from jetbus.cli.commands.peers import list_peers
from jetbus.cli.exit_codes import Code, Failure, escape, find_similar, usage_error
from jetbus.cli.output import Output
from jetbus.cli.target import Target
from jetbus.json_types import JsonObject

COLUMNS = ("number", "name", "user", "transport", "address", "done")
NUMBERS_SHOWN = 10


@command(
    examples=[
        Example("jet kick display --user ann --password-file ann.txt", "as an admin, if the daemon has users"),
        Example("jet kick display --all", "all peers of that name"),
    ]
)
@click.argument("peer", metavar="PEER")
@click.option("--all", "every", is_flag=True, help="close all connections of that name")
def kick(bus: Target, form: str | None, peer: str, every: bool) -> None:
    """Close the connection of PEER: a number or name from `jet peers`, or both as in plant#3.

    Its states and methods are removed from the bus. A peer that reconnects gets a new number. If the daemon has users,
    only an admin may close connections.
    """
    with bus.connect(name="jet kick") as asking:
        asking.check_jetbus("close connections")
        known = list_peers(asking)
        found = _find_peers(peer, known)
        if not found:
            raise _no_such_peer(peer, known)
        if len(found) > 1 and not every:
            numbers = ", ".join(str(one["number"]) for one in found[:NUMBERS_SHOWN])
            raise usage_error(
                f"{len(found)} peers are named {escape(peer)} (numbers {numbers}); give a number, or --all"
            )
        with Output(COLUMNS, form, value="number") as out:
            for one in found:
                asking.call("$jet/kick", {"peer": one["number"]})
                out.put({**{name: one[name] for name in COLUMNS if name in one}, "done": "closed"})


def _find_peers(peer: str, known: list[JsonObject]) -> list[JsonObject]:
    """Return the peers of a name, or else the peer of a number."""
    # A peer may have a number as its name, and names go first.
    named = [one for one in known if peer in (one["name"], f"{one['name']}#{one['number']}")]
    if named or not re.fullmatch(r"#?\d+", peer, re.ASCII):
        return named
    return [one for one in known if one["number"] == int(peer.removeprefix("#"))]


def _no_such_peer(peer: str, known: list[JsonObject]) -> Failure:
    similar = find_similar(peer, [one["name"] for one in known if one["name"]])
    hint = f"did you mean {escape(similar)}?" if similar else "`jet peers` lists them"
    return Failure(f"there is no peer {escape(peer)}; {hint}", Code.NOT_FOUND)
