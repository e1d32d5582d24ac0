"""``jet ls`` and ``jet tree``: what is on the bus."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import click

from jetbus.cli.buses import Bus
from jetbus.cli.frame import PATH, Example, command
from jetbus.cli.output import Output, cut, default_format, say, terminal_width
from jetbus.cli.rules import nothing_matches, read_one
from jetbus.cli.values import on_one_line
from jetbus.peer.fetching import Event
from jetbus.rules import Rule

COLUMNS = ("path", "kind", "access", "value", "owner")


class Found(NamedTuple):
    """A state or method and, where the daemon tells it, its owner."""

    event: Event
    owner: str | None = None

    def record(self) -> dict[str, Any]:
        """All about it."""
        event = self.event
        told: dict[str, Any] = {"path": event.path, "kind": "method" if event.is_method else "state"}
        told["access"] = _ACCESS[event.is_method, event.fetch_only]
        if not event.is_method:
            told["value"] = event.value
        return told if self.owner is None else {**told, "owner": self.owner}


def _rule(prefix: str | None) -> Rule:
    """What a prefix is about: a node with all below it, or a rule."""
    if not prefix:
        return Rule()
    if any(char in prefix for char in '* "'):
        return read_one(prefix)
    return Rule(path=(("startsWith", prefix),))


def _found(bus: Bus, prefix: str | None) -> list[Found]:
    rule = _rule(prefix)
    with bus.quick() as peer:
        events = peer.look(rule)
        owners = peer.owners(rule)
    if prefix and not any(char in prefix for char in '* "'):
        node = prefix.rstrip("/")
        inside = [event for event in events if event.path == node or event.path.startswith(node + "/")]
        events = inside or events
    if prefix and not events:
        raise nothing_matches([prefix])
    events = sorted(events, key=lambda event: event.path)
    return [Found(event, _owner(owners.get(event.path))) for event in events]


def _owner(told: dict[str, Any] | None) -> str | None:
    if told is None:
        return None
    return "jetd" if told["owner"] == "#0" else str(told["owner"])  # the daemon itself has no connection


_ACCESS = {(False, False): "set", (False, True): "read-only", (True, False): "call", (True, True): "no call"}
"""What this user can do with a state or method besides looking at it."""


@command(
    examples=[
        Example("jet ls plant", "all below plant, with values"),
        Example("jet ls '**/speed' --output csv", "what matches a rule, for a spreadsheet"),
    ]
)
@click.argument("prefix", required=False, type=PATH)
def ls(bus: Bus, form: str | None, prefix: str | None) -> None:
    """The states and methods below PREFIX (or that match it, if it is a rule), sorted by path.

    Their owner is the name of a peer and its number in `jet peers`; only jetd tells it. The daemon's own states are
    below $jet and are listed by `jet ls '$jet'` only.
    """
    found = _found(bus, prefix)
    Output(COLUMNS, form, value="path").put_all(one.record() for one in found)
    if not found and (form or default_format(sys.stdout)) == "table":
        say("the bus is empty")


class Node:
    """A position of the tree: what is below it and, if something is added there, what."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.below: dict[str, Node] = {}
        self.found: Found | None = None
        self.owners: set[str | None] = set()
        """Who owns what is here or below."""

    def record(self, name: str) -> dict[str, Any]:
        """The node and all below it as JSON."""
        told = {"name": name, **(self.found.record() if self.found else {"path": self.path, "kind": "node"})}
        below = [node.record(name) for name, node in self.below.items()]
        return {**told, "below": below} if below else told

    def drawn(self, indent: str = "", *, told: bool = False) -> Iterator[str]:
        """What is below, as lines; an owner is told once, where all from there on is his."""
        for number, (name, node) in enumerate(self.below.items(), 1):
            last = number == len(self.below)
            yield f"{indent}{'└' if last else '├'}─ {name}{node.leaf()}{'' if told else node.owner()}"
            yield from node.drawn(indent + ("   " if last else "│  "), told=told or bool(node.owner()))

    def leaf(self) -> str:
        """What is added here, in short."""
        if self.found is None:
            return ""
        event = self.found.event
        return "()" if event.is_method else f" = {on_one_line(event.value)}"

    def owner(self) -> str:
        """The one who owns all of it, if it is one."""
        (owner,) = self.owners if len(self.owners) == 1 else (None,)
        return "" if owner is None else f"  [{owner}]"


def _nested(found: list[Found], depth: int | None) -> Node:
    root = Node("")
    for one in found:
        node, names = root, one.event.path.split("/")
        for level, name in enumerate(names[:depth], 1):
            node = node.below.setdefault(name, Node("/".join(names[:level])))
            node.owners.add(one.owner)
        if depth is None or len(names) <= depth:
            node.found = one
    return root


@command(
    examples=[
        Example("jet tree", "the whole bus"),
        Example("jet tree plant --depth 2", "plant and one level below it"),
    ]
)
@click.argument("prefix", required=False, type=PATH)
@click.option("--depth", type=click.IntRange(1), metavar="N", help="show so many levels only")
def tree(bus: Bus, form: str | None, prefix: str | None, depth: int | None) -> None:
    """The states and methods below PREFIX as a tree.

    The owner in brackets owns all from there on. As JSON each node has a name and, if anything hangs there, a list of
    what is below.
    """
    found = _found(bus, prefix)
    root = _nested(found, depth)
    form = form or default_format(sys.stdout)
    if form == "table":
        width = terminal_width()
        for line in root.drawn():
            say(line if width is None else cut(line, width))
    elif form in ("json", "jsonl"):
        with Output((), form) as out:
            out.put_all(node.record(name) for name, node in root.below.items())
    else:
        with Output(COLUMNS, form, value="path") as out:
            out.put_all(one.record() for one in found)
