"""``jet ls`` and ``jet tree``: what is on the bus."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import click

from jetbus.cli.buses import Bus
from jetbus.cli.frame import PATH, Example, command
from jetbus.cli.output import Output, cut, default_format, say, terminal_width
from jetbus.cli.rules import nothing_matches, read_one
from jetbus.cli.values import on_one_line
from jetbus.peer.fetching import Event
from jetbus.rules import Rule

COLUMNS = ("path", "kind", "access", "value")


def _rule(prefix: str | None) -> Rule:
    """What a prefix is about: a node with all below it, or a rule."""
    if not prefix:
        return Rule()
    if any(char in prefix for char in '* "'):
        return read_one(prefix)
    return Rule(path=(("startsWith", prefix),))


def _found(bus: Bus, prefix: str | None) -> list[Event]:
    with bus.quick() as peer:
        events = peer.look(_rule(prefix))
    if prefix and not any(char in prefix for char in '* "'):
        node = prefix.rstrip("/")
        inside = [event for event in events if event.path == node or event.path.startswith(node + "/")]
        events = inside or events
    if prefix and not events:
        raise nothing_matches([prefix])
    return sorted(events, key=lambda event: event.path)


def _record(event: Event) -> dict[str, Any]:
    told: dict[str, Any] = {"path": event.path, "kind": "method" if event.is_method else "state"}
    told["access"] = _ACCESS[event.is_method, event.fetch_only]
    if not event.is_method:
        told["value"] = event.value
    return told


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

    The daemon's own states are below $jet and are listed by `jet ls '$jet'` only.
    """
    events = _found(bus, prefix)
    with Output(COLUMNS, form, value="path") as out:
        for event in events:
            out.put(_record(event))
    if not events and (form or default_format(sys.stdout)) == "table":
        say("the bus is empty")


class Node:
    """A position of the tree: what is below it and, if something is added there, what."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.below: dict[str, Node] = {}
        self.event: Event | None = None

    def record(self, name: str) -> dict[str, Any]:
        """The node and all below it as JSON."""
        told = {"name": name, **(_record(self.event) if self.event else {"path": self.path, "kind": "node"})}
        below = [node.record(name) for name, node in self.below.items()]
        return {**told, "below": below} if below else told

    def drawn(self, indent: str = "") -> Iterator[str]:
        """What is below, as lines."""
        for number, (name, node) in enumerate(self.below.items(), 1):
            last = number == len(self.below)
            yield f"{indent}{'└' if last else '├'}─ {name}{node.leaf()}"
            yield from node.drawn(indent + ("   " if last else "│  "))

    def leaf(self) -> str:
        """What is added here, in short."""
        if self.event is None:
            return ""
        return "()" if self.event.is_method else f" = {on_one_line(self.event.value)}"


def _nested(events: list[Event], depth: int | None) -> Node:
    root = Node("")
    for event in events:
        node, names = root, event.path.split("/")
        for level, name in enumerate(names[:depth], 1):
            node = node.below.setdefault(name, Node("/".join(names[:level])))
        if depth is None or len(names) <= depth:
            node.event = event
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

    As JSON each node has a name and, if anything hangs there, a list of what is below.
    """
    events = _found(bus, prefix)
    root = _nested(events, depth)
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
            out.put_all(map(_record, events))
